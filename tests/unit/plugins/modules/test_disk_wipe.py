# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""What a machine's disk modules promise before they touch a disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.wipe import evidence, methods
from ansible_collections.barewright.metal.plugins.modules import disk_wipe

ROOT = Path(__file__).resolve().parents[4]

PARAMETERS = {
    "level": "clear",
    "scope": "all",
    "method": None,
    "verify": "sampled",
    "operation_id": "op-1",
    "timeout_seconds": 60,
    "work_ended": None,
}


def test_an_installed_system_is_never_wiped(monkeypatch):
    monkeypatch.setattr(disk_wipe, "runs_from_memory", lambda: False)
    with pytest.raises(Fault) as caught:
        disk_wipe.Wipe(PARAMETERS).prepare()
    assert caught.value.code == "NOT_A_RAMDISK"


def test_check_mode_of_an_installed_system_is_refused_too(monkeypatch):
    monkeypatch.setattr(disk_wipe, "runs_from_memory", lambda: False)
    with pytest.raises(Fault):
        disk_wipe.Wipe({**PARAMETERS, "operation_id": None}).plan()


def test_documentation_names_the_methods_of_the_table():
    options = yaml.safe_load(disk_wipe.DOCUMENTATION)["options"]
    assert options["method"]["choices"] == [method.name for method in methods.METHODS]
    assert options["level"]["choices"] == list(methods.LEVELS)


def test_evidence_names_the_version_of_the_collection():
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text())
    assert galaxy["version"] == evidence.TOOL_VERSION
