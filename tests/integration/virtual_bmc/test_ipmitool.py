# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""ipmitool against the rack's BMC, as against real hardware."""

from __future__ import annotations

import subprocess

import pytest

from virtual_rack.testing import LightBmc, wait_until


def ipmitool(
    light: LightBmc,
    *arguments: str,
    suite: int | None = 17,
    username: str | None = None,
    password: str | None = None,
    level: str = "ADMINISTRATOR",
) -> subprocess.CompletedProcess[str]:
    chosen = [] if suite is None else ["-C", str(suite)]
    return subprocess.run(
        [
            *("ipmitool", "-I", "lanplus", "-N", "2", "-R", "1", "-L", level),
            *("-H", light.address, "-p", str(light.ipmi_port)),
            *("-U", username or light.username, "-P", password or light.password),
            *chosen,
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("suite", [3, 17, None])
def test_it_switches_a_machine_on_and_off(light: LightBmc, suite: int | None) -> None:
    def power(action: str) -> str:
        answer = ipmitool(light, "chassis", "power", action, suite=suite)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    assert "is off" in power("status")
    power("on")
    assert "is on" in power("status")
    power("cycle")
    power("reset")
    power("off")
    assert "is off" in power("status")
    assert light.power_effects() == [
        "power: off→on",
        "power: on→off→on",
        "power: reset",
        "power: on→off",
    ]
    assert light.open_sessions() == 0


def test_it_shuts_a_machine_down(light: LightBmc) -> None:
    ipmitool(light, "power", "on")
    ipmitool(light, "power", "soft")
    wait_until(lambda: light.power_effects()[1:] == ["power: button", "power: on→off"])


def test_resetting_a_machine_that_is_off_is_refused(light: LightBmc) -> None:
    answer = ipmitool(light, "power", "reset")
    assert answer.returncode != 0
    assert "not supported in present state" in answer.stderr
    assert light.power_effects() == []


@pytest.mark.parametrize(
    ("options", "effect", "lines"),
    [
        ([], "boot override: pxe once bios", {"BIOS PC Compatible (legacy) boot", "next boot"}),
        (["options=efiboot"], "boot override: pxe once uefi", {"BIOS EFI boot", "next boot"}),
        (
            ["options=efiboot,persistent"],
            "boot override: pxe continuous uefi",
            {"BIOS EFI boot", "all future boots"},
        ),
    ],
)
def test_it_sets_the_boot_device_and_reads_it_back(
    light: LightBmc, options: list[str], effect: str, lines: set[str]
) -> None:
    answer = ipmitool(light, "chassis", "bootdev", "pxe", *options)
    assert answer.returncode == 0, answer.stderr
    assert effect in light.effects()
    shown = ipmitool(light, "chassis", "bootparam", "get", "5").stdout
    assert "Force PXE" in shown
    for line in lines:
        assert line in shown
    ipmitool(light, "chassis", "power", "on")
    mode = "uefi" if options else "bios"
    assert f"boot: pxe {mode}" in light.effects()
    shown = ipmitool(light, "chassis", "bootparam", "get", "5").stdout
    assert ("Boot Flag Valid" in shown) == ("continuous" in effect)


def test_it_reads_who_the_machine_is(light: LightBmc) -> None:
    hardware = light.machine.hardware()
    fru = ipmitool(light, "fru", "print").stdout
    assert f"Product Manufacturer  : {hardware.manufacturer}" in fru
    assert f"Product Name          : {hardware.model}" in fru
    assert f"Product Serial        : {hardware.serial_number}" in fru
    assert hardware.uuid in ipmitool(light, "mc", "guid").stdout
    assert light.bmc.name in ipmitool(light, "sdr", "list", "all").stdout
    assert light.address in ipmitool(light, "lan", "print", "1").stdout


def test_a_wrong_password_fails_at_once_and_opens_nothing(light: LightBmc) -> None:
    answer = ipmitool(light, "power", "on", password="wrong")
    assert answer.returncode != 0
    requests = [entry["request"]["name"] for entry in light.journal()]
    assert "RAKP 1" in requests
    assert light.effects() == []


def test_an_operator_needs_to_ask_for_no_more_than_he_has(light: LightBmc) -> None:
    def power_on(level: str) -> int:
        return ipmitool(
            light, "power", "on", username="operator", password="Operate-1", level=level
        ).returncode

    assert power_on("ADMINISTRATOR") != 0
    assert light.power_effects() == []
    assert power_on("OPERATOR") == 0
    assert light.power_effects() == ["power: off→on"]
