# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from virtual_rack.testing import LightBmc, light_bmc

from .conftest import Asking, Controller


def test_the_inventory_is_the_machine(controller: Controller, bmc: LightBmc, ask: Asking) -> None:
    (result,) = controller.play([ask("info", "redfish")]).results
    hardware = bmc.machine.hardware()
    inventory = result["inventory"]
    assert not result["changed"]
    assert result["incomplete"] == []
    assert inventory["source"] == "out_of_band"
    assert inventory["system"] == {
        "uuid": hardware.uuid,
        "serial_number": hardware.serial_number,
        "manufacturer": hardware.manufacturer,
        "model": hardware.model,
        "sku": hardware.sku,
    }
    assert inventory["memory"] == {"size_bytes": hardware.memory_bytes}
    assert inventory["cpu"]["threads"] == hardware.cpu.threads
    assert inventory["cpu"]["architecture"] == hardware.cpu.architecture
    assert [nic["mac"] for nic in inventory["nics"]] == [nic.mac for nic in hardware.nics]
    for found, real in zip(inventory["disks"], hardware.disks, strict=True):
        assert found["serial_number"] == real.serial_number
        assert found["size_bytes"] == real.size_bytes
        assert found["rotational"] == real.rotational
        assert found["logical_sector_bytes"] == real.logical_sector_bytes
    assert inventory["gpus"] == []
    assert inventory["firmware"]["boot_mode"] == "uefi"


def test_both_protocols_name_the_same_machine(
    controller: Controller, bmc: LightBmc, ask: Asking
) -> None:
    redfish, ipmi = controller.play([ask("info", "redfish"), ask("info", "ipmi")]).results
    assert redfish["inventory"].keys() == ipmi["inventory"].keys()
    for key in ("uuid", "serial_number", "manufacturer", "model"):
        assert redfish["inventory"]["system"][key] == ipmi["inventory"]["system"][key], key
    assert ipmi["inventory"]["nics"] is None
    assert ipmi["inventory"]["disks"] is None
    assert ipmi["capabilities"]["boot_modes"] == ["uefi", "bios"]
    assert bmc.open_sessions() == 0


def test_secure_boot_is_reported(controller: Controller) -> None:
    with light_bmc(firmware="uefi", secure_boot=True) as bmc:
        arguments = {
            "address": bmc.address,
            "port": bmc.redfish_port,
            "username": bmc.username,
            "password": bmc.password,
            "ca_path": str(bmc.ca_path),
        }
        (result,) = controller.play([{"barewright.metal.bmc_info": arguments}]).results
        assert result["secure_boot"] == {"supported": True, "enabled": True}


def test_reading_changes_nothing_in_check_mode_either(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    task = ask("info", driver)
    (checked,) = controller.play([task], "--check").results
    (real,) = controller.play([task]).results
    assert checked == real
    changed = set(bmc.effects()) - {"session: opened", "session: closed"}
    assert changed == set()
