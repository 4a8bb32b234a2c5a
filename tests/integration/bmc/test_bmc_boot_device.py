# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from virtual_rack.testing import LightBmc

from .conftest import Asking, Controller


def test_an_override_is_set_once_and_used_by_the_next_boot(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    set_it = ask("boot_device", driver, device="pxe", mode="uefi")
    first, second, _on, used = controller.play(
        [set_it, set_it, ask("power", driver, state="on"), ask("info", driver)], "--diff"
    ).results
    assert (first["changed"], second["changed"]) == (True, False)
    assert first["boot_override"] == {"device": "pxe", "enabled": "once", "mode": "uefi"}
    assert first["diff"]["after"] == first["boot_override"]
    assert used["boot_override"]["enabled"] == "disabled"
    overrides = [effect for effect in bmc.effects() if effect.startswith("boot override: pxe")]
    assert len(overrides) == 1


def test_a_continuous_override_stays_until_it_is_taken_away(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    kept, still, gone, again = controller.play(
        [
            ask("boot_device", driver, device="disk", persistence="continuous", mode="uefi"),
            ask("power", driver, state="on"),
            ask("boot_device", driver, device="none"),
            ask("boot_device", driver, device="none"),
        ]
    ).results
    assert kept["boot_override"]["enabled"] == "continuous"
    assert still["power_state"] == "on"
    assert gone["boot_override_before"]["device"] == "disk"
    assert (gone["changed"], gone["boot_override"]["enabled"]) == (True, "disabled")
    assert not again["changed"]


def test_check_mode_predicts_and_sets_nothing(
    controller: Controller, bmc: LightBmc, ask: Asking, driver: str
) -> None:
    task = ask("boot_device", driver, device="pxe", mode="uefi")
    (predicted,) = controller.play([task], "--check", "--diff").results
    assert not [effect for effect in bmc.effects() if effect.startswith("boot override")]
    (real,) = controller.play([task], "--diff").results
    assert predicted["payloads"] == []
    assert real["payloads"] == ["complete"]
    for result in (predicted, real):
        del result["payloads"]
    assert predicted == real


def test_a_device_that_the_machine_lacks_is_refused_with_those_it_has(
    controller: Controller, ask: Asking
) -> None:
    cd, http = controller.play(
        [
            ask("boot_device", "redfish", device="cd"),
            ask("boot_device", "redfish", device="uefi_http"),
        ]
    ).results
    assert cd["fault"]["code"] == http["fault"]["code"] == "BOOT_DEVICE_NOT_OFFERED"
    assert "pxe" in cd["fault"]["details"]["offered"]
