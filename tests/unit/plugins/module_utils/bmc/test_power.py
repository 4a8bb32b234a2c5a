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
    NotYet,
    Unanswered,
)
from ansible_collections.barewright.metal.plugins.module_utils.bmc.operations import run_power
from ansible_collections.barewright.metal.plugins.module_utils.bmc.registry import DriverRow
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault

from .conftest import Chassis

REFUSED = Fault("BMC_REFUSED", wanted="soft shutdown", found="completion code 0xc1")


class Channel:
    """A run channel that writes down what it is asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.refuses = False

    def permit(self, operation: str) -> None:
        self.calls.append(f"permit {operation}")
        if self.refuses:
            raise Fault("PERMIT_REFUSED")

    def intend(self, operation: str, key: str) -> None:
        self.calls.append(f"intend {operation} {key}")

    def outcome(self, operation: str, key: str, result: str) -> None:
        self.calls.append(f"outcome {operation} {key}: {result}")

    def progress(self, text: str) -> None:
        """Only for people."""


@pytest.fixture
def channel() -> Channel:
    return Channel()


@pytest.fixture
def power(
    chassis: Chassis, channel: Channel, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> Any:
    """Runs ``bmc_power`` against the chassis."""
    row = DriverRow(frozenset({"power", "boot"}), "none", lambda: lambda *_arguments: chassis)
    monkeypatch.setitem(registry.DRIVERS, "chassis", row)
    monkeypatch.setattr(operations, "_RESEND_SECONDS", 0.3)
    monkeypatch.setattr(patience, "_FIRST_SECONDS", 0.02)
    monkeypatch.setattr(patience, "_SLOWEST_SECONDS", 0.1)

    def run(state: str, check_mode: bool = False, **options: Any) -> dict[str, Any]:
        spec = operations.power_argument_spec()
        params = {
            **{name: each.get("default") for name, each in spec.items()},
            "address": "bmc-1",
            "username": "admin",
            "password": "secret",
            "driver": "chassis",
            "lock_dir": str(tmp_path),
            "timeout_seconds": 5,
            "state": state,
            **options,
        }
        return run_power(params, check_mode=check_mode, diff=True, channel=channel)

    return run


def test_nothing_is_sent_when_the_machine_is_there_already(power: Any, chassis: Chassis) -> None:
    result = power("off")
    assert not result["changed"]
    assert chassis.sent == []


def test_on_is_observed_before_it_is_reported(power: Any, chassis: Chassis) -> None:
    result = power("on")
    assert result["changed"]
    assert (result["power_state_before"], result["power_state"]) == ("off", "on")
    assert result["commands"] == ["On"]
    assert result["diff"]["before"] == {"power_state": "off"}


@pytest.mark.parametrize("state", ["on", "off", "cycled", "reset"])
def test_check_mode_sends_nothing_and_returns_the_same_shape(
    power: Any, chassis: Chassis, channel: Channel, state: str
) -> None:
    chassis.state = "on" if state == "reset" else "off"
    chassis.obeys.add("force_restart")
    predicted = power(state, check_mode=True)
    assert chassis.sent == []
    assert channel.calls == []
    if state == "reset":
        chassis.obeys.discard("force_restart")
    real = power(state)
    assert predicted.keys() == real.keys()
    assert predicted == real


def test_a_cycle_is_off_observed_then_on_observed(power: Any, chassis: Chassis) -> None:
    chassis.state = "on"
    result = power("cycled")
    assert chassis.sent == ["force_off", "on"]
    assert result["power_state"] == "on"


def test_on_is_not_sent_before_off_was_observed(power: Any, chassis: Chassis) -> None:
    chassis.state = "on"
    chassis.obeys.discard("force_off")
    with pytest.raises(Fault) as caught:
        power("cycled", timeout_seconds=1)
    assert caught.value.code == "POWER_NOT_REACHED"
    assert chassis.sent == ["force_off"]


def test_a_cycle_of_a_machine_that_is_off_switches_it_on(power: Any, chassis: Chassis) -> None:
    power("cycled")
    assert chassis.sent == ["on"]


def test_unknown_is_never_treated_as_off(power: Any, chassis: Chassis) -> None:
    chassis.states = ["unknown"] * 20
    with pytest.raises(Fault) as caught:
        power("on", timeout_seconds=1)
    assert caught.value.code == "POWER_STATE_UNKNOWN"
    assert chassis.sent == []


def test_unknown_is_waited_for(power: Any, chassis: Chassis) -> None:
    chassis.states = ["unknown", "unknown", "on"]
    chassis.state = "on"
    assert not power("on")["changed"]
    assert chassis.sent == []


def test_settling_is_repeated_until_it_is_taken(power: Any, chassis: Chassis) -> None:
    chassis.answers = [NotYet("409", 0.1), NotYet("409", 0.1)]
    result = power("on")
    assert chassis.sent == ["on", "on", "on"]
    assert result["commands"] == ["On"]


def test_settling_for_ever_is_a_busy_bmc(power: Any, chassis: Chassis) -> None:
    chassis.answers = [NotYet("409", 0.1)] * 100
    with pytest.raises(Fault) as caught:
        power("on", timeout_seconds=1)
    assert caught.value.code == "BMC_BUSY"


def test_an_accepted_command_is_never_sent_again(power: Any, chassis: Chassis) -> None:
    chassis.obeys.clear()
    with pytest.raises(Fault) as caught:
        power("on", timeout_seconds=1)
    assert caught.value.code == "POWER_NOT_REACHED"
    assert chassis.sent == ["on"]


def test_a_command_whose_answer_was_lost_is_not_repeated_when_it_worked(
    power: Any, chassis: Chassis
) -> None:
    chassis.answers = [Unanswered("lost")]
    chassis.states = ["off", "off", "on"]
    chassis.state = "on"
    assert power("on")["power_state"] == "on"
    assert chassis.sent == ["on"]


def test_a_command_whose_answer_was_lost_is_repeated_when_nothing_came_of_it(
    power: Any, chassis: Chassis
) -> None:
    chassis.answers = [Unanswered("lost")]
    result = power("on")
    assert chassis.sent == ["on", "on"]
    assert result["commands"] == ["On", "On"]


def test_a_lost_answer_to_a_graceful_shutdown_is_never_repeated(
    power: Any, chassis: Chassis
) -> None:
    chassis.state = "on"
    chassis.answers = [Unanswered("lost")]
    with pytest.raises(Fault) as caught:
        power("off", shutdown="graceful", timeout_seconds=1)
    assert caught.value.code == "POWER_NOT_REACHED"
    assert "graceful_then_forced" in caught.value.cure
    assert chassis.sent == ["graceful_shutdown"]


def test_a_bmc_that_is_away_for_a_while_is_waited_for(power: Any, chassis: Chassis) -> None:
    away = Fault("BMC_UNREACHABLE", found="connection refused")
    chassis.states = ["off", "off", away, away]
    assert power("on")["power_state"] == "on"
    assert chassis.sent == ["on"]


def test_graceful_is_never_swapped_for_forced_silently(power: Any, chassis: Chassis) -> None:
    chassis.state = "on"
    del chassis.offered["graceful_shutdown"]
    with pytest.raises(Fault) as caught:
        power("off", shutdown="graceful")
    assert caught.value.code == "GRACEFUL_NOT_OFFERED"
    assert chassis.sent == []


def test_a_swap_that_the_user_chose_is_named(power: Any, chassis: Chassis) -> None:
    chassis.state = "on"
    del chassis.offered["graceful_shutdown"]
    result = power("off", shutdown="graceful_then_forced")
    assert chassis.sent == ["force_off"]
    assert result["shutdown"]["used"] == "forced"
    assert "does not offer" in result["shutdown"]["reason"]


def test_a_system_that_does_not_obey_is_forced_only_when_chosen(
    power: Any, chassis: Chassis
) -> None:
    chassis.state = "on"
    chassis.obeys.discard("graceful_shutdown")
    result = power("off", shutdown="graceful_then_forced", graceful_timeout_seconds=1)
    assert chassis.sent == ["graceful_shutdown", "force_off"]
    assert "still on" in result["shutdown"]["reason"]


def test_a_chassis_that_refuses_a_soft_shutdown_does_not_offer_it(
    power: Any, chassis: Chassis
) -> None:
    chassis.state = "on"
    chassis.answers = [REFUSED]
    with pytest.raises(Fault) as caught:
        power("off", shutdown="graceful")
    assert caught.value.code == "GRACEFUL_NOT_OFFERED"
    chassis.answers = [REFUSED]
    result = power("off", shutdown="graceful_then_forced")
    assert result["shutdown"]["used"] == "forced"
    assert "refused" in result["shutdown"]["reason"]


def test_an_action_that_is_not_offered_lists_those_that_are(power: Any, chassis: Chassis) -> None:
    del chassis.offered["on"]
    with pytest.raises(Fault) as caught:
        power("on")
    assert caught.value.code == "POWER_ACTION_NOT_OFFERED"
    assert "ForceOff" in caught.value.found


def test_the_intent_of_a_reset_is_stored_before_it_is_sent(
    power: Any, chassis: Chassis, channel: Channel
) -> None:
    chassis.state = "on"
    result = power("reset")
    assert chassis.sent == ["force_restart"]
    assert result["commands"] == ["ForceRestart"]
    assert channel.calls == [
        "permit bmc_power.reset",
        "intend bmc_power.reset bmc-1/1",
        "outcome bmc_power.reset bmc-1/1: accepted",
    ]


def test_a_reset_with_unknown_outcome_is_never_sent_again(
    power: Any, chassis: Chassis, channel: Channel
) -> None:
    chassis.state = "on"
    chassis.answers = [Unanswered("lost")]
    with pytest.raises(Fault) as caught:
        power("reset", timeout_seconds=1)
    assert caught.value.code == "OUTCOME_UNKNOWN"
    assert chassis.sent == ["force_restart"]
    assert not any(call.startswith("outcome") for call in channel.calls)


def test_a_mark_of_the_bmc_shows_what_came_of_a_reset(
    power: Any, chassis: Chassis, channel: Channel
) -> None:
    chassis.state = "on"
    chassis.answers = [Unanswered("lost")]
    chassis.marks = ["10:00", "10:00", "10:05"]
    power("reset")
    assert chassis.sent == ["force_restart"]
    assert channel.calls[-1].endswith("accepted")


def test_a_reset_that_was_refused_for_now_may_be_sent_again(power: Any, chassis: Chassis) -> None:
    chassis.state = "on"
    chassis.answers = [NotYet("409", 0.1)]
    power("reset")
    assert chassis.sent == ["force_restart", "force_restart"]


def test_a_reset_that_was_refused_leaves_no_open_intent(
    power: Any, chassis: Chassis, channel: Channel
) -> None:
    chassis.state = "on"
    chassis.answers = [Fault("BMC_REFUSED", found="no")]
    with pytest.raises(Fault):
        power("reset")
    assert channel.calls[-1] == "outcome bmc_power.reset bmc-1/1: not sent: BMC_REFUSED"


def test_a_reset_needs_a_machine_that_is_on(power: Any, chassis: Chassis) -> None:
    with pytest.raises(Fault) as caught:
        power("reset")
    assert caught.value.code == "POWER_STATE_WRONG"


def test_without_a_permit_nothing_is_sent(power: Any, chassis: Chassis, channel: Channel) -> None:
    channel.refuses = True
    with pytest.raises(Fault) as caught:
        power("on")
    assert caught.value.code == "PERMIT_REFUSED"
    assert chassis.sent == []
