# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ansible_collections.barewright.metal.plugins.module_utils.bmc import ipmi, redfish, registry
from ansible_collections.barewright.metal.plugins.module_utils.bmc.registry import (
    DRIVERS,
    DriverRow,
    driver_for,
)
from ansible_collections.barewright.metal.plugins.module_utils.bmc.target import Target
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault

OPERATIONS = "ansible_collections.barewright.metal.plugins.module_utils.bmc.operations"


def target(**drivers: str) -> Target:
    bound = {"power": "redfish", "boot": "redfish", "inspect": "redfish", **drivers}
    return Target("bmc-1", "admin", "secret", {"redfish": 443, "ipmi": 623}, bound)


def test_each_concern_has_the_driver_that_the_node_binds() -> None:
    assert driver_for(target(power="ipmi"), "power") == "ipmi"
    assert driver_for(target(power="ipmi"), "inspect") == "redfish"


def test_an_unknown_driver_is_a_fault_that_lists_the_known_ones() -> None:
    with pytest.raises(Fault) as caught:
        driver_for(target(power="idrac"), "power")
    assert caught.value.code == "DRIVER_UNKNOWN"
    assert "ipmi, redfish" in caught.value.message


def test_a_concern_that_the_driver_does_not_serve_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    smart_plug = DriverRow(frozenset({"power"}), "plug", DRIVERS["ipmi"].load)
    monkeypatch.setitem(DRIVERS, "smart_plug", smart_plug)
    with pytest.raises(Fault) as caught:
        driver_for(target(inspect="smart_plug"), "inspect")
    assert caught.value.code == "CONCERN_NOT_SUPPORTED"
    assert "serves power" in caught.value.found
    assert "redfish" in caught.value.cure


@pytest.mark.parametrize(("module", "package"), [(redfish, "sushy"), (ipmi, "pyghmi")])
def test_a_missing_library_is_named_with_its_interpreter(
    module: Any, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIBRARY_ERROR", f"No module named {package!r}")
    name = module.__name__.rsplit(".", 1)[-1]
    with pytest.raises(Fault) as caught:
        registry.DRIVERS[name].load()
    assert caught.value.code == "LIBRARY_MISSING"
    assert caught.value.details == {"package": package, "interpreter": sys.executable}
    assert f"pip install {package}" in caught.value.cure


def test_libraries_are_loaded_only_when_a_task_needs_them() -> None:
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}; import {OPERATIONS};"
        "print([name for name in ('sushy', 'requests', 'pyghmi') if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "[]\n"
