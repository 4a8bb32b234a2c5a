# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""OpenStack's Redfish client against the rack's BMC, as against real hardware."""

from __future__ import annotations

import pytest
import sushy
from sushy import auth as sushy_auth
from sushy import exceptions

from virtual_rack.bmc.state import Options
from virtual_rack.testing import LightBmc, light_bmc, wait_until


def connect(light: LightBmc, password: str | None = None) -> sushy.Sushy:
    login = sushy_auth.SessionAuth(light.username, password or light.password)
    return sushy.Sushy(light.redfish_url, auth=login, verify=str(light.ca_path))


def test_it_finds_the_machine_as_it_is(light: LightBmc) -> None:
    hardware = light.machine.hardware()
    system = connect(light).get_system()
    assert system.uuid == hardware.uuid
    assert system.serial_number == hardware.serial_number
    assert system.manufacturer == hardware.manufacturer
    assert system.memory_summary.size_gib == hardware.memory_bytes // 2**30
    macs = [nic.mac_address.lower() for nic in system.ethernet_interfaces.get_members()]
    assert macs == [nic.mac for nic in hardware.nics]
    assert list(system.ethernet_interfaces.summary) == [mac.upper() for mac in macs]
    drives = [drive for storage in system.storage.get_members() for drive in storage.drives]
    assert [drive.serial_number for drive in drives] == [d.serial_number for d in hardware.disks]
    assert system.simple_storage.max_size_bytes == hardware.disks[0].size_bytes
    assert system.processors.summary.count == hardware.cpu.threads
    assert system.secure_boot.enabled is False
    assert system.bios_version == hardware.firmware.version
    (manager,) = system.managers
    assert manager.firmware_version == "1.0"
    (chassis,) = system.chassis
    assert chassis.serial_number == hardware.serial_number


def test_it_boots_a_machine_from_the_network_once(light: LightBmc) -> None:
    system = connect(light).get_system()
    system.set_system_boot_options(
        target=sushy.BootSource.PXE,
        enabled=sushy.BootSourceOverrideEnabled.ONCE,
        mode=sushy.BootSourceOverrideMode.UEFI,
    )
    system.refresh()
    assert system.boot.target == sushy.BootSource.PXE
    system.reset_system(sushy.ResetType.ON)
    system.refresh()
    assert system.power_state == sushy.PowerState.ON
    assert system.boot.enabled == sushy.BootSourceOverrideEnabled.DISABLED
    system.reset_system(sushy.ResetType.FORCE_RESTART)
    assert [effect for effect in light.effects() if not effect.startswith("session")] == [
        "boot override: pxe once uefi",
        "boot: pxe uefi",
        "power: off→on",
        "boot: configured order uefi",
        "power: reset",
    ]


def test_it_shuts_a_machine_down(light: LightBmc) -> None:
    system = connect(light).get_system()
    system.reset_system(sushy.ResetType.ON)
    system.reset_system(sushy.ResetType.GRACEFUL_SHUTDOWN)

    def is_off() -> bool:
        system.refresh()
        return bool(system.power_state == sushy.PowerState.OFF)

    wait_until(is_off)
    assert light.power_effects() == ["power: off→on", "power: button", "power: on→off"]


def test_a_wrong_password_opens_no_session(light: LightBmc) -> None:
    with pytest.raises(exceptions.AccessError):
        connect(light, "wrong")
    assert "session: opened" not in light.effects()


def test_another_ca_is_not_trusted(light: LightBmc) -> None:
    with (
        light_bmc() as other,
        pytest.raises(exceptions.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        sushy.Sushy(
            light.redfish_url,
            auth=sushy_auth.BasicAuth(light.username, light.password),
            verify=str(other.ca_path),
        )


def test_an_expired_session_is_renewed() -> None:
    with light_bmc(options=Options(session_timeout_seconds=0.3)) as light:
        client = connect(light)
        system = client.get_system()
        wait_until(lambda: light.bmc.sessions() == [])
        system.refresh()
        assert light.effects().count("session: opened") == 2


def test_logging_out_leaves_no_session(light: LightBmc) -> None:
    client = connect(light)
    assert light.open_sessions() == 1
    client._auth.close()
    assert light.open_sessions() == 0
