# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A tree of files as the kernel shows them. What is built with it is constructed, not recorded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from ansible_collections.barewright.metal.plugins.module_utils.machine_files import MachineFiles

# A busy machine with two cores takes its time now and then; that is no finding.
settings.register_profile("barewright", deadline=None)
settings.load_profile("barewright")


class Tree:
    """Builds ``/sys``, ``/proc`` and ``/run`` below a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def files(self) -> MachineFiles:
        """The tree as the code under test sees it."""
        return MachineFiles(str(self._root))

    def write(self, name: str, content: str | bytes) -> None:
        """A file with its folders."""
        path = self._root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(f"{content}\n")

    def folder(self, name: str) -> None:
        """An empty folder."""
        (self._root / name.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def link(self, name: str, target: str) -> None:
        """A relative link to another name of the tree, as sysfs has them."""
        path = self._root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(self._root / target.lstrip("/"), path.parent))

    def disk(self, name: str, device: str, sectors: int, number: str, **queue: int) -> str:
        """A block device at ``device`` (a folder of ``/sys/devices``); returns its folder."""
        base = f"{device}/block/{name}"
        self.write(f"{base}/size", str(sectors))
        self.write(f"{base}/ro", "0")
        self.write(f"{base}/removable", "0")
        self.write(f"{base}/hidden", "0")
        self.write(f"{base}/dev", number)
        self.folder(f"{base}/holders")
        sizes = {"logical_block_size": 512, "physical_block_size": 4096, "rotational": 0}
        for key, value in {**sizes, **queue}.items():
            self.write(f"{base}/queue/{key}", str(value))
        self.link(f"{base}/device", device)
        self.link(f"/sys/block/{name}", base)
        return base


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """An empty machine."""
    root = tmp_path / "machine"
    root.mkdir()
    return Tree(root)
