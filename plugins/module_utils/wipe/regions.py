# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which parts of a disk a quick wipe clears, and which parts of it are read back."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable
from typing import NamedTuple

from ..disks import Disk
from .medium import Medium
from .reasons import DiskRefused
from .tools import Tools

MIB = 1 << 20

# LUKS2 keeps its last secondary header 4 MiB into the device; btrfs, ZFS, md and the partition
# tables stay well below that from either end.
_END_BYTES = 5 * MIB
_BORDER_BYTES = MIB
_SIGNATURE_BYTES = 64 << 10

# Real tables take 16 KiB; a damaged header may claim anything.
_TABLE_BYTES = MIB

_SAMPLE_BYTES = 64 << 10
_ALIGNMENT_BYTES = 4096
_FEWEST_SUBSECTIONS, _MOST_SUBSECTIONS = 64, 500

_WIPEFS_SECONDS = 60.0


class Region(NamedTuple):
    """A part of a disk, in bytes."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset + self.length


class TableHeader(NamedTuple):
    """What a GPT header says about where the table lies, in logical blocks (UEFI 2.10, 5.3.2).

    Unlike ``gpt.parse`` it takes damaged tables, because they have to be cleared all the same.
    """

    alternate: int
    entries: int
    entry_count: int
    entry_bytes: int

    @classmethod
    def parse(cls, header: bytes) -> TableHeader | None:
        """From the first bytes of a header block; None when they are not one."""
        if len(header) < 92 or header[:8] != b"EFI PART":
            return None
        (alternate,) = struct.unpack_from("<Q", header, 32)
        (entries, count, entry_bytes) = struct.unpack_from("<QII", header, 72)
        if not 128 <= entry_bytes <= 4096 or count * entry_bytes > _TABLE_BYTES:
            count = 0
        return cls(alternate, entries, count, entry_bytes)


def merge(regions: Iterable[Region], size_bytes: int, alignment: int) -> list[Region]:
    """The regions clipped to the disk, widened to ``alignment``, overlaps joined, in order."""
    merged: list[Region] = []
    for region in sorted(regions):
        start = max(0, region.offset) // alignment * alignment
        end = min(size_bytes, -(-region.end // alignment) * alignment)
        if end <= start:
            continue
        if merged and start <= merged[-1].end:
            start = merged[-1].offset
            end = max(end, merged.pop().end)
        merged.append(Region(start, end - start))
    return merged


def sample_regions(size_bytes: int, sector_bytes: int, seed: str) -> list[Region]:
    """Where a sampled read-back looks: both ends, and two places in each subsection of the disk.

    The disk is cut into one subsection per GiB, at least 64 and at most 500, each of two halves;
    in every half one place of 64 KiB is chosen by SHA-256 over ``<seed>:<number of the half>``,
    its first eight bytes as a big-endian number, modulo the possible starts. So whoever knows
    seed and size finds the same places. A disk too small for that is read in full.
    """
    subsections = min(max(size_bytes >> 30, _FEWEST_SUBSECTIONS), _MOST_SUBSECTIONS)
    halves = subsections * 2
    alignment = max(_ALIGNMENT_BYTES, sector_bytes)
    if size_bytes < halves * 2 * _SAMPLE_BYTES:
        return full_regions(size_bytes, _SAMPLE_BYTES)
    ends = [Region(0, MIB), Region((size_bytes - MIB) // sector_bytes * sector_bytes, MIB)]
    places = []
    for number in range(halves):
        start = -(-(size_bytes * number // halves) // alignment)
        last = (size_bytes * (number + 1) // halves - _SAMPLE_BYTES) // alignment
        draw = int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:8], "big")
        places.append(Region((start + draw % (last - start + 1)) * alignment, _SAMPLE_BYTES))
    return [ends[0], *places, ends[1]]


def full_regions(size_bytes: int, step_bytes: int) -> list[Region]:
    """The whole disk, in regions of at most ``step_bytes``."""
    return [
        Region(offset, min(step_bytes, size_bytes - offset))
        for offset in range(0, size_bytes, step_bytes)
    ]


def metadata_regions(disk: Disk, medium: Medium, signatures: Iterable[int]) -> list[Region]:
    """What a quick wipe clears.

    Both ends of the disk, the partition tables where their headers say they are, the borders of
    every partition that the kernel or a table knows, and every signature.
    """
    size, sector = disk.size_bytes, disk.logical_sector_bytes
    regions = [Region(0, _END_BYTES), Region(size - _END_BYTES, _END_BYTES)]
    borders: set[int] = set()
    for partition in disk.partitions:
        borders |= {partition.start_bytes, partition.start_bytes + partition.size_bytes}
    # A table written for the other sector size lies at another place; it is a trace as well.
    for block in (512, 4096):
        borders |= _table_borders(medium, size, sector, block)
    regions += [Region(border - _BORDER_BYTES, 2 * _BORDER_BYTES) for border in borders]
    regions += [Region(offset, _SIGNATURE_BYTES) for offset in signatures]
    return merge(regions, size, sector)


def read_signatures(disk: Disk, tools: Tools) -> list[tuple[str, int]]:
    """Type and offset from the start of the disk of everything that libblkid recognises.

    On the disk itself and in its partitions. Raises ``DiskRefused`` when the tool fails, because
    then nobody knows.
    """
    starts = {disk.path: 0} | {part.path: part.start_bytes for part in disk.partitions}
    outcome = tools.run(["wipefs", "--json", "--no-act", *starts], _WIPEFS_SECONDS)
    if not outcome.succeeded:
        raise DiskRefused("UNREADABLE", f"wipefs: {outcome}")
    names = {path.rpartition("/")[2]: start for path, start in starts.items()}
    return parse_signatures(outcome.output, names)


def parse_signatures(output: bytes, starts: dict[str, int]) -> list[tuple[str, int]]:
    """From the output of ``wipefs --json``; ``starts`` maps device names to their offset."""
    if not output.strip():
        return []
    rows = json.loads(output).get("signatures") or []
    return [
        (str(row["type"]), starts.get(str(row["device"]), 0) + int(str(row["offset"]), 16))
        for row in rows
    ]


def _table_borders(medium: Medium, size: int, sector: int, block: int) -> set[int]:
    """Where the GPT that was written for ``block``-sized sectors has its ends and partitions."""
    header = _read_header(medium, size, sector, block)
    if header is None:
        return set()
    borders = {header.alternate * block, header.entries * block}
    table = _read(
        medium, size, sector, header.entries * block, header.entry_count * header.entry_bytes
    )
    for number in range(len(table) // header.entry_bytes):
        kind, first, last = struct.unpack_from("<16s16xQQ", table, number * header.entry_bytes)
        if any(kind):
            borders |= {first * block, (last + 1) * block}
    return {border for border in borders if border <= size}


def _read_header(medium: Medium, size: int, sector: int, block: int) -> TableHeader | None:
    primary = TableHeader.parse(_read(medium, size, sector, block, block))
    return primary or TableHeader.parse(_read(medium, size, sector, size - block, block))


def _read(medium: Medium, size: int, sector: int, offset: int, length: int) -> bytes:
    """Bytes at any offset; nothing when they are not all on the disk."""
    start = offset // sector * sector
    end = -(-(offset + length) // sector) * sector
    if length <= 0 or start < 0 or end > size:
        return b""
    return medium.read(start, end - start)[offset - start :][:length]
