# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import hashlib
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils.disks import Partition
from ansible_collections.barewright.metal.plugins.module_utils.wipe import regions
from ansible_collections.barewright.metal.plugins.module_utils.wipe.medium import Medium
from ansible_collections.barewright.metal.plugins.module_utils.wipe.regions import (
    MIB,
    Region,
    TableHeader,
    full_regions,
    merge,
    metadata_regions,
    sample_regions,
)

GIB = 1 << 30

sizes = st.integers(1, 1 << 40).map(lambda sectors: sectors * 4096)


@given(sizes, st.sampled_from([512, 4096]), st.text(max_size=8))
def test_samples_lie_on_the_disk_in_whole_sectors(size, sector, seed):
    found = sample_regions(size, sector, seed)
    for region in found:
        assert region.length > 0
        assert region.offset % sector == region.length % sector == 0
        assert 0 <= region.offset <= region.end <= size
    assert found[0].offset == 0
    assert found[-1].end == size


@given(st.integers(1, 1 << 20).map(lambda gib: gib * GIB), st.text(max_size=8))
def test_every_subsection_is_looked_at_in_two_places_that_do_not_overlap(size, seed):
    found = sample_regions(size, 512, seed)[1:-1]
    halves = len(found)
    assert 128 <= halves <= 1000
    for number, region in enumerate(found):
        assert size * number // halves <= region.offset
        assert region.end <= size * (number + 1) // halves


def test_the_same_seed_finds_the_same_places_and_another_one_others():
    assert sample_regions(GIB, 512, "a") == sample_regions(GIB, 512, "a")
    assert sample_regions(GIB, 512, "a") != sample_regions(GIB, 512, "b")


def test_the_places_are_those_that_the_rule_names():
    # recomputed here from the words of sample_regions, so that the rule cannot change silently
    draw = int.from_bytes(hashlib.sha256(b"seed:3").digest()[:8], "big")
    start, last = 3 * GIB // 128 // 4096, (4 * GIB // 128 - 65536) // 4096
    assert sample_regions(GIB, 512, "seed")[1 + 3] == Region(
        (start + draw % (last - start + 1)) * 4096, 65536
    )


@given(st.integers(1, 4096).map(lambda sectors: sectors * 512))
def test_a_small_disk_is_read_in_full(size):
    found = sample_regions(size, 512, "seed")
    assert merge(found, size, 512) == [Region(0, size)]


@given(
    st.lists(st.builds(Region, st.integers(-5000, 90000), st.integers(0, 20000)), max_size=20),
    st.sampled_from([512, 4096]),
)
def test_merging_covers_the_same_bytes_once(found, alignment):
    size = 16 * 4096
    merged = merge(found, size, alignment)
    wanted = {
        sector
        for region in found
        for sector in range(max(0, region.offset) // 512, -(-min(size, region.end) // 512))
        if region.length > 0
    }
    covered = [
        sector for region in merged for sector in range(region.offset // 512, region.end // 512)
    ]
    assert wanted <= set(covered)
    assert len(covered) == len(set(covered))
    assert all(region.offset % alignment == 0 for region in merged)


@given(st.integers(0, 1 << 24), st.integers(1 << 12, 1 << 20))
def test_full_regions_are_the_disk(size, step):
    found = full_regions(size, step)
    assert sum(region.length for region in found) == size
    assert all(region.length <= step for region in found)


@given(st.binary(max_size=600))
def test_any_header_is_parsed(data):
    for header in (TableHeader.parse(data), TableHeader.parse(b"EFI PART" + data)):
        if header:
            assert header.entry_count * header.entry_bytes <= MIB or header.entry_count == 0


def test_a_damaged_header_does_not_stop_the_wipe(make_file_disk):
    disk = make_file_disk(32 * MIB)
    header = bytearray(512)
    header[:8] = b"EFI PART"
    struct.pack_into("<Q", header, 32, 1 << 63)
    struct.pack_into("<QII", header, 72, 1 << 60, 1 << 31, 128)
    with open(disk.path, "r+b") as stream:
        stream.seek(512)
        stream.write(header)
    with Medium(disk) as medium:
        found = metadata_regions(disk, medium, [])
    assert [region.offset for region in found] == [0, 27 * MIB]


def test_borders_of_partitions_and_signatures_are_cleared(make_file_disk):
    disk = make_file_disk(
        64 * MIB,
        partitions=(Partition("disk1", "/dev/disk1", 20 * MIB, 10 * MIB),),
    )
    with Medium(disk) as medium:
        found = metadata_regions(disk, medium, [40 * MIB + 100])
    for offset in (20 * MIB - 512, 20 * MIB, 30 * MIB - 512, 30 * MIB, 40 * MIB + 100, 0):
        assert any(region.offset <= offset < region.end for region in found), offset
    assert not any(region.offset <= 25 * MIB < region.end for region in found)


def test_signatures_in_partitions_count_from_the_start_of_the_disk():
    # the form of util-linux 2.38
    output = json.dumps(
        {
            "signatures": [
                {"device": "sda", "offset": "0x1fe", "type": "PMBR", "uuid": None, "label": None},
                {"device": "sda1", "offset": "0x438", "type": "ext4", "uuid": "x", "label": None},
            ]
        }
    ).encode()
    assert regions.parse_signatures(output, {"sda": 0, "sda1": MIB}) == [
        ("PMBR", 0x1FE),
        ("ext4", MIB + 0x438),
    ]


@pytest.mark.parametrize("output", [b"", b"\n", b'{"signatures": []}', b'{"signatures": null}'])
def test_a_blank_disk_has_no_signatures(output):
    assert regions.parse_signatures(output, {}) == []
