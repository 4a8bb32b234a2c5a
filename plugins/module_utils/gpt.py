# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GUID partition tables, read and written by ourselves (UEFI specification 2.10, chapter 5).

``sgdisk -q`` can write nothing and exit 0, and tools that think in units of 512 bytes miss the
backup table of a 4Kn disk. Here every position is a count of logical sectors, and every table is
checked by both of its CRCs.
"""

from __future__ import annotations

import binascii
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

SIGNATURE = b"EFI PART"
PROTECTIVE_TYPE = 0xEE
BASIC_DATA_GUID = uuid.UUID("ebd0a0a2-b9e5-4433-87c0-68b6b72699c7")
SECTOR_SIZES = (512, 4096)
ALIGNMENT_BYTES = 1 << 20

_HEADER = struct.Struct("<8s4sIIIQQQQ16sQIII")
_ENTRY = struct.Struct("<16s16sQQQ72s")
_ENTRY_SIZES = (128, 256, 512, 1024, 2048, 4096)
_MAX_ENTRIES = 1024

Read = Callable[[int, int], bytes]


class GptError(ValueError):
    """Bytes that carry no valid table; the text says what is wrong with them."""


@dataclass(frozen=True)
class Partition:
    """One used entry; ``last_lba`` is the last sector that belongs to it."""

    number: int
    type_guid: uuid.UUID
    unique_guid: uuid.UUID
    first_lba: int
    last_lba: int
    attributes: int
    name: str

    @property
    def sectors(self) -> int:
        """Length in logical sectors."""
        return self.last_lba - self.first_lba + 1


@dataclass
class Gpt:
    """A table, independent of where its two copies lie. Unknown bytes of entries are kept."""

    sector_bytes: int
    disk_guid: bytes
    first_usable_lba: int
    last_usable_lba: int
    alternate_lba: int
    entries_lba: int
    entry_bytes: int
    entries: bytearray
    revision: bytes = field(default=b"\x00\x00\x01\x00")

    @property
    def entry_count(self) -> int:
        """Number of entries, used or not."""
        return len(self.entries) // self.entry_bytes

    @property
    def entries_sectors(self) -> int:
        """Logical sectors that one copy of the entries takes."""
        return -(-len(self.entries) // self.sector_bytes)

    @property
    def partitions(self) -> list[Partition]:
        """The used entries, by number."""
        found = []
        for index in range(self.entry_count):
            type_guid, unique, first, last, attributes, name = _ENTRY.unpack_from(
                self.entries, index * self.entry_bytes
            )
            if type_guid != bytes(16):
                found.append(
                    Partition(
                        index + 1,
                        uuid.UUID(bytes_le=type_guid),
                        uuid.UUID(bytes_le=unique),
                        first,
                        last,
                        attributes,
                        name.decode("utf-16-le", "replace").split("\0", 1)[0],
                    )
                )
        return found

    def check(self) -> None:
        """Raise GptError when partitions overlap or lie outside the usable sectors."""
        end = self.first_usable_lba
        for partition in sorted(self.partitions, key=lambda each: each.first_lba):
            if partition.first_lba < end or partition.last_lba < partition.first_lba:
                raise GptError(f"partition {partition.number} begins where it must not")
            if partition.last_lba > self.last_usable_lba:
                raise GptError(f"partition {partition.number} ends behind the usable sectors")
            end = partition.last_lba + 1

    def relocate(self, disk_sectors: int) -> None:
        """Make the table describe a disk of ``disk_sectors``, its backup in the last sectors.

        Raises GptError when a partition does not fit.
        """
        backup_entries = disk_sectors - 1 - self.entries_sectors
        last_usable = backup_entries - 1
        for partition in self.partitions:
            if partition.last_lba > last_usable:
                raise GptError(
                    f"partition {partition.number} ends at sector {partition.last_lba}, "
                    f"the disk offers sectors up to {last_usable}"
                )
        self.alternate_lba = disk_sectors - 1
        self.last_usable_lba = last_usable

    def add(self, size_bytes: int, type_guid: uuid.UUID, name: str) -> Partition:
        """Add a partition in the last free place of the disk, aligned to 1 MiB.

        Raises GptError when there is no free entry or no gap of that size.
        """
        sectors = -(-size_bytes // self.sector_bytes)
        first = self._last_gap(sectors)
        numbers = {partition.number for partition in self.partitions}
        free = [n for n in range(1, self.entry_count + 1) if n not in numbers]
        if not free:
            raise GptError(f"all {self.entry_count} entries are used")
        added = Partition(free[0], type_guid, uuid.uuid4(), first, first + sectors - 1, 0, name)
        _ENTRY.pack_into(
            self.entries,
            (added.number - 1) * self.entry_bytes,
            type_guid.bytes_le,
            added.unique_guid.bytes_le,
            added.first_lba,
            added.last_lba,
            0,
            name.encode("utf-16-le")[:72].ljust(72, b"\0"),
        )
        return added

    def _last_gap(self, sectors: int) -> int:
        alignment = ALIGNMENT_BYTES // self.sector_bytes
        end = self.last_usable_lba + 1
        for partition in sorted(self.partitions, key=lambda each: each.first_lba, reverse=True):
            first = (end - sectors) // alignment * alignment
            if first > partition.last_lba:
                return first
            end = partition.first_lba
        first = (end - sectors) // alignment * alignment
        if first >= self.first_usable_lba:
            return first
        raise GptError(f"no gap of {sectors} sectors is free")

    def primary(self) -> dict[int, bytes]:
        """The primary copy: ``{sector: bytes}``, whole sectors."""
        return {
            1: self._header(1, self.alternate_lba, self.entries_lba),
            self.entries_lba: self._padded_entries(),
        }

    def backup(self) -> dict[int, bytes]:
        """The backup copy: ``{sector: bytes}``, whole sectors."""
        entries_lba = self.alternate_lba - self.entries_sectors
        return {
            entries_lba: self._padded_entries(),
            self.alternate_lba: self._header(self.alternate_lba, 1, entries_lba),
        }

    def _padded_entries(self) -> bytes:
        return bytes(self.entries).ljust(self.entries_sectors * self.sector_bytes, b"\0")

    def _header(self, own_lba: int, other_lba: int, entries_lba: int) -> bytes:
        fields = [
            SIGNATURE,
            self.revision,
            _HEADER.size,
            0,
            0,
            own_lba,
            other_lba,
            self.first_usable_lba,
            self.last_usable_lba,
            self.disk_guid,
            entries_lba,
            self.entry_count,
            self.entry_bytes,
            binascii.crc32(self.entries),
        ]
        fields[3] = binascii.crc32(_HEADER.pack(*fields))
        return _HEADER.pack(*fields).ljust(self.sector_bytes, b"\0")


def parse(read: Read, sector_bytes: int, lba: int = 1) -> Gpt:
    """The table whose header is at ``lba``; ``read(offset_bytes, size_bytes)`` gives the bytes.

    Raises GptError. A short answer of ``read`` counts as no table.
    """
    sector = read(lba * sector_bytes, sector_bytes)
    if len(sector) < sector_bytes or not sector.startswith(SIGNATURE):
        raise GptError(f"no GPT header in sector {lba}")
    (
        _signature,
        revision,
        header_bytes,
        header_crc,
        _reserved,
        own_lba,
        other_lba,
        first_usable,
        last_usable,
        disk_guid,
        entries_lba,
        count,
        entry_bytes,
        entries_crc,
    ) = _HEADER.unpack_from(sector)
    if not _HEADER.size <= header_bytes <= sector_bytes:
        raise GptError(f"a header of {header_bytes} bytes")
    blanked = sector[:16] + bytes(4) + sector[20:header_bytes]
    if binascii.crc32(blanked) != header_crc:
        raise GptError("wrong CRC of the header")
    if own_lba != lba:
        raise GptError(f"the header in sector {lba} says it is in sector {own_lba}")
    if entry_bytes not in _ENTRY_SIZES or not 1 <= count <= _MAX_ENTRIES:
        raise GptError(f"{count} entries of {entry_bytes} bytes")
    size = count * entry_bytes
    entries = read(entries_lba * sector_bytes, -(-size // sector_bytes) * sector_bytes)[:size]
    if len(entries) < size or binascii.crc32(entries) != entries_crc:
        raise GptError("wrong CRC of the entries")
    if not first_usable <= last_usable:
        raise GptError("no usable sectors")
    gpt = Gpt(
        sector_bytes=sector_bytes,
        disk_guid=disk_guid,
        first_usable_lba=first_usable,
        last_usable_lba=last_usable,
        alternate_lba=other_lba,
        entries_lba=entries_lba,
        entry_bytes=entry_bytes,
        entries=bytearray(entries),
        revision=revision,
    )
    gpt.check()
    return gpt


def has_mbr(first_sector: bytes) -> bool:
    """Whether sector 0 has a DOS partition table (or the protective one) with a used entry."""
    return first_sector[510:512] == b"\x55\xaa" and any(
        first_sector[offset + 4] for offset in range(446, 510, 16)
    )


def dos_partitions(first_sector: bytes, sector_bytes: int) -> list[tuple[int, int]]:
    """``(offset, size)`` in bytes of the primary partitions in a DOS table; none without one."""
    if not has_mbr(first_sector):
        return []
    found = []
    for offset in range(446, 510, 16):
        first, sectors = struct.unpack_from("<II", first_sector, offset + 8)
        if first_sector[offset + 4] not in (0, PROTECTIVE_TYPE) and sectors:
            found.append((first * sector_bytes, sectors * sector_bytes))
    return found


def protect(first_sector: bytes, disk_sectors: int) -> bytes:
    """``first_sector`` with its protective entry stretched over the disk; boot code is kept.

    A hybrid MBR, with further entries, is left alone: its owner knows what it is for.
    """
    used = [offset for offset in range(446, 510, 16) if first_sector[offset + 4]]
    if len(used) != 1 or first_sector[used[0] + 4] != PROTECTIVE_TYPE:
        return first_sector
    changed = bytearray(first_sector)
    struct.pack_into("<II", changed, used[0] + 8, 1, min(disk_sectors - 1, 0xFFFFFFFF))
    return bytes(changed)


def sector_bytes_of(head: bytes) -> int | None:
    """The logical sector size that the table in an image's first bytes was made for, if any."""
    for sector_bytes in SECTOR_SIZES:
        if head[sector_bytes : sector_bytes + len(SIGNATURE)] == SIGNATURE:
            return sector_bytes
    return None
