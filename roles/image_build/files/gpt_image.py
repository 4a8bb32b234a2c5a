# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: Barewright contributors
"""A fresh GUID partition table in an image file (UEFI specification 2.10, chapter 5).

Written here instead of by sgdisk, which takes every file for a disk of 512-byte sectors.
"""

from __future__ import annotations

import binascii
import dataclasses
import struct
import uuid
from pathlib import Path

ESP_TYPE = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
BASIC_DATA_TYPE = uuid.UUID("ebd0a0a2-b9e5-4433-87c0-68b6b72699c7")
LINUX_ROOT_X86_64_TYPE = uuid.UUID("4f68bce3-e8cd-4db1-96e7-fbcaf984b709")

LEGACY_BIOS_BOOTABLE = 1 << 2
"""Attribute by which the boot code of syslinux finds its partition."""

ENTRY_COUNT = 128
ENTRY_BYTES = 128
HEADER_BYTES = 92
BOOT_CODE_BYTES = 440


@dataclasses.dataclass(frozen=True)
class Partition:
    """``start_bytes`` and ``size_bytes`` are multiples of the sector size."""

    name: str
    type_guid: uuid.UUID
    unique_guid: uuid.UUID
    start_bytes: int
    size_bytes: int
    attributes: int = 0


def table_bytes(sector_bytes: int) -> int:
    """What one copy of the entries takes: a whole number of sectors."""
    return -(-ENTRY_COUNT * ENTRY_BYTES // sector_bytes) * sector_bytes


def write_table(
    image: Path,
    partitions: list[Partition],
    *,
    sector_bytes: int,
    disk_guid: uuid.UUID,
    boot_code: bytes,
) -> None:
    """Write protective MBR with ``boot_code`` and both copies of the table into ``image``.

    The size of the file is the size of the disk. Raises ValueError where a partition does not fit.
    """
    size_bytes = image.stat().st_size
    sectors, rest = divmod(size_bytes, sector_bytes)
    if rest:
        raise ValueError(f"{size_bytes} bytes are no whole number of {sector_bytes}-byte sectors")
    if len(boot_code) > BOOT_CODE_BYTES:
        raise ValueError(f"boot code of {len(boot_code)} bytes, room for {BOOT_CODE_BYTES}")
    table_sectors = table_bytes(sector_bytes) // sector_bytes
    first_usable, last_usable = 2 + table_sectors, sectors - 2 - table_sectors
    entries = b"".join(
        _entry(partition, sector_bytes, first_usable, last_usable) for partition in partitions
    ).ljust(table_bytes(sector_bytes), b"\0")

    def header(own: int, other: int, entries_lba: int) -> bytes:
        return _header(own, other, entries_lba, first_usable, last_usable, disk_guid, entries)

    with image.open("r+b") as stream:
        stream.write(_protective_mbr(boot_code, sectors))
        for lba, content in (
            (1, header(1, sectors - 1, 2)),
            (2, entries),
            (sectors - 1 - table_sectors, entries),
            (sectors - 1, header(sectors - 1, 1, sectors - 1 - table_sectors)),
        ):
            stream.seek(lba * sector_bytes)
            stream.write(content)


def _entry(partition: Partition, sector_bytes: int, first_usable: int, last_usable: int) -> bytes:
    first, rest = divmod(partition.start_bytes, sector_bytes)
    count, size_rest = divmod(partition.size_bytes, sector_bytes)
    last = first + count - 1
    if rest or size_rest or first < first_usable or last > last_usable:
        raise ValueError(f"partition {partition.name} does not fit into the disk")
    return struct.pack(
        "<16s16sQQQ72s",
        partition.type_guid.bytes_le,
        partition.unique_guid.bytes_le,
        first,
        last,
        partition.attributes,
        partition.name.encode("utf-16-le"),
    )


def _header(
    own: int,
    other: int,
    entries_lba: int,
    first_usable: int,
    last_usable: int,
    disk_guid: uuid.UUID,
    entries: bytes,
) -> bytes:
    def packed(checksum: int) -> bytes:
        return struct.pack(
            "<8sIIIIQQQQ16sQIII",
            b"EFI PART",
            0x00010000,
            HEADER_BYTES,
            checksum,
            0,
            own,
            other,
            first_usable,
            last_usable,
            disk_guid.bytes_le,
            entries_lba,
            ENTRY_COUNT,
            ENTRY_BYTES,
            binascii.crc32(entries[: ENTRY_COUNT * ENTRY_BYTES]),
        )

    return packed(binascii.crc32(packed(0)))


def _protective_mbr(boot_code: bytes, sectors: int) -> bytes:
    # Addresses in cylinders, heads and sectors as the specification gives them for this entry.
    entry = struct.pack(
        "<B3sB3sII", 0, b"\x00\x02\x00", 0xEE, b"\xff\xff\xff", 1, min(sectors - 1, 0xFFFFFFFF)
    )
    return boot_code.ljust(446, b"\0") + entry.ljust(64, b"\0") + b"\x55\xaa"
