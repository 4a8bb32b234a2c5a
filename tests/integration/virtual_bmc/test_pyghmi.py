# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The IPMI client library of OpenStack against the rack's BMC."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyghmi.exceptions import IpmiException
from pyghmi.ipmi.command import Command

from virtual_rack.bmc.state import Options
from virtual_rack.testing import LightBmc, light_bmc, wait_until


@pytest.fixture
def command(light: LightBmc) -> Iterator[Command]:
    command = Command(light.address, light.username, light.password, port=light.ipmi_port)
    yield command
    command.ipmi_session.logout()


def test_it_switches_a_machine_on_and_off(light: LightBmc, command: Command) -> None:
    assert command.get_power() == {"powerstate": "off"}
    assert command.set_power("on", wait=10) == {"powerstate": "on"}
    assert command.set_power("shutdown", wait=10) == {"powerstate": "off"}
    assert light.power_effects() == ["power: off→on", "power: button", "power: on→off"]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("uefi", [False, True])
def test_it_sets_the_boot_device_and_reads_it_back(
    light: LightBmc, command: Command, persistent: bool, uefi: bool
) -> None:
    command.set_bootdev("network", persist=persistent, uefiboot=uefi)
    wanted = {"bootdev": "network", "persistent": persistent, "uefimode": uefi}
    assert command.get_bootdev() == wanted
    assert light.bmc.boot_settings().expires_at is None
    command.set_power("on", wait=10)
    assert f"boot: pxe {'uefi' if uefi else 'bios'}" in light.effects()
    assert (command.get_bootdev() == wanted) == persistent


def test_it_reads_who_the_machine_is(light: LightBmc, command: Command) -> None:
    (system,) = [content for name, content in command.get_inventory() if name == "System"]
    hardware = light.machine.hardware()
    assert system["Manufacturer"] == hardware.manufacturer
    assert system["Product name"] == hardware.model
    assert system["Serial Number"] == hardware.serial_number
    assert system["UUID"].lower() == hardware.uuid


def test_it_falls_back_to_suite_3(light: LightBmc) -> None:
    with light_bmc(options=Options(cipher_suites=(3,))) as old:
        command = Command(old.address, old.username, old.password, port=old.ipmi_port)
        assert command.get_power() == {"powerstate": "off"}
        command.ipmi_session.logout()


def test_a_wrong_password_is_called_so(light: LightBmc) -> None:
    with pytest.raises(IpmiException, match="Incorrect password"):
        Command(light.address, light.username, "wrong", port=light.ipmi_port)
    names = [entry["request"]["name"] for entry in light.journal()]
    assert names.count("RAKP 1") == 1
    assert light.effects() == []


def test_an_unknown_user_is_called_so(light: LightBmc) -> None:
    with pytest.raises(IpmiException, match="Unauthorized name"):
        Command(light.address, "nobody", "x", port=light.ipmi_port)


def test_logging_out_leaves_no_session(light: LightBmc) -> None:
    command = Command(light.address, light.username, light.password, port=light.ipmi_port)
    assert light.open_sessions() == 1
    command.ipmi_session.logout()
    wait_until(lambda: light.open_sessions() == 0)
