# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.barewright.metal.plugins.action.bmc_boot_device import (
    ActionModule as BootDevice,
)
from ansible_collections.barewright.metal.plugins.action.bmc_info import ActionModule as Info
from ansible_collections.barewright.metal.plugins.action.bmc_power import ActionModule as Power
from ansible_collections.barewright.metal.plugins.module_utils.bmc import operations
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault


def action(
    kind: type[Any] = Power, transport: str = "local", become: bool = False, async_val: int = 0
) -> Any:
    """An action plugin as the executor makes it, as far as it looks at its surroundings."""
    task = SimpleNamespace(
        args={"address": "bmc-1", "username": "admin", "password": "Hidden-1", "state": "on"},
        async_val=async_val,
        check_mode=False,
        diff=False,
        environment=None,
    )
    return kind(
        task,
        SimpleNamespace(transport=transport, _shell=SimpleNamespace(tmpdir=None)),
        SimpleNamespace(become=become),
        None,
        Templar(loader=DataLoader()),
        None,
    )


def test_local_work_is_done_in_process() -> None:
    assert action()._in_process()


@pytest.mark.parametrize(
    "elsewhere", [{"transport": "ssh"}, {"become": True}, {"async_val": 60}], ids=str
)
def test_work_for_another_place_or_user_is_left_to_the_module(
    elsewhere: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = action(**elsewhere)
    handed_over: list[dict[str, Any]] = []

    def execute(**arguments: Any) -> dict[str, Any]:
        handed_over.append(arguments)
        return {"changed": True}

    monkeypatch.setattr(made, "_execute_module", execute)
    assert made.run(task_vars={})["changed"]
    assert handed_over == [{"task_vars": {}, "wrap_async": bool(elsewhere.get("async_val"))}]


def test_each_plugin_does_what_its_module_does() -> None:
    pairs = [
        (Power, operations.run_power, operations.power_argument_spec),
        (BootDevice, operations.run_boot_device, operations.boot_device_argument_spec),
        (Info, operations.run_info, operations.info_argument_spec),
    ]
    for plugin, operation, specification in pairs:
        assert plugin.operation is operation
        assert plugin.argument_spec is specification


def test_a_password_in_a_fault_is_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    def leak(params: dict[str, Any], **_rest: Any) -> None:
        raise Fault("BMC_REFUSED", found=f"no such value: {params['password']}")

    monkeypatch.setattr(Power, "operation", staticmethod(leak))
    result = action().run(task_vars={})
    assert result["failed"]
    assert result["fault"]["code"] == "BMC_REFUSED"
    assert "Hidden-1" not in str(result)
