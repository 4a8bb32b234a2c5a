# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""What disks advertise, read from structures constructed by the standards' tables."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils.wipe import features
from ansible_collections.barewright.metal.plugins.module_utils.wipe.features import (
    AtaFeatures,
    Features,
    NvmeController,
    NvmeFormat,
    SanitizeLog,
    ScsiFeatures,
)
from ansible_collections.barewright.metal.plugins.module_utils.wipe.methods import (
    LEVELS,
    METHODS,
    advertised_methods,
)


def identify_controller(oacs: int = 0, sanicap: int = 0, fna: int = 0) -> bytes:
    data = bytearray(4096)
    struct.pack_into("<H", data, 256, oacs)
    struct.pack_into("<I", data, 328, sanicap)
    data[524] = fna
    return bytes(data)


def identify_device(**words: int) -> bytes:
    values = [0] * 256
    for name, value in words.items():
        values[int(name.removeprefix("word"))] = value
    return struct.pack("<256H", *values)


def names(bus: str, advertised: Features) -> list[str]:
    return [method.name for method in advertised_methods(bus, advertised)]


def test_nvme_methods_come_from_the_capability_bits():
    def purge(**bits):
        controller = NvmeController.parse(identify_controller(**bits))
        return [name for name in names("nvme", Features(nvme=controller)) if "nvme" in name]

    assert purge() == []
    assert purge(oacs=2) == ["nvme_format_user_data"]
    assert purge(oacs=2, fna=4) == ["nvme_format_user_data", "nvme_format_crypto"]
    assert purge(fna=4) == [], "crypto erase is a part of format"
    assert purge(sanicap=1) == ["nvme_sanitize_crypto"]
    assert purge(sanicap=7) == [
        "nvme_sanitize_block",
        "nvme_sanitize_overwrite",
        "nvme_sanitize_crypto",
    ]


def recorded_qemu_controller() -> bytes:
    """Identify Controller of QEMU 7.2's nvme, recorded on a booted ramdisk; the rest is zero."""
    data = bytearray(4096)
    for offset, content in {
        0: b"\x36\x1b\xf4\x1aNVME-SN".ljust(24) + b"QEMU NVMe Ctrl".ljust(40) + b"7.2.22  ",
        72: bytes.fromhex("0600545202070000000401"),
        256: bytes.fromhex("0a0103030307"),
        512: bytes.fromhex("66440000000100005d0100000007"),
        534: bytes.fromhex("030001"),
    }.items():
        data[offset : offset + len(content)] = content
    return bytes(data)


def test_the_nvme_disk_of_qemu_offers_format_and_no_sanitize():
    controller = NvmeController.parse(recorded_qemu_controller())
    assert controller == NvmeController(
        sanitize_crypto=False,
        sanitize_block=False,
        sanitize_overwrite=False,
        format=True,
        format_crypto=False,
        namespace_management=True,
    )


def test_ata_methods_come_from_identify_device():
    def purge(**words):
        ata = AtaFeatures.parse(identify_device(**words))
        return [name for name in names("sata", Features(ata=ata)) if name.startswith("ata")]

    assert purge() == []
    assert purge(word59=0xE000) == [], "bits 13 to 15 mean nothing without bit 12"
    assert purge(word59=0xF000) == [
        "ata_sanitize_block",
        "ata_sanitize_overwrite",
        "ata_sanitize_crypto",
    ]
    assert purge(word82=2, word128=1) == ["ata_secure_erase"]
    assert purge(word82=2, word128=0x21) == ["ata_secure_erase_enhanced", "ata_secure_erase"]
    assert purge(word128=0x21) == []


def test_ata_security_states_are_told_apart():
    ata = AtaFeatures.parse(identify_device(word82=2, word128=0x0F))
    assert ata is not None
    assert (ata.enabled, ata.locked, ata.frozen) == (True, True, True)


@pytest.mark.parametrize(
    ("word", "seconds"), [(0, None), (0x0010, 32 * 60), (0x80FF, 510 * 60), (0x8100, 512 * 60)]
)
def test_ata_erase_time_has_a_short_and_a_long_form(word, seconds):
    ata = AtaFeatures.parse(identify_device(word89=word))
    assert ata is not None
    assert ata.erase_seconds == seconds


def test_identify_words_of_hdparm_are_read():
    # constructed after hdparm 9.65's format "%04x %04x …", eight words a line
    words = struct.unpack("<256H", identify_device(word82=2, word128=0x21))
    lines = [
        " ".join(f"{word:04x}" for word in words[start : start + 8]) for start in range(0, 256, 8)
    ]
    ata = AtaFeatures.parse_words("\n/dev/sda:\n" + "\n".join(lines) + "\n")
    assert ata == AtaFeatures.parse(identify_device(word82=2, word128=0x21))
    assert AtaFeatures.parse_words("/dev/dead:\n SG_IO: bad/missing sense data\n") is None


def test_scsi_methods_come_from_the_supported_operation_codes():
    def descriptor(opcode: int, action: int, has_action: int) -> bytes:
        return struct.pack(">BxHxBH", opcode, action, has_action, 10)

    table = b"".join(
        [
            descriptor(0x00, 0, 0),
            descriptor(0x48, 1, 1),
            descriptor(0x48, 3, 1),
            descriptor(0x9E, 2, 1),
        ]
    )
    scsi = ScsiFeatures.parse(len(table).to_bytes(4, "big") + table)
    assert names("sas", Features(scsi=scsi))[:2] == [
        "scsi_sanitize_overwrite",
        "scsi_sanitize_crypto",
    ]


def test_a_disk_that_does_not_answer_advertises_only_overwriting():
    assert names("nvme", Features()) == ["overwrite", "metadata"]
    assert names("virtio", Features(write_zeroes=True)) == ["write_zeroes", "overwrite", "metadata"]


def test_namespaces_are_whole_numbers_up_to_the_first_zero():
    data = struct.pack("<6I", 1, 2, 0x1A, 300, 0, 7)
    assert features.parse_namespace_list(data) == [1, 2, 26, 300]


def test_a_format_keeps_what_the_namespace_has():
    data = bytearray(4096)
    data[26] = 0b0101_0011  # format 3, extended metadata, upper bits 2
    data[29] = 0b1001
    assert NvmeFormat.parse(bytes(data)) == NvmeFormat(3 | 2 << 4, 1, 1, 1)


def test_sanitize_log_tells_state_progress_and_estimates():
    data = struct.pack("<HHIIII", 0x8000, 0x0102, 4, 100, 0xFFFFFFFF, 5)
    assert SanitizeLog.parse(data) == SanitizeLog(2, 0.5, 100, None, 5)


@given(st.binary(max_size=5000))
def test_parsers_take_anything(data):
    NvmeController.parse(data)
    NvmeFormat.parse(data)
    AtaFeatures.parse(data)
    ScsiFeatures.parse(data)
    SanitizeLog.parse(data)
    features.parse_namespace_list(data)


@given(st.text())
def test_words_are_parsed_from_any_text(text):
    AtaFeatures.parse_words(text)


def test_table_has_each_method_once_and_only_known_words():
    assert len({method.name for method in METHODS}) == len(METHODS)
    for method in METHODS:
        assert method.level in LEVELS
        assert method.scope in ("disk", "controller")
        assert method.leaves in ("zeroes", "constant", "unknown")


def test_a_disk_of_another_bus_is_never_given_a_foreign_command():
    everything = Features(
        write_zeroes=True,
        nvme=NvmeController.parse(identify_controller(0xFF, 7, 7)),
        ata=AtaFeatures.parse(identify_device(word59=0xF000, word82=2, word128=0x21)),
        scsi=ScsiFeatures(True, True, True),
    )
    for bus, prefix in (("nvme", "nvme"), ("sata", "ata"), ("scsi", "scsi"), ("usb", "none")):
        foreign = {"nvme", "ata", "scsi"} - {prefix}
        assert not [name for name in names(bus, everything) if name.split("_", 1)[0] in foreign], (
            bus
        )
