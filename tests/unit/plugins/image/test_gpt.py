# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils import gpt

MIB = 1 << 20


def reader(content):
    return lambda offset, size: bytes(content[offset : offset + size])


def empty(size_bytes, sector_bytes):
    table = gpt.Gpt(
        sector_bytes=sector_bytes,
        disk_guid=uuid.uuid4().bytes_le,
        first_usable_lba=2 + 16384 // sector_bytes,
        last_usable_lba=0,
        alternate_lba=0,
        entries_lba=2,
        entry_bytes=128,
        entries=bytearray(128 * 128),
    )
    table.relocate(size_bytes // sector_bytes)
    return table


def laid_out(table, size_bytes):
    disk = bytearray(size_bytes)
    for copy in (table.primary(), table.backup()):
        for lba, content in copy.items():
            start = lba * table.sector_bytes
            disk[start : start + len(content)] = content
    return disk


SIZES = st.lists(st.integers(min_value=1, max_value=2 * MIB), max_size=6)
SECTORS = st.sampled_from([512, 4096])


@given(SIZES, SECTORS)
def test_both_copies_say_what_was_added(sizes, sector_bytes):
    table = empty(32 * MIB, sector_bytes)
    added = [table.add(size, gpt.BASIC_DATA_GUID, f"part {n}") for n, size in enumerate(sizes)]
    disk = laid_out(table, 32 * MIB)
    for lba in (1, 32 * MIB // sector_bytes - 1):
        assert gpt.parse(reader(disk), sector_bytes, lba).partitions == added
    for partition, size in zip(added, sizes, strict=True):
        assert partition.first_lba * sector_bytes % MIB == 0
        assert size <= partition.sectors * sector_bytes < size + sector_bytes


@given(SIZES, SECTORS, st.integers(min_value=0, max_value=40))
def test_a_moved_table_ends_with_the_disk(sizes, sector_bytes, more_mib):
    table = empty(16 * MIB, sector_bytes)
    for size in sizes:
        table.add(size, gpt.BASIC_DATA_GUID, "x")
    bigger = (16 + more_mib) * MIB
    table.relocate(bigger // sector_bytes)
    backup = gpt.parse(reader(laid_out(table, bigger)), sector_bytes, bigger // sector_bytes - 1)
    assert backup.partitions == table.partitions
    assert backup.last_usable_lba == bigger // sector_bytes - 2 - backup.entries_sectors


def test_a_table_does_not_move_below_a_partition():
    table = empty(16 * MIB, 512)
    table.add(4 * MIB, gpt.BASIC_DATA_GUID, "last")
    with pytest.raises(gpt.GptError, match="partition 1 ends at sector"):
        table.relocate(12 * MIB // 512)


def test_no_gap_and_no_entry_are_said():
    table = empty(8 * MIB, 512)
    with pytest.raises(gpt.GptError, match="no gap"):
        table.add(9 * MIB, gpt.BASIC_DATA_GUID, "large")
    table.entries = bytearray(128)
    table.add(MIB, gpt.BASIC_DATA_GUID, "one")
    with pytest.raises(gpt.GptError, match="all 1 entries"):
        table.add(MIB, gpt.BASIC_DATA_GUID, "two")


@settings(max_examples=300)
@given(st.data(), SECTORS)
def test_damage_of_a_header_or_entry_is_noticed(data, sector_bytes):
    table = empty(16 * MIB, sector_bytes)
    table.add(MIB, gpt.BASIC_DATA_GUID, "x")
    disk = laid_out(table, 16 * MIB)
    position = data.draw(
        st.one_of(
            st.integers(sector_bytes, sector_bytes + 91),
            st.integers(2 * sector_bytes, 2 * sector_bytes + 128 * 128 - 1),
        )
    )
    disk[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(gpt.GptError):
        gpt.parse(reader(disk), sector_bytes)


@given(st.binary(max_size=3 * 4096), SECTORS)
def test_noise_is_no_table(noise, sector_bytes):
    with pytest.raises(gpt.GptError):
        gpt.parse(reader(noise), sector_bytes)
    assert gpt.dos_partitions(noise.ljust(512, b"\0")[:510] + b"\0\0", sector_bytes) == []


@given(st.binary(min_size=92, max_size=92), SECTORS)
def test_a_header_with_a_right_crc_and_wild_fields_is_refused_or_read(fields, sector_bytes):
    import binascii
    import struct

    header = bytearray(fields)
    header[:8] = gpt.SIGNATURE
    header[12:16] = struct.pack("<I", 92)
    header[16:20] = bytes(4)
    header[24:32] = struct.pack("<Q", 1)
    header[16:20] = struct.pack("<I", binascii.crc32(bytes(header)))
    disk = bytes(sector_bytes) + bytes(header).ljust(sector_bytes, b"\0") + bytes(64 * 1024)
    try:
        table = gpt.parse(reader(disk), sector_bytes)
    except gpt.GptError:
        return
    table.check()


def test_overlapping_partitions_are_refused():
    table = empty(16 * MIB, 512)
    table.add(MIB, gpt.BASIC_DATA_GUID, "one")
    table.entries[128:256] = table.entries[:128]
    with pytest.raises(gpt.GptError, match="begins where it must not"):
        gpt.parse(reader(laid_out(table, 16 * MIB)), 512)


def test_the_protective_entry_covers_the_disk_and_a_hybrid_mbr_is_left_alone():
    protective = bytearray(512)
    protective[450], protective[510:512] = 0xEE, b"\x55\xaa"
    assert int.from_bytes(gpt.protect(bytes(protective), 1000)[458:462], "little") == 999
    assert gpt.protect(bytes(protective), 1 << 40)[458:462] == b"\xff" * 4
    protective[466] = 0x0C
    assert gpt.protect(bytes(protective), 1000) == bytes(protective)


def test_a_table_for_the_other_sector_size_is_recognised():
    for sector_bytes in gpt.SECTOR_SIZES:
        disk = laid_out(empty(8 * MIB, sector_bytes), 8 * MIB)
        assert gpt.sector_bytes_of(bytes(disk[: 1 << 20])) == sector_bytes
    assert gpt.sector_bytes_of(bytes(1 << 20)) is None
