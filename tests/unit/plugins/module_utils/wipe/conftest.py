# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Disks that the tests may erase: plain files, and loop devices where root may make them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.barewright.metal.plugins.module_utils.disks import Disk, read_disk
from ansible_collections.barewright.metal.plugins.module_utils.wipe.tools import SEARCH_PATH

MIB = 1 << 20

MakeDisk = Callable[..., Disk]


def file_disk(path: Path, sector_bytes: int = 512, **fields: object) -> Disk:
    """A plain file that stands for a disk."""
    disk = Disk(
        name=path.name,
        path=str(path),
        bus=None,
        size_bytes=path.stat().st_size,
        logical_sector_bytes=sector_bytes,
        physical_sector_bytes=sector_bytes,
        read_only=False,
    )
    return replace(disk, **fields)  # type: ignore[arg-type]  # any field


def fill_with_data(path: Path, size_bytes: int) -> None:
    """Data in which no two sectors are equal, and nothing is zero for long."""
    block = os.urandom(MIB)
    with path.open("wb") as stream:
        for number in range(-(-size_bytes // MIB)):
            stream.write(number.to_bytes(8, "big") + block[8:])
        stream.truncate(size_bytes)


@pytest.fixture(autouse=True)
def system_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find sgdisk, mke2fs and losetup as an ordinary user, too."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{SEARCH_PATH}")


@pytest.fixture
def make_file_disk(tmp_path: Path) -> MakeDisk:
    """``make(size_bytes, sector_bytes=512, name="disk", **fields)``: a file full of data."""

    def make(
        size_bytes: int, sector_bytes: int = 512, name: str = "disk", **fields: object
    ) -> Disk:
        path = tmp_path / name
        fill_with_data(path, size_bytes)
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
        except OSError:
            pytest.skip(f"the file system of {tmp_path} has no O_DIRECT")
        return file_disk(path, sector_bytes, **fields)

    return make


@pytest.fixture
def make_loop_disk(tmp_path: Path) -> Iterator[MakeDisk]:
    """``make(size_bytes, sector_bytes=512, read_only=False, name="loop")``: a loop device."""
    if os.geteuid() != 0 or shutil.which("losetup") is None:
        pytest.skip("loop devices need root and losetup")
    attached: list[str] = []

    def make(
        size_bytes: int, sector_bytes: int = 512, *, read_only: bool = False, name: str = "loop"
    ) -> Disk:
        path = tmp_path / f"{name}.img"
        fill_with_data(path, size_bytes)
        command = ["losetup", "--find", "--show", f"--sector-size={sector_bytes}", str(path)]
        if read_only:
            command.insert(1, "--read-only")
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        device = outcome.stdout.strip()
        if outcome.returncode != 0 or not stat.S_ISBLK(os.stat(device).st_mode):
            pytest.skip(f"no loop device to be had: {outcome.stderr.strip()}")
        attached.append(device)
        return read_disk(device.removeprefix("/dev/"))

    yield make
    for device in attached:
        subprocess.run(["losetup", "--detach", device], check=True)
