# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading a disk back, because no erase command is believed.

Before an erase, a mark is planted at the start of every region that will be read afterwards. So
a command that did nothing is found out even on a disk that was empty, and for commands that
leave an unknown pattern a region counts as erased only when nothing of its mark survived.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from .medium import CHUNK_BYTES, Advance, Medium
from .reasons import DiskRefused
from .regions import Region

_MARK_BYTES = 4096


class Verdict(NamedTuple):
    """What a read-back found. ``found`` names the pattern, ``problem`` is empty when erased."""

    bytes_read: int
    found: str
    problem: str

    @property
    def passed(self) -> bool:
        """Whether the disk may be called erased."""
        return not self.problem


def mark(seed: str, region: Region, sector_bytes: int) -> bytes:
    """The mark of a region: text-like noise in which no two sectors are equal."""
    length = min(region.length, max(_MARK_BYTES, sector_bytes))
    return hashlib.shake_256(f"barewright mark {seed} {region.offset}".encode()).digest(length)


def plant_marks(medium: Medium, regions: Sequence[Region], sector_bytes: int, seed: str) -> None:
    """Write the mark of every region, and make it reach the medium."""
    for region in regions:
        medium.write(region.offset, mark(seed, region, sector_bytes))
    medium.flush()


def read_back(
    medium: Medium,
    regions: Sequence[Region],
    sector_bytes: int,
    *,
    leaves: str,
    seed: str | None = None,
    advance: Advance | None = None,
) -> Verdict:
    """Judge the regions after an erase.

    ``leaves`` "zeroes": every byte must be zero. "constant": every byte must be the same, all over
    the disk. "unknown": a region may hold anything but a sector of its mark. ``seed`` is the one
    that the marks were planted with, None when there are none.
    """
    patterns: set[int] = set()
    changed = bytes_read = 0
    for region in regions:
        for offset in range(region.offset, region.end, CHUNK_BYTES):
            content = medium.read(offset, min(CHUNK_BYTES, region.end - offset))
            bytes_read += len(content)
            if advance:
                advance(bytes_read)
            if content.count(content[0]) == len(content):
                patterns.add(content[0])
                continue
            if offset == region.offset and _survives(content, region, sector_bytes, seed):
                return Verdict(bytes_read, "data", _at("what was there before still is", offset))
            if leaves != "unknown":
                return Verdict(bytes_read, "data", _at("data is left", offset))
            changed += 1
    if leaves == "zeroes" and patterns - {0}:
        return Verdict(bytes_read, _pattern_words(patterns), "a region does not read as zeroes")
    if leaves == "constant" and len(patterns) > 1:
        return Verdict(bytes_read, "data", "regions hold different patterns")
    if changed:
        return Verdict(bytes_read, "nothing of what was there before", "")
    return Verdict(bytes_read, _pattern_words(patterns), "")


def verified(
    mode: str, seed: str | None, regions: Sequence[Region], verdict: Verdict
) -> dict[str, Any]:
    """The verification's row of the evidence: ``{mode, seed, regions, regions_count, bytes_read,
    found, result: passed|failed}``.

    A full read-back names the whole disk as one region.
    """
    listed = [[region.offset, region.length] for region in regions]
    if mode == "full" and listed:
        listed = [[0, regions[-1].end]]
    return {
        "mode": mode,
        "seed": seed,
        "regions": listed,
        "regions_count": len(regions),
        "bytes_read": verdict.bytes_read,
        "found": verdict.found,
        "result": "passed" if verdict.passed else "failed",
    }


def require_passed(verdict: Verdict) -> None:
    """Raise ``DiskRefused`` NOT_VERIFIED unless the verdict is good."""
    if not verdict.passed:
        raise DiskRefused("NOT_VERIFIED", verdict.problem)


def _survives(content: bytes, region: Region, sector_bytes: int, seed: str | None) -> bool:
    if seed is None:
        return False
    planted = mark(seed, region, sector_bytes)
    return any(
        content[start : start + sector_bytes] == planted[start : start + sector_bytes]
        for start in range(0, len(planted), sector_bytes)
    )


def _at(words: str, offset: int) -> str:
    return f"{words} in the region at byte {offset}"


def _pattern_words(patterns: set[int]) -> str:
    if patterns == {0}:
        return "zeroes"
    return "the constant " + ", ".join(f"0x{value:02x}" for value in sorted(patterns))
