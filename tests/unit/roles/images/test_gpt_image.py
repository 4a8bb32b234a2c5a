# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
from gpt_image import ESP_TYPE, LEGACY_BIOS_BOOTABLE, Partition, write_table
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils import gpt

MIB = 1 << 20
DISK = uuid.UUID("11111111-2222-3333-4444-555555555555")


def _image(folder: Path, size_mib: int, partitions: list[Partition], sector_bytes: int) -> Path:
    image = folder / "image.raw"
    with image.open("wb") as stream:
        stream.truncate(size_mib * MIB)
    write_table(image, partitions, sector_bytes=sector_bytes, disk_guid=DISK, boot_code=b"\xeb\xfe")
    return image


def _partition(name: str, start_mib: int, size_mib: int, attributes: int = 0) -> Partition:
    return Partition(name, ESP_TYPE, uuid.uuid4(), start_mib * MIB, size_mib * MIB, attributes)


@given(
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=8),
    sector_bytes=st.sampled_from([512, 4096]),
)
def test_both_copies_say_the_same_on_disks_of_both_sector_sizes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], sector_bytes: int
) -> None:
    starts = [1 + sum(sizes[:index]) for index in range(len(sizes))]
    partitions = [
        _partition(f"p{index}", start, size, LEGACY_BIOS_BOOTABLE)
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    total_mib = sum(sizes) + 2
    image = _image(tmp_path_factory.mktemp("gpt"), total_mib, partitions, sector_bytes)

    def read(offset: int, size: int) -> bytes:
        with image.open("rb") as stream:
            stream.seek(offset)
            return stream.read(size)

    last = total_mib * MIB // sector_bytes - 1
    for lba in (1, last):
        table = gpt.parse(read, sector_bytes, lba)
        assert [
            (
                each.name,
                each.first_lba * sector_bytes,
                each.sectors * sector_bytes,
                each.unique_guid,
                each.attributes,
            )
            for each in table.partitions
        ] == [
            (p.name, p.start_bytes, p.size_bytes, p.unique_guid, p.attributes) for p in partitions
        ]
    assert gpt.has_mbr(read(0, 512))
    assert read(0, 2) == b"\xeb\xfe"


def test_another_implementation_finds_nothing_wrong(tmp_path: Path) -> None:
    sgdisk = shutil.which("sgdisk", path="/usr/sbin:/sbin:/usr/bin")
    if sgdisk is None:
        pytest.skip("sgdisk is not installed")
    image = _image(tmp_path, 64, [_partition("esp", 1, 40), _partition("root", 41, 22)], 512)
    verdict = subprocess.run([sgdisk, "-v", image], capture_output=True, text=True, check=True)
    assert "No problems found" in verdict.stdout


@pytest.mark.parametrize(("start_mib", "size_mib"), [(0, 1), (1, 64), (60, 10)])
def test_a_partition_that_does_not_fit_is_refused(
    tmp_path: Path, start_mib: int, size_mib: int
) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        _image(tmp_path, 64, [_partition("p", start_mib, size_mib)], 512)
