# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import pytest
import yaml

from virtual_rack.testing import LightBmc

from .conftest import Asking, Controller

ON = "power: off→on"
OFF = "power: on→off"


def test_power_on_twice_is_one_command(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    task = ask("power", driver, state="on")
    first, second = controller.play([task, task]).results
    assert (first["changed"], second["changed"]) == (True, False)
    assert first["power_state"] == second["power_state"] == "on"
    assert bmc.power_effects() == [ON]
    assert bmc.open_sessions() == 0


def test_the_module_does_what_its_action_plugin_does(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    here = controller.play([ask("power", driver, state="on")], "--diff").results[0]
    controller.play([ask("power", driver, state="off")])
    there = controller.play([ask("power", driver, detached=True, state="on")], "--diff").results[-1]
    for key in here.keys() - {"_ansible_no_log", "_ansible_verbose_always"}:
        assert there[key] == here[key], key
    assert bmc.power_effects() == [ON, OFF, ON]
    assert bmc.open_sessions() == 0


def test_check_mode_predicts_and_sends_nothing(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    task = ask("power", driver, state="cycled")
    (predicted,) = controller.play([task], "--check", "--diff").results
    assert bmc.power_effects() == []
    (real,) = controller.play([task], "--diff").results
    assert predicted == real
    assert bmc.power_effects() == [ON]


def test_a_cycle_is_off_then_on(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    bmc.machine.power_on()
    (result,) = controller.play([ask("power", driver, state="cycled")]).results
    assert (result["changed"], result["power_state"]) == (True, "on")
    assert bmc.power_effects()[-2:] == [OFF, ON]
    assert len(result["commands"]) == 2


def test_a_graceful_shutdown_presses_the_button(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    bmc.machine.power_on()
    task = ask("power", driver, state="off", shutdown="graceful")
    (result,) = controller.play([task]).results
    assert result["shutdown"] == {"requested": "graceful", "used": "graceful", "reason": None}
    assert bmc.power_effects()[-2:] == ["power: button", OFF]


def test_a_reset_is_sent_once_and_remembered(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    bmc.machine.power_on()
    (result,) = controller.play([ask("power", driver, state="reset")]).results
    assert result["changed"]
    assert bmc.power_effects().count("power: reset") == 1
    record = yaml.safe_load((controller.state_dir / "node-1.yml").read_text())
    ((name, intent),) = record["intents"].items()
    assert name.startswith("bmc_power.reset:127.0.0.1/")
    assert intent["outcome"] == "accepted"


def test_a_reset_whose_outcome_nobody_learned_is_not_sent_again(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    bmc.machine.power_on()
    controller.play([ask("power", driver, state="reset")])
    path = controller.state_dir / "node-1.yml"
    record = yaml.safe_load(path.read_text())
    for intent in record["intents"].values():
        del intent["outcome"]
    path.write_text(yaml.safe_dump(record))
    (result,) = controller.play([ask("power", driver, state="reset")]).results
    assert result["fault"]["code"] == "OUTCOME_UNKNOWN"
    assert bmc.power_effects().count("power: reset") == 1


def test_a_wrong_password_is_tried_once(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    task = ask("power", driver, state="on", password="Wrong-456")
    (result,) = controller.play([task]).results
    assert result["fault"]["code"] == "BMC_AUTH_FAILED"
    assert "Wrong-456" not in str(result)
    attempts = [
        entry
        for entry in bmc.journal()
        if entry["request"].get("name") == "RAKP 1"
        or (entry["request"].get("method"), entry["status"]) == ("POST", 401)
    ]
    assert len(attempts) == 1
    assert bmc.power_effects() == []


def test_one_driver_may_serve_power_and_another_the_rest(
    controller: Controller, bmc: LightBmc, ask: Asking
) -> None:
    task = ask(
        "power", "redfish", state="on", drivers={"power": "ipmi"}, ports={"ipmi": bmc.ipmi_port}
    )
    (result,) = controller.play([task]).results
    assert result["driver"] == "ipmi"
    assert bmc.power_effects() == [ON]
    assert not [entry for entry in bmc.journal() if entry["protocol"] == "redfish"]


@pytest.mark.parametrize("cipher_suites", [(3,), (17,)])
def test_either_cipher_suite_alone_is_enough(
    controller: Controller, bmc: LightBmc, ask: Asking, cipher_suites: tuple[int, ...]
) -> None:
    bmc.bmc.options.cipher_suites = cipher_suites
    (result,) = controller.play([ask("power", "ipmi", state="on")]).results
    assert result["power_state"] == "on"
    assert bmc.open_sessions() == 0


def test_tasks_of_two_hosts_on_one_bmc_take_turns(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    run = controller.play([ask("info", driver)], "-i", "node-2,", "--forks", "2")
    assert [result["power_state"] for result in run.results] == ["off", "off"]
    open_now, most = 0, 0
    for effect in bmc.effects():
        open_now += {"session: opened": 1, "session: closed": -1}.get(effect, 0)
        most = max(most, open_now)
    assert (most, open_now) == (1, 0)


def test_group_defaults_name_address_and_credentials_once(
    controller: Controller, bmc: LightBmc, ask: Asking
) -> None:
    (arguments,) = ask("power", "redfish").values()
    run = controller.play(
        [
            {"barewright.metal.bmc_power": {"state": "on"}},
            {"barewright.metal.bmc_info": None},
        ],
        module_defaults={"group/barewright.metal.bmc": arguments},
    )
    assert [result["power_state"] for result in run.results] == ["on", "on"]


def test_the_password_appears_nowhere(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    tasks = [
        ask("power", driver, state="on"),
        ask("info", driver, detached=True),
        ask("boot_device", driver, device="cd-rom"),
    ]
    run = controller.play(tasks, "-vvv")
    assert bmc.password not in str(run.results)
    # -vvv shows the command line of this test and the playbook's path, never what is in it.
    assert bmc.password not in run.output
    left = [
        path
        for path in controller.directory.rglob("*")
        if path.is_file() and path.name != "play.yml" and bmc.password.encode() in path.read_bytes()
    ]
    assert left == []


def test_wrong_options_are_refused_before_anything_is_asked(
    controller: Controller, bmc: LightBmc, ask: Asking
) -> None:
    tasks = [
        ask("power", "redfish", state="sideways"),
        ask("power", "redfish", state="on", unknown=1),
        ask("power", "redfish", state="on", drivers={"fans": "ipmi"}),
        ask("power", "idrac", state="on"),
    ]
    results = controller.play(tasks).results
    assert all(result["failed"] for result in results)
    assert "sideways" in results[0]["msg"]
    assert "unknown" in results[1]["msg"]
    assert [each["fault"]["code"] for each in results[2:]] == ["INVALID_INPUT", "DRIVER_UNKNOWN"]
    assert bmc.journal() == []
