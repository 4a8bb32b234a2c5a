# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a disk says it can do, read in the binary forms that the standards define.

Printed output differs between versions of a tool; the data structures behind it do not.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from ..disks import SECTOR_BYTES, Disk
from ..machine_files import MachineFiles
from .tools import Tools

_PROBE_SECONDS = 30.0

# REPORT SUPPORTED OPERATION CODES (SPC-5), all of them, into 8192 bytes
_REPORT_OPCODES = ("a3", "0c", "00", "00", "00", "00", "00", "00", "20", "00", "00", "00")


@dataclass(frozen=True)
class NvmeController:
    """Fields of Identify Controller (NVM Express Base Specification 2.0, figure 275)."""

    sanitize_crypto: bool
    sanitize_block: bool
    sanitize_overwrite: bool
    format: bool
    format_crypto: bool
    namespace_management: bool

    @classmethod
    def parse(cls, data: bytes) -> NvmeController | None:
        """From the 4096 bytes of the data structure; None when there are fewer."""
        if len(data) < 4096:
            return None
        (optional_commands,) = struct.unpack_from("<H", data, 256)
        (sanitize,) = struct.unpack_from("<I", data, 328)
        format_attributes = data[524]
        return cls(
            sanitize_crypto=bool(sanitize & 1),
            sanitize_block=bool(sanitize & 2),
            sanitize_overwrite=bool(sanitize & 4),
            format=bool(optional_commands & 2),
            format_crypto=bool(optional_commands & 2 and format_attributes & 4),
            namespace_management=bool(optional_commands & 8),
        )


@dataclass(frozen=True)
class NvmeFormat:
    """The format that a namespace has now, to format it to the same."""

    lba_format: int
    extended_metadata: int
    protection: int
    protection_first: int

    @classmethod
    def parse(cls, data: bytes) -> NvmeFormat | None:
        """From the 4096 bytes of Identify Namespace; None when there are fewer."""
        if len(data) < 4096:
            return None
        flbas, dps = data[26], data[29]
        return cls(
            # bits 6:5 extend bits 3:0 where a namespace has more than 16 formats
            lba_format=(flbas & 0xF) | (flbas >> 5 & 3) << 4,
            extended_metadata=flbas >> 4 & 1,
            protection=dps & 7,
            protection_first=dps >> 3 & 1,
        )


@dataclass(frozen=True)
class AtaFeatures:
    """Words of IDENTIFY DEVICE (ACS-4): 59 sanitize, 82/128 security, 89/90 erase times."""

    sanitize_crypto: bool
    sanitize_block: bool
    sanitize_overwrite: bool
    security: bool
    enabled: bool
    locked: bool
    frozen: bool
    enhanced: bool
    erase_seconds: int | None
    enhanced_erase_seconds: int | None

    @classmethod
    def parse(cls, data: bytes) -> AtaFeatures | None:
        """From the 512 bytes of the data structure; None when there are fewer."""
        if len(data) < 512:
            return None
        words = struct.unpack_from("<256H", data)
        sanitize = words[59] if words[59] & 1 << 12 else 0
        status = words[128]
        security = bool(words[82] & 2 and status & 1)
        return cls(
            sanitize_crypto=bool(sanitize & 1 << 13),
            sanitize_block=bool(sanitize & 1 << 15),
            sanitize_overwrite=bool(sanitize & 1 << 14),
            security=security,
            enabled=security and bool(status & 2),
            locked=security and bool(status & 4),
            frozen=security and bool(status & 8),
            enhanced=security and bool(status & 32),
            erase_seconds=_erase_seconds(words[89]),
            enhanced_erase_seconds=_erase_seconds(words[90]),
        )

    @classmethod
    def parse_words(cls, text: str) -> AtaFeatures | None:
        """From the output of ``hdparm --Istdout``: 256 words of four hex digits."""
        words = re.findall(r"\b[0-9a-f]{4}\b", text.partition(":")[2])
        if len(words) < 256:
            return None
        return cls.parse(struct.pack("<256H", *(int(word, 16) for word in words[:256])))


@dataclass(frozen=True)
class ScsiFeatures:
    """Service actions of SANITIZE (SBC-4) that the disk lists as supported."""

    sanitize_overwrite: bool
    sanitize_block: bool
    sanitize_crypto: bool

    @classmethod
    def parse(cls, data: bytes) -> ScsiFeatures:
        """From REPORT SUPPORTED OPERATION CODES, all commands, without time-outs (SPC-5)."""
        actions = set()
        length = min(int.from_bytes(data[:4], "big"), max(0, len(data) - 4))
        for start in range(4, 4 + length - 7, 8):
            if data[start] == 0x48 and data[start + 5] & 1:
                actions.add(int.from_bytes(data[start + 2 : start + 4], "big"))
        return cls(
            sanitize_overwrite=1 in actions,
            sanitize_block=2 in actions,
            sanitize_crypto=3 in actions,
        )


@dataclass(frozen=True)
class SanitizeLog:
    """NVMe log page 81h: the state of the last sanitize operation, and how long one takes."""

    status: int  # 0 never, 1 completed, 2 in progress, 3 failed, 4 completed without deallocation
    progress: float
    overwrite_seconds: int | None
    block_seconds: int | None
    crypto_seconds: int | None

    @classmethod
    def parse(cls, data: bytes) -> SanitizeLog | None:
        """From the log page; None when it is shorter than its fields."""
        if len(data) < 20:
            return None
        progress, status, _command, *seconds = struct.unpack_from("<HHIIII", data)
        overwrite, block, crypto = (None if value == 0xFFFFFFFF else value for value in seconds)
        return cls(status & 7, progress / 65536, overwrite, block, crypto)


@dataclass(frozen=True)
class Features:
    """What one disk advertises; the parts that are not of its kind are None."""

    write_zeroes: bool = False
    nvme: NvmeController | None = None
    ata: AtaFeatures | None = None
    scsi: ScsiFeatures | None = None


def read_features(disk: Disk, tools: Tools) -> Features:
    """Ask ``disk`` what it can do. A disk that does not answer advertises nothing."""
    if disk.bus == "nvme" and disk.controllers:
        return Features(disk.write_zeroes, nvme=read_nvme_controller(disk.controllers[0], tools))
    if disk.bus == "sata":
        return Features(disk.write_zeroes, ata=read_ata_features(disk, tools))
    if disk.bus in ("scsi", "sas"):
        outcome = tools.run(
            ["sg_raw", "--binary", "--readonly", "--request=8192", disk.path, *_REPORT_OPCODES],
            _PROBE_SECONDS,
        )
        if outcome.succeeded:
            return Features(disk.write_zeroes, scsi=ScsiFeatures.parse(outcome.output))
    return Features(disk.write_zeroes)


def read_nvme_controller(name: str, tools: Tools) -> NvmeController | None:
    """Identify Controller of ``/dev/<name>``."""
    outcome = tools.run(["nvme", "id-ctrl", f"/dev/{name}", "--raw-binary"], _PROBE_SECONDS)
    return NvmeController.parse(outcome.output) if outcome.succeeded else None


def read_nvme_format(disk: Disk, tools: Tools) -> NvmeFormat | None:
    """Identify Namespace of ``disk``."""
    outcome = tools.run(["nvme", "id-ns", disk.path, "--raw-binary"], _PROBE_SECONDS)
    return NvmeFormat.parse(outcome.output) if outcome.succeeded else None


def read_ata_features(disk: Disk, tools: Tools) -> AtaFeatures | None:
    """IDENTIFY DEVICE as it is now; what the kernel kept from the start where that fails."""
    outcome = tools.run(["hdparm", "--Istdout", disk.path], _PROBE_SECONDS)
    now = AtaFeatures.parse_words(outcome.output.decode("ascii", "replace"))
    if now is None and disk.ata_identify:
        return AtaFeatures.parse(disk.ata_identify)
    return now


def read_sanitize_log(controller: str, tools: Tools) -> SanitizeLog | None:
    """The sanitize status of ``/dev/<controller>``."""
    outcome = tools.run(
        ["nvme", "get-log", f"/dev/{controller}", "--log-id=0x81", "--log-len=512", "--raw-binary"],
        _PROBE_SECONDS,
    )
    return SanitizeLog.parse(outcome.output) if outcome.succeeded else None


def parse_namespace_list(data: bytes) -> list[int]:
    """A Namespace List: up to 1024 little-endian numbers, ended by a zero."""
    namespaces = []
    for (number,) in struct.iter_unpack("<I", data[: len(data) // 4 * 4]):
        if number == 0:
            break
        namespaces.append(number)
    return namespaces


def find_hidden_namespaces(
    disks: Iterable[Disk], tools: Tools, files: MachineFiles | None = None
) -> list[Disk]:
    """Namespaces that a controller has and the kernel shows no block device for.

    They are allocated and not attached, or in a format that the kernel does not understand. Each
    comes back as a disk without capacity, at the path of its controller. A controller that does
    not tell its namespaces comes back as one such disk without a namespace.
    """
    files = files or MachineFiles()
    subsystems: dict[str, str] = {}
    for controller in files.list("/sys/class/nvme"):
        # Controllers of one subsystem share its namespaces, and may each show only some.
        nqn = files.read_text(f"/sys/class/nvme/{controller}/subsysnqn") or controller
        subsystems[controller] = nqn
    seen: set[tuple[str, int | None]] = {
        (subsystems.get(controller, controller), disk.namespace_id)
        for disk in disks
        if disk.bus == "nvme"
        for controller in disk.controllers
    }
    hidden = []
    for controller, nqn in subsystems.items():
        namespaces = _read_namespaces(controller, tools)
        for namespace in [None] if namespaces is None else namespaces:
            if (nqn, namespace) not in seen:
                seen.add((nqn, namespace))
                hidden.append(_hidden(controller, namespace, files))
    return hidden


def _hidden(controller: str, namespace: int | None, files: MachineFiles) -> Disk:
    base = f"/sys/class/nvme/{controller}"
    return Disk(
        name=f"{controller} namespace {'unknown' if namespace is None else namespace}",
        path=f"/dev/{controller}",
        bus="nvme",
        size_bytes=0,
        logical_sector_bytes=SECTOR_BYTES,
        physical_sector_bytes=SECTOR_BYTES,
        read_only=False,
        model=files.read_text(f"{base}/model"),
        serial_number=files.read_text(f"{base}/serial"),
        firmware_version=files.read_text(f"{base}/firmware_rev"),
        namespace_id=namespace,
        controllers=(controller,),
    )


def _read_namespaces(controller: str, tools: Tools) -> list[int] | None:
    """The allocated namespaces, or the active ones where the controller cannot manage any."""
    identify = read_nvme_controller(controller, tools)
    # Identify with CNS 10h lists what is allocated, 02h what is attached to this controller.
    selector = "0x10" if identify and identify.namespace_management else "0x02"
    outcome = tools.run(
        [
            "nvme",
            "admin-passthru",
            f"/dev/{controller}",
            "--opcode=0x06",
            f"--cdw10={selector}",
            "--data-len=4096",
            "--read",
            "--raw-binary",
        ],
        _PROBE_SECONDS,
    )
    return parse_namespace_list(outcome.output) if outcome.succeeded else None


def _erase_seconds(word: int) -> int | None:
    """Words 89 and 90: units of two minutes, in the long form when bit 15 is set."""
    units = word & 0x7FFF if word & 0x8000 else word & 0xFF
    return units * 120 or None
