# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import pytest

from ansible_collections.barewright.metal.plugins.module_utils.bmc.interfaces import Identity
from ansible_collections.barewright.metal.plugins.module_utils.bmc.quirks import (
    BUSY_MESSAGES,
    QUIRKS,
    Behaviour,
    Quirk,
    behaviour_of,
    busy_message,
)


def test_an_unknown_machine_is_treated_by_the_standard() -> None:
    assert behaviour_of(Identity()) == Behaviour()
    assert behaviour_of(Identity("Barewright", "Virtual Rack Server", "1.0")) == Behaviour()


def test_hpe_gets_the_minimal_boot_payload_first() -> None:
    assert behaviour_of(Identity("HPE", "ProLiant DL380 Gen10")).minimal_boot_payload


@pytest.mark.parametrize("name", ["Supermicro", "Super Micro Computer", "SUPERMICRO"])
def test_supermicro_gets_its_own_selector_for_a_uefi_disk(name: str) -> None:
    # Selector 9 in bits 5:2 is the byte 0x24 of the report.
    assert behaviour_of(Identity(name)).ipmi_uefi_disk_selector == 0x24 >> 2


def test_later_rows_override_earlier_ones() -> None:
    rows = (
        Quirk(manufacturer="acme", change={"settle_seconds": 3.0}, seen="a"),
        Quirk(manufacturer="acme", firmware=r"^2\.", change={"settle_seconds": 9.0}, seen="b"),
    )
    assert behaviour_of(Identity("ACME", firmware="1.5"), rows).settle_seconds == 3.0
    assert behaviour_of(Identity("ACME", firmware="2.0"), rows).settle_seconds == 9.0


def test_every_row_changes_something_that_exists_and_says_where_it_was_seen() -> None:
    for quirk in QUIRKS:
        assert Behaviour(**quirk.change) != Behaviour()
        assert quirk.seen
        assert quirk.manufacturer or quirk.model or quirk.firmware
    assert all(row.seen for row in BUSY_MESSAGES)


def test_a_machine_in_post_is_busy_whatever_the_status_says() -> None:
    words = ["iLO.2.14.UnableToModifyDuringSystemPOST"]
    assert busy_message(400, words) is not None
    assert busy_message(400, ["Base.1.0.PropertyValueNotInList"]) is None
