# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import pytest

from ansible_collections.barewright.metal.plugins.module_utils.wipe.medium import Medium
from ansible_collections.barewright.metal.plugins.module_utils.wipe.reasons import DiskRefused
from ansible_collections.barewright.metal.plugins.module_utils.wipe.regions import (
    MIB,
    Region,
    sample_regions,
)
from ansible_collections.barewright.metal.plugins.module_utils.wipe.verify import (
    mark,
    plant_marks,
    read_back,
)

SEED = "seed"


@pytest.fixture
def planted(make_file_disk):
    """An open disk with marks, and the regions that they are in."""
    disk = make_file_disk(64 * MIB)
    regions = sample_regions(disk.size_bytes, 512, SEED)
    with Medium(disk) as medium:
        plant_marks(medium, regions, 512, SEED)
        yield medium, regions


def fill(medium, value):
    for offset in range(0, 64 * MIB, MIB):
        medium.write(offset, bytes([value]) * MIB)


@pytest.mark.parametrize("leaves", ["zeroes", "constant", "unknown"])
def test_marks_that_survive_are_always_found(planted, leaves):
    medium, regions = planted
    verdict = read_back(medium, regions, 512, leaves=leaves, seed=SEED)
    assert not verdict.passed
    assert "before" in verdict.problem


def test_one_sector_of_one_mark_is_enough_to_fail(planted):
    medium, regions = planted
    fill(medium, 0)
    region = regions[7]
    kept = mark(SEED, region, 512)[1024:1536]
    # noise around it, so that nothing but the mark gives it away
    medium.write(region.offset, bytes(range(256)) * 4 + kept + bytes(range(256)) * 2)
    verdict = read_back(medium, regions, 512, leaves="unknown", seed=SEED)
    assert not verdict.passed


@pytest.mark.parametrize(
    ("value", "leaves", "passed"),
    [
        (0x00, "zeroes", True),
        (0xFF, "zeroes", False),
        (0xFF, "constant", True),
        (0xFF, "unknown", True),
    ],
)
def test_the_pattern_must_be_the_one_that_the_method_leaves(planted, value, leaves, passed):
    medium, regions = planted
    fill(medium, value)
    assert read_back(medium, regions, 512, leaves=leaves, seed=SEED).passed is passed


def test_two_patterns_are_no_pattern(planted):
    medium, regions = planted
    fill(medium, 0)
    for region in regions[10:20]:
        medium.write(region.offset, b"\xff" * region.length)
    assert not read_back(medium, regions, 512, leaves="constant", seed=SEED).passed


def test_no_two_sectors_of_a_mark_are_equal_and_no_two_marks():
    sectors = [
        mark(SEED, Region(offset, 65536), 512)[start : start + 512]
        for offset in (0, 4096, 1 << 40)
        for start in range(0, 4096, 512)
    ]
    assert len(set(sectors)) == 24


def test_a_disk_that_ends_early_is_unreadable_there(make_file_disk):
    disk = make_file_disk(8 * MIB)
    with Medium(disk, writable=False) as medium, pytest.raises(DiskRefused) as caught:
        read_back(medium, [Region(8 * MIB - 4096, 8192)], 512, leaves="zeroes")
    assert caught.value.code == "UNREADABLE"


def test_a_disk_that_is_not_there_is_unreadable(make_file_disk, tmp_path):
    disk = make_file_disk(8 * MIB)
    (tmp_path / "disk").unlink()
    with pytest.raises(DiskRefused) as caught:
        Medium(disk)
    assert caught.value.code == "UNREADABLE"
