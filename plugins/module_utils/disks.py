# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole disks of this machine, from sysfs and udev's database, without starting a process.

A disk is a block device with hardware behind it. Loop, RAM, zram, device-mapper and md devices,
floppies and CD drives are none. The hidden paths of NVMe multipath are none either: their head
is. The boot areas of eMMC (``mmcblk0boot0``, ``mmcblk0rpmb``) are left out because erasing them
can take the firmware away from the board.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .machine_files import MachineFiles

SECTOR_BYTES = 512
"""The unit of ``size`` and ``start`` in sysfs, whatever the disk's own sectors are."""

Json = dict[str, Any]

_NOT_A_DISK = re.compile(r"loop|ram|zram|fd|sr|dm-|md|mmcblk\d+(?:boot\d|rpmb|gp\d)")

# SCSI peripheral device types of things that can be erased: direct access, WORM, optical,
# RBC, zoned (SPC-5, table "Peripheral device type").
_SCSI_DISK_TYPES = (0, 4, 7, 14, 20)

# ATA Information VPD page (SAT-4): IDENTIFY DEVICE data stands at byte 60.
_VPD_ATA_IDENTIFY = slice(60, 572)


@dataclass(frozen=True)
class Partition:
    """A partition that the kernel knows."""

    name: str
    path: str
    start_bytes: int
    size_bytes: int

    def describe(self) -> Json:
        """``{name, path, start_bytes, size_bytes}``."""
        return {
            "name": self.name,
            "path": self.path,
            "start_bytes": self.start_bytes,
            "size_bytes": self.size_bytes,
        }


@dataclass(frozen=True)
class Holder:
    """What keeps a disk or one of its partitions in use."""

    device: str
    kind: str  # mount | swap | device
    name: str

    def describe(self) -> Json:
        """``{device, kind: mount|swap|device, name}``."""
        return {"device": self.device, "kind": self.kind, "name": self.name}

    def __str__(self) -> str:
        words = {"mount": "is mounted on", "swap": "is swap,", "device": "is held by"}
        return f"{self.device} {words[self.kind]} {self.name}"


@dataclass(frozen=True)
class Disk:
    """One whole disk, or one NVMe namespace. Unknown is None; sizes are bytes."""

    name: str
    path: str
    bus: str | None
    size_bytes: int
    logical_sector_bytes: int
    physical_sector_bytes: int
    read_only: bool
    rotational: bool | None = None
    manufacturer: str | None = None
    model: str | None = None
    serial_number: str | None = None
    firmware_version: str | None = None
    wwn: str | None = None
    links: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()
    holders: tuple[Holder, ...] = ()
    namespace_id: int | None = None
    controllers: tuple[str, ...] = ()
    write_zeroes: bool = False
    ata_identify: bytes | None = None

    @property
    def by_id(self) -> str | None:
        """The link of ``/dev/disk/by-id`` that names model and serial number, if udev made one."""
        links = [link for link in self.links if link.startswith("/dev/disk/by-id/")]
        speaking = [
            link
            for link in links
            if not link.removeprefix("/dev/disk/by-id/").startswith(("wwn-", "nvme-eui.", "scsi-"))
        ]
        return next(iter(speaking or links), None)

    @property
    def by_path(self) -> str | None:
        """The first link of ``/dev/disk/by-path``, if udev made one."""
        return next((link for link in self.links if link.startswith("/dev/disk/by-path/")), None)

    @property
    def media_type(self) -> str:
        """The medium in the words of a sanitization certificate."""
        if self.bus == "virtio":
            return "virtual disk"
        if self.bus in ("nvme", "mmc"):
            return "flash memory"
        if self.rotational is None:
            return "unknown"
        return "magnetic disk" if self.rotational else "flash memory"

    def identity(self) -> Json:
        """The disk's row of an inventory."""
        return {
            "name": self.name,
            "path": self.path,
            "by_id": self.by_id,
            "by_path": self.by_path,
            "model": self.model,
            "serial_number": self.serial_number,
            "wwn": self.wwn,
            "size_bytes": self.size_bytes,
            "bus": self.bus,
            "rotational": self.rotational,
            "read_only": self.read_only,
            "logical_sector_bytes": self.logical_sector_bytes,
            "physical_sector_bytes": self.physical_sector_bytes,
        }

    def describe(self) -> Json:
        """The row, with what only the machine itself can tell."""
        return {
            **self.identity(),
            "manufacturer": self.manufacturer,
            "firmware_version": self.firmware_version,
            "media_type": self.media_type,
            "links": list(self.links),
            "namespace_id": self.namespace_id,
            "controllers": list(self.controllers),
            "partitions": [partition.describe() for partition in self.partitions],
            "holders": [holder.describe() for holder in self.holders],
        }


def read_disks(files: MachineFiles | None = None) -> list[Disk]:
    """Every whole disk of the machine, in the order of their names.

    An empty card reader (removable, no capacity) is left out; any other disk without capacity is
    listed, because a broken disk must be named.
    """
    files = files or MachineFiles()
    usage = _read_usage(files)
    disks = [
        read_disk(name, files, usage) for name in files.list("/sys/block") if _is_disk(name, files)
    ]
    return sorted(
        (disk for disk in disks if disk.size_bytes or not _is_removable(disk.name, files)),
        key=lambda disk: _natural(disk.name),
    )


def read_disk(
    name: str, files: MachineFiles | None = None, usage: dict[str, list[Holder]] | None = None
) -> Disk:
    """The disk called ``name`` (as in ``/sys/block``), whether or not it counts as one."""
    files = files or MachineFiles()
    usage = _read_usage(files) if usage is None else usage
    base = f"/sys/block/{name}"
    udev = _read_udev(files, files.read_text(f"{base}/dev"))
    identify = _ata_identify(files, base)
    partitions = _read_partitions(files, name)
    rotational = files.read_int(f"{base}/queue/rotational")
    logical = files.read_int(f"{base}/queue/logical_block_size") or SECTOR_BYTES
    bus = _bus(files, name, udev)
    return Disk(
        name=name,
        path=f"/dev/{name}",
        bus=bus,
        size_bytes=(files.read_int(f"{base}/size") or 0) * SECTOR_BYTES,
        logical_sector_bytes=logical,
        physical_sector_bytes=files.read_int(f"{base}/queue/physical_block_size") or logical,
        read_only=files.read_int(f"{base}/ro") == 1,
        rotational=None if rotational is None else rotational == 1,
        manufacturer=_manufacturer(files, base),
        model=_model(files, base, udev, identify),
        serial_number=_serial_number(files, base, udev, identify),
        firmware_version=files.read_text(f"{base}/device/firmware_rev")
        or files.read_text(f"{base}/device/rev"),
        wwn=_wwn(files, base, udev),
        links=tuple(sorted(f"/dev/{link}" for link in udev.links)),
        partitions=partitions,
        holders=_holders(files, name, partitions, usage),
        namespace_id=files.read_int(f"{base}/nsid") if bus == "nvme" else None,
        controllers=_nvme_controllers(files, base) if bus == "nvme" else (),
        write_zeroes=bool(files.read_int(f"{base}/queue/write_zeroes_max_bytes")),
        ata_identify=identify,
    )


def runs_from_memory(files: MachineFiles | None = None) -> bool:
    """Whether the root file system is one that a ramdisk has, so that no disk is needed to run."""
    files = files or MachineFiles()
    root_types = [
        mount.kind
        for mount in parse_mounts(files.read_text("/proc/self/mountinfo"))
        if mount.target == "/"
    ]
    return bool(root_types) and root_types[-1] in ("rootfs", "ramfs", "tmpfs", "overlay")


@dataclass(frozen=True)
class Mount:
    """One line of ``/proc/self/mountinfo``."""

    device_number: str
    target: str
    kind: str


def parse_mounts(text: str | None) -> list[Mount]:
    """The mounts in the text of ``/proc/self/mountinfo``, see proc(5). Other lines are ignored."""
    mounts = []
    for line in (text or "").splitlines():
        fields = line.split(" ")
        if len(fields) < 8 or "-" not in fields[6:-1]:
            continue
        kind = fields[fields.index("-", 6) + 1]
        mounts.append(Mount(fields[2], _unescape(fields[4]), kind))
    return mounts


def parse_swaps(text: str | None) -> list[str]:
    """The paths in the text of ``/proc/swaps``."""
    lines = (text or "").splitlines()[1:]
    return [_unescape(line.split()[0]) for line in lines if line.split()]


@dataclass(frozen=True)
class UdevEntry:
    """What udev found out about a device: its links below ``/dev``, its properties."""

    links: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()

    def get(self, *names: str) -> str | None:
        """The first of the named properties that has a value."""
        values = dict(self.properties)
        return next((values[name].strip() for name in names if values.get(name, "").strip()), None)


def parse_udev(text: str | None) -> UdevEntry:
    """An entry of ``/run/udev/data``: ``S:`` lines are links, ``E:`` lines are properties."""
    links, properties = [], []
    for line in (text or "").splitlines():
        if line.startswith("S:"):
            links.append(line[2:])
        elif line.startswith("E:") and "=" in line:
            name, value = line[2:].split("=", 1)
            properties.append((name, value))
    return UdevEntry(tuple(links), tuple(properties))


def ata_string(words: bytes) -> str | None:
    """A string of IDENTIFY DEVICE data, whose bytes are swapped in pairs."""
    swapped = bytearray(words)
    swapped[0::2], swapped[1::2] = words[1::2], words[0::2]
    return swapped.decode("ascii", "replace").strip("\0 ") or None


def parse_vpd_text(page: bytes | None) -> str | None:
    """The text of a SCSI VPD page such as 80h: four bytes of header, then ASCII."""
    if not page or len(page) < 4:
        return None
    length = int.from_bytes(page[2:4], "big")
    return page[4 : 4 + length].decode("ascii", "replace").strip("\0 ") or None


def normal_wwn(text: str) -> str:
    """One spelling for a world wide name, to compare by: lower case hex without its prefix."""
    return re.sub(r"^(?:0x|naa\.|eui\.|uuid\.|wwn-0x|nvme-eui\.)", "", text.strip().lower())


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _unescape(text: str) -> str:
    """Undo the octal escapes of mountinfo and swaps."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _is_disk(name: str, files: MachineFiles) -> bool:
    base = f"/sys/block/{name}"
    if _NOT_A_DISK.match(name) or files.read_int(f"{base}/hidden") == 1:
        return False
    if not files.exists(f"{base}/device"):
        return False
    scsi_type = files.read_int(f"{base}/device/type")
    return not name.startswith("sd") or scsi_type is None or scsi_type in _SCSI_DISK_TYPES


def _is_removable(name: str, files: MachineFiles) -> bool:
    return files.read_int(f"/sys/block/{name}/removable") == 1


def _read_udev(files: MachineFiles, device_number: str | None) -> UdevEntry:
    return parse_udev(files.read_text(f"/run/udev/data/b{device_number}"))


def _ata_identify(files: MachineFiles, base: str) -> bytes | None:
    page = files.read_bytes(f"{base}/device/vpd_pg89") or b""
    identify = page[_VPD_ATA_IDENTIFY]
    return identify if len(identify) == 512 else None


def _bus(files: MachineFiles, name: str, udev: UdevEntry) -> str | None:
    if name.startswith("nvme"):
        return "nvme"
    if name.startswith("vd"):
        return "virtio"
    if name.startswith("mmcblk"):
        return "mmc"
    if not name.startswith("sd"):
        return None
    device = files.resolve(f"/sys/block/{name}")
    if re.search(r"/usb\d+/", device) or udev.get("ID_BUS") == "usb":
        return "usb"
    # A SATA disk behind a SAS controller speaks ATA through a translation and says so here.
    if (
        re.search(r"/ata\d+/", device)
        or files.read_text(f"/sys/block/{name}/device/vendor") == "ATA"
    ):
        return "sata"
    return "sas" if "/end_device-" in device else "scsi"


def _manufacturer(files: MachineFiles, base: str) -> str | None:
    vendor = files.read_text(f"{base}/device/vendor")
    # "ATA" is the translation's name, and virtio shows a PCI number here.
    return None if vendor is None or vendor == "ATA" or vendor.startswith("0x") else vendor


def _model(files: MachineFiles, base: str, udev: UdevEntry, identify: bytes | None) -> str | None:
    if identify:
        return ata_string(identify[54:94])
    return (
        files.read_text(f"{base}/device/model")
        or files.read_text(f"{base}/device/name")
        or udev.get("ID_MODEL")
    )


def _serial_number(
    files: MachineFiles, base: str, udev: UdevEntry, identify: bytes | None
) -> str | None:
    return (
        (ata_string(identify[20:40]) if identify else None)
        or files.read_text(f"{base}/device/serial")
        or files.read_text(f"{base}/serial")
        or parse_vpd_text(files.read_bytes(f"{base}/device/vpd_pg80"))
        or udev.get("ID_SCSI_SERIAL", "ID_SERIAL_SHORT")
    )


def _wwn(files: MachineFiles, base: str, udev: UdevEntry) -> str | None:
    name = files.read_text(f"{base}/wwid") or files.read_text(f"{base}/device/wwid") or ""
    if name.startswith("naa."):
        return f"0x{name.removeprefix('naa.').lower()}"
    if name.startswith(("eui.", "uuid.")):
        return name.lower()
    # "t10." and "nvme." are made of model and serial number: no name of the world.
    from_udev = udev.get("ID_WWN_WITH_EXTENSION", "ID_WWN") or ""
    return from_udev.lower() if from_udev.startswith(("0x", "eui.", "uuid.")) else None


def _read_partitions(files: MachineFiles, name: str) -> tuple[Partition, ...]:
    partitions = []
    for entry in files.list(f"/sys/block/{name}"):
        base = f"/sys/block/{name}/{entry}"
        if entry.startswith(name) and files.exists(f"{base}/partition"):
            partitions.append(
                Partition(
                    name=entry,
                    path=f"/dev/{entry}",
                    start_bytes=(files.read_int(f"{base}/start") or 0) * SECTOR_BYTES,
                    size_bytes=(files.read_int(f"{base}/size") or 0) * SECTOR_BYTES,
                )
            )
    return tuple(sorted(partitions, key=lambda partition: partition.start_bytes))


def _read_usage(files: MachineFiles) -> dict[str, list[Holder]]:
    """Mounts by device number and swaps by path."""
    usage: dict[str, list[Holder]] = {}
    for mount in parse_mounts(files.read_text("/proc/self/mountinfo")):
        holder = Holder(mount.device_number, "mount", mount.target)
        usage.setdefault(mount.device_number, []).append(holder)
    for path in parse_swaps(files.read_text("/proc/swaps")):
        usage.setdefault(path, []).append(Holder(path, "swap", path))
    return usage


def _holders(
    files: MachineFiles,
    name: str,
    partitions: Iterable[Partition],
    usage: dict[str, list[Holder]],
) -> tuple[Holder, ...]:
    holders = []
    for device, base in [
        (name, f"/sys/block/{name}"),
        *((partition.name, f"/sys/block/{name}/{partition.name}") for partition in partitions),
    ]:
        keys = (files.read_text(f"{base}/dev") or "", f"/dev/{device}")
        holders += [
            Holder(device, use.kind, use.name) for key in keys for use in usage.get(key, [])
        ]
        holders += [Holder(device, "device", other) for other in files.list(f"{base}/holders")]
    return tuple(holders)


def _nvme_controllers(files: MachineFiles, base: str) -> tuple[str, ...]:
    """The controllers that reach a namespace: one, or those of its subsystem."""
    device = files.resolve(f"{base}/device")
    name = device.rpartition("/")[2]
    if re.fullmatch(r"nvme\d+", name):
        return (name,)
    return tuple(entry for entry in files.list(device) if re.fullmatch(r"nvme\d+", entry))
