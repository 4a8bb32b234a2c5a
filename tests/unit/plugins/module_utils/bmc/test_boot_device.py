# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.barewright.metal.plugins.module_utils.bmc import (
    operations,
    patience,
    registry,
)
from ansible_collections.barewright.metal.plugins.module_utils.bmc.interfaces import (
    BootOverride,
    NotYet,
    Unanswered,
)
from ansible_collections.barewright.metal.plugins.module_utils.bmc.operations import (
    run_boot_device,
)
from ansible_collections.barewright.metal.plugins.module_utils.bmc.registry import DriverRow
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.run_channel import local_channel

from .conftest import Chassis


@pytest.fixture
def boot(chassis: Chassis, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Runs ``bmc_boot_device`` against the chassis."""
    row = DriverRow(frozenset({"boot"}), "none", lambda: lambda *_arguments: chassis)
    monkeypatch.setitem(registry.DRIVERS, "chassis", row)
    monkeypatch.setattr(operations, "_READ_BACK_SECONDS", 0.1)
    monkeypatch.setattr(patience, "_FIRST_SECONDS", 0.02)

    def run(check_mode: bool = False, **options: Any) -> dict[str, Any]:
        spec = operations.boot_device_argument_spec()
        params = {
            **{name: each.get("default") for name, each in spec.items()},
            "address": "bmc-1",
            "username": "admin",
            "password": "secret",
            "driver": "chassis",
            "lock_dir": str(tmp_path),
            "timeout_seconds": 5,
            **options,
        }
        channel = local_channel(None, "node-1")
        return run_boot_device(params, check_mode=check_mode, diff=True, channel=channel)

    return run


def test_an_override_is_set_and_read_back(boot: Any, chassis: Chassis) -> None:
    result = boot(device="pxe", mode="uefi")
    assert result["changed"]
    assert result["boot_override"] == {"device": "pxe", "enabled": "once", "mode": "uefi"}
    assert result["diff"]["before"]["device"] == "none"
    assert chassis.forms == ["complete"]


def test_an_override_that_is_there_is_left_alone(boot: Any, chassis: Chassis) -> None:
    boot(device="pxe", mode="uefi")
    assert not boot(device="pxe", mode="uefi")["changed"]
    assert not boot(device="pxe")["changed"]
    assert len(chassis.forms) == 1
    assert boot(device="pxe", persistence="continuous")["changed"]


def test_a_mode_that_is_left_out_is_kept(boot: Any, chassis: Chassis) -> None:
    boot(device="disk")
    assert chassis.override == BootOverride("disk", "once", "uefi")


def test_check_mode_sets_nothing_and_predicts(boot: Any, chassis: Chassis) -> None:
    predicted = boot(device="pxe", check_mode=True)
    assert chassis.forms == []
    real = boot(device="pxe")
    assert predicted.keys() == real.keys()
    assert predicted["boot_override"] == real["boot_override"]
    assert predicted["diff"] == real["diff"]


def test_none_takes_the_override_away(boot: Any, chassis: Chassis) -> None:
    chassis.override = BootOverride("pxe", "continuous", "uefi")
    assert boot(device="none")["boot_override"]["enabled"] == "disabled"
    assert not boot(device="none")["changed"]


def test_the_other_form_is_tried_when_the_first_is_refused(boot: Any, chassis: Chassis) -> None:
    chassis.answers = [Fault("BMC_REFUSED", found="400")]
    assert boot(device="pxe")["payloads"] == ["minimal"]
    assert chassis.forms == ["complete", "minimal"]


def test_the_other_form_is_tried_when_the_first_does_not_last(boot: Any, chassis: Chassis) -> None:
    chassis.keeps["complete"] = False
    assert boot(device="pxe")["payloads"] == ["complete", "minimal"]


def test_an_override_that_is_not_kept_is_a_fault_with_what_was_read(
    boot: Any, chassis: Chassis
) -> None:
    chassis.keeps = {"complete": False, "minimal": False}
    with pytest.raises(Fault) as caught:
        boot(device="pxe")
    assert caught.value.code == "BOOT_OVERRIDE_NOT_KEPT"
    assert caught.value.details["boot_override"]["device"] == "none"


def test_a_machine_in_post_is_waited_for(boot: Any, chassis: Chassis) -> None:
    chassis.answers = [NotYet("POST", 0.1), NotYet("POST", 0.1)]
    assert boot(device="pxe")["changed"]


def test_a_lost_answer_is_decided_by_reading_back(boot: Any, chassis: Chassis) -> None:
    chassis.answers = [Unanswered("lost")]
    assert boot(device="pxe")["boot_override"]["device"] == "pxe"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"device": "cd"}, "BOOT_DEVICE_NOT_OFFERED"),
        ({"device": "pxe", "mode": "bios"}, "BOOT_MODE_NOT_OFFERED"),
    ],
)
def test_what_the_machine_cannot_do_is_refused_before_anything_is_sent(
    boot: Any, chassis: Chassis, options: dict[str, str], code: str
) -> None:
    with pytest.raises(Fault) as caught:
        boot(**options)
    assert caught.value.code == code
    assert caught.value.details["offered"]
    assert chassis.forms == []
