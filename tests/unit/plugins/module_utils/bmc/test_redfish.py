# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.barewright.metal.plugins.module_utils.bmc.interfaces import BootOverride
from ansible_collections.barewright.metal.plugins.module_utils.bmc.lock import BmcLock
from ansible_collections.barewright.metal.plugins.module_utils.bmc.redfish import RedfishDriver
from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault

from .conftest import Answer, Request, ScriptedBmc


class Opener:
    """Opens drivers on the scripted BMC and closes them at the end."""

    def __init__(self, bmc: ScriptedBmc, folder: Path) -> None:
        self._bmc = bmc
        self._folder = folder
        self.drivers: list[RedfishDriver] = []

    def __call__(self, seconds: float = 10, **changes: Any) -> RedfishDriver:
        deadline = Deadline(seconds)
        lock = BmcLock(str(self._folder), "scripted", deadline).__enter__()
        driver = RedfishDriver(self._bmc.target(**changes), deadline, lock)
        self.drivers.append(driver)
        driver.open()
        return driver


@pytest.fixture
def opened(scripted: ScriptedBmc, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(scripted, tmp_path)
    yield opener
    for driver in opener.drivers:
        driver.close()
    assert not scripted.sessions


def test_more_than_one_system_must_be_named(scripted: ScriptedBmc, opened: Opener) -> None:
    members = [{"@odata.id": f"/redfish/v1/Systems/{name}"} for name in ("HGX", "Host")]
    scripted.resources["/redfish/v1/Systems"] = {"Members": members}
    scripted.resources["/redfish/v1/Systems/Host"] = {**scripted.system, "Id": "Host"}
    with pytest.raises(Fault) as caught:
        opened()
    assert caught.value.code == "SYSTEM_AMBIGUOUS"
    assert caught.value.details == {"systems": ["HGX", "Host"]}
    opened.drivers.pop().close()
    with_name = Opener(scripted, opened._folder / "other")
    driver = with_name(system_id="Host")
    assert driver.system == "Host"
    driver.close()


def test_a_system_that_is_not_there_is_a_fault_that_lists_those_that_are(opened: Opener) -> None:
    with pytest.raises(Fault) as caught:
        opened(system_id="node-7")
    assert caught.value.code == "SYSTEM_NOT_FOUND"
    assert "1" in caught.value.found


@pytest.mark.parametrize(
    ("reported", "state"),
    [
        ("On", "on"),
        ("Off", "off"),
        ("PoweringOn", "unknown"),
        ("Paused", "unknown"),
        (None, "unknown"),
        ("", "unknown"),
    ],
)
def test_only_a_clear_answer_is_on_or_off(
    scripted: ScriptedBmc, opened: Opener, reported: str | None, state: str
) -> None:
    scripted.system["PowerState"] = reported
    assert opened().power_state() == state


def test_actions_are_those_that_are_advertised(scripted: ScriptedBmc, opened: Opener) -> None:
    action = scripted.system["Actions"]["#ComputerSystem.Reset"]
    action["ResetType@Redfish.AllowableValues"] = ["ForceOn", "ForceOff", "PushPowerButton"]
    assert opened().power_actions() == {"on": "ForceOn", "force_off": "ForceOff"}


def test_busy_at_login_is_waited_for(scripted: ScriptedBmc, opened: Opener) -> None:
    refusals = [Answer(503, headers={"Retry-After": "0"})] * 2

    def script(request: Request) -> Answer | None:
        return refusals.pop() if refusals and request.path.endswith("/Sessions") else None

    scripted.script = script
    assert opened().power_state() == "off"


def test_busy_until_the_deadline_is_a_fault(scripted: ScriptedBmc, opened: Opener) -> None:
    scripted.script = lambda request: Answer(503) if request.method == "GET" else None
    with pytest.raises(Fault) as caught:
        opened(seconds=1)
    assert caught.value.code == "BMC_BUSY"


def test_device_persistence_and_mode_are_sent_together(
    scripted: ScriptedBmc, opened: Opener
) -> None:
    scripted.script = lambda request: Answer(204) if request.method == "PATCH" else None
    opened().set_boot_override(BootOverride("pxe", "once", "uefi"), "complete")
    assert [each.body for each in scripted.sent("PATCH")] == [
        {
            "Boot": {
                "BootSourceOverrideTarget": "Pxe",
                "BootSourceOverrideEnabled": "Once",
                "BootSourceOverrideMode": "UEFI",
            }
        }
    ]


def test_hpe_gets_the_minimal_form_first_and_no_target_to_clear(
    scripted: ScriptedBmc, opened: Opener
) -> None:
    scripted.system["Manufacturer"] = "HPE"
    scripted.script = lambda request: Answer(204) if request.method == "PATCH" else None
    driver = opened()
    assert driver.boot_forms() == ("minimal", "complete")
    driver.set_boot_override(BootOverride("disk", "once", "uefi"), "minimal")
    driver.set_boot_override(BootOverride("none", "disabled", "uefi"), "minimal")
    first, second = (each.body["Boot"] for each in scripted.sent("PATCH"))
    assert first == {"BootSourceOverrideTarget": "Hdd", "BootSourceOverrideEnabled": "Once"}
    assert second == {"BootSourceOverrideEnabled": "Disabled"}


def test_settings_go_where_the_resource_says(scripted: ScriptedBmc, opened: Opener) -> None:
    settings = "/redfish/v1/Systems/1/SD"
    scripted.system["@Redfish.Settings"] = {"SettingsObject": {"@odata.id": settings}}
    keys = ("BootSourceOverrideTarget", "BootSourceOverrideEnabled", "BootSourceOverrideMode")
    scripted.resources[settings] = {"Id": "SD", "Boot": dict.fromkeys(keys, "None")}
    scripted.script = lambda request: Answer(204) if request.method == "PATCH" else None
    opened().set_boot_override(BootOverride("pxe", "once", "uefi"), "complete")
    assert [each.path for each in scripted.sent("PATCH")] == [settings]


def test_a_mode_that_is_not_advertised_is_not_refused(
    scripted: ScriptedBmc, opened: Opener
) -> None:
    driver = opened()
    assert driver.boot_modes() == ()
    scripted.system["Boot"]["BootSourceOverrideMode@Redfish.AllowableValues"] = ["UEFI", "Legacy"]
    scripted.script = lambda request: Answer(204) if request.method == "PATCH" else None
    driver.set_boot_override(BootOverride("pxe", "once", None), "minimal")
    driver.boot_override()
    assert driver.boot_modes() == ("uefi", "bios")


def test_actions_in_a_resource_of_their_own_are_read_once(
    scripted: ScriptedBmc, opened: Opener
) -> None:
    action = scripted.system["Actions"]["#ComputerSystem.Reset"]
    del action["ResetType@Redfish.AllowableValues"]
    info = "/redfish/v1/Systems/1/ResetActionInfo"
    action["@Redfish.ActionInfo"] = info
    parameter = {"Name": "ResetType", "AllowableValues": ["On", "ForceOff"]}
    scripted.resources[info] = {"Id": "ResetActionInfo", "Parameters": [parameter]}
    driver = opened()
    assert driver.power_actions() == driver.power_actions() == {"on": "On", "force_off": "ForceOff"}
    assert [each.path for each in scripted.requests].count(info) == 1


def test_a_target_left_over_from_a_former_override_is_none(
    scripted: ScriptedBmc, opened: Opener
) -> None:
    scripted.system["Boot"]["BootSourceOverrideTarget"] = "Pxe"
    assert opened().boot_override() == BootOverride("none", "disabled", "uefi")


def test_one_session_serves_the_whole_task_and_is_deleted(
    scripted: ScriptedBmc, opened: Opener
) -> None:
    driver = opened()
    driver.power_state()
    driver.boot_override()
    driver.inspect()
    driver.close()
    assert scripted.opened == 1
    assert not scripted.sessions
