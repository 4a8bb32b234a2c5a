# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Makes the builders' own modules importable, and loads the scripts that images carry."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

ROLES = Path(__file__).resolve().parents[4] / "roles"
sys.path[:0] = [str(ROLES / "ramdisk/files"), str(ROLES / "image_build/files")]


def load_script(name: str, path: Path) -> ModuleType:
    """A script without the ending ``.py`` as a module of its own."""
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    previous, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = previous
    return module


@pytest.fixture
def checkin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The ramdisk's check-in, with its files below ``tmp_path`` and its console in ``said``."""
    module = load_script("checkin", ROLES / "ramdisk/files/rootfs/usr/lib/barewright/checkin")
    said: list[str] = []
    monkeypatch.setattr(module, "RUN", str(tmp_path))
    monkeypatch.setattr(module, "say", said.append)
    monkeypatch.setattr(module, "said", said, raising=False)
    return module


@pytest.fixture
def seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The light image's seed reader, with its own files below ``tmp_path``."""
    module = load_script("seed", ROLES / "image_build/files/light/usr/lib/barewright/seed")
    monkeypatch.setattr(module, "STATE", str(tmp_path / "state"))
    monkeypatch.setattr(module, "WORK", str(tmp_path / "work"))
    return module
