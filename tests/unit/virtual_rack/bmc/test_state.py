# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import pytest

from virtual_rack.bmc.state import (
    MachineIsOffError,
    Options,
    PowerAction,
    Role,
    SessionLimitError,
)
from virtual_rack.testing import LightBmc, light_bmc, wait_until


def boots(light: LightBmc) -> list[str]:
    return [effect for effect in light.effects() if effect.startswith("boot: ")]


def test_once_is_consumed_at_the_start_of_a_boot(light: LightBmc) -> None:
    light.bmc.set_boot("pxe", "once", "uefi")
    light.bmc.power(PowerAction.ON)
    assert str(light.bmc.boot_settings()) == "none"
    light.bmc.power(PowerAction.RESET)
    assert boots(light) == ["boot: pxe uefi", "boot: configured order uefi"]


def test_the_mode_of_an_override_ends_with_it(light: LightBmc) -> None:
    light.bmc.set_boot("pxe", "once", "bios")
    light.bmc.power(PowerAction.ON)
    assert light.bmc.boot_settings().mode == "uefi"
    light.bmc.set_boot("pxe", "once", "bios", lifetime_seconds=0.0)
    assert light.bmc.boot_settings().mode == "uefi"


def test_a_reset_by_the_operating_system_consumes_once_as_well(light: LightBmc) -> None:
    light.bmc.power(PowerAction.ON)
    light.bmc.set_boot("pxe", "once", "bios")
    light.machine.guest_reset()
    light.machine.guest_reset()
    assert boots(light)[1:] == ["boot: pxe bios", "boot: configured order uefi"]


def test_continuous_stays_for_every_boot(light: LightBmc) -> None:
    light.bmc.set_boot("disk", "continuous", "uefi")
    light.bmc.power(PowerAction.ON)
    light.bmc.power(PowerAction.CYCLE)
    light.machine.guest_reset()
    assert boots(light) == ["boot: disk uefi"] * 3
    assert light.bmc.boot_settings().persistence == "continuous"


def test_disabled_leaves_the_configured_order(light: LightBmc) -> None:
    light.bmc.set_boot("pxe", "disabled", "uefi")
    light.bmc.power(PowerAction.ON)
    assert boots(light) == ["boot: configured order uefi"]


def test_an_override_with_a_lifetime_lapses_unless_a_boot_comes(light: LightBmc) -> None:
    light.bmc.set_boot("pxe", "once", "uefi", lifetime_seconds=0.05)
    wait_until(lambda: str(light.bmc.boot_settings()) == "none")
    light.bmc.power(PowerAction.ON)
    assert boots(light) == ["boot: configured order uefi"]


def test_setting_the_same_override_again_is_no_effect(light: LightBmc) -> None:
    assert light.bmc.set_boot("pxe", "once", "uefi") == "boot override: pxe once uefi"
    assert light.bmc.set_boot("pxe", "once", "uefi") is None
    assert light.bmc.set_boot(None, "disabled", "uefi") == "boot override: none"


@pytest.mark.parametrize(
    ("action", "effect_when_off", "effect_when_on"),
    [
        (PowerAction.ON, "power: off→on", None),
        (PowerAction.FORCE_OFF, None, "power: on→off"),
        (PowerAction.GRACEFUL_OFF, None, "power: button"),
        (PowerAction.PUSH_BUTTON, "power: off→on", "power: button"),
        (PowerAction.RESET, MachineIsOffError, "power: reset"),
        (PowerAction.CYCLE, MachineIsOffError, "power: on→off→on"),
        (PowerAction.GRACEFUL_RESTART, MachineIsOffError, "power: button"),
    ],
)
def test_every_power_action_names_its_true_effect(
    light: LightBmc, action: PowerAction, effect_when_off: object, effect_when_on: str | None
) -> None:
    if effect_when_off is MachineIsOffError:
        with pytest.raises(MachineIsOffError):
            light.bmc.power(action)
        assert light.bmc.power_state() == "off"
    else:
        assert light.bmc.power(action) == effect_when_off
        wanted = "on" if effect_when_off == "power: off→on" else "off"
        assert light.bmc.power_state() == wanted
    light.bmc.power(PowerAction.ON)
    assert light.bmc.power(action) == effect_when_on


def test_graceful_restart_starts_the_machine_once_it_is_off(light: LightBmc) -> None:
    light.bmc.power(PowerAction.ON)
    light.bmc.power(PowerAction.GRACEFUL_RESTART)
    wait_until(lambda: light.power_effects() == ["power: on→off", "power: off→on"])
    assert light.bmc.power_state() == "on"


def test_a_later_command_calls_a_graceful_restart_off(light: LightBmc) -> None:
    light.bmc.power(PowerAction.ON)
    light.bmc.power(PowerAction.GRACEFUL_RESTART)
    light.bmc.power(PowerAction.FORCE_OFF)
    light.bmc.power(PowerAction.ON)
    # The operating system shuts down, and nobody asked for a restart of this.
    light.machine.press_power_button()
    wait_until(lambda: light.power_effects() == ["power: on→off"])
    with pytest.raises(AssertionError):
        wait_until(lambda: light.bmc.power_state() == "on", timeout_seconds=0.5)


def test_only_the_right_name_and_password_are_an_account(light: LightBmc) -> None:
    bmc = light.bmc
    account = bmc.authenticate("operator", "Operate-1")
    assert account is not None
    assert account.role is Role.OPERATOR
    for name, password in (("operator", "View-1"), ("operator", ""), ("", ""), ("OPERATOR", "x")):
        assert bmc.authenticate(name, password) is None


def test_a_session_ends_when_nobody_uses_it() -> None:
    with light_bmc(options=Options(session_timeout_seconds=0.2)) as light:
        session = light.bmc.open_session(light.bmc.accounts[0], "127.0.0.1:1")
        assert light.bmc.session_with_token(session.token) is session
        wait_until(lambda: light.bmc.sessions() == [])
        assert light.bmc.session_with_token(session.token) is None
        assert "session: closed" in light.effects()


def test_use_keeps_a_session_alive() -> None:
    with light_bmc(options=Options(session_timeout_seconds=0.4)) as light:
        session = light.bmc.open_session(light.bmc.accounts[0], "127.0.0.1:1")
        passed = []

        def used_for_a_while() -> bool:
            passed.append(light.bmc.session_with_token(session.token))
            return len(passed) > 80

        wait_until(used_for_a_while)
        assert None not in passed


def test_sessions_are_limited() -> None:
    with light_bmc(options=Options(max_sessions=2)) as light:
        first, _ = (light.bmc.open_session(light.bmc.accounts[0], "c:1") for _ in range(2))
        with pytest.raises(SessionLimitError):
            light.bmc.open_session(light.bmc.accounts[0], "c:1")
        assert light.bmc.close_session(first.id)
        assert not light.bmc.close_session(first.id)
        light.bmc.open_session(light.bmc.accounts[0], "c:1")


def test_service_and_machine_have_different_uuids(light: LightBmc) -> None:
    assert light.bmc.uuid != light.bmc.hardware.uuid
