# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils.bmc.inventory import (
    mac,
    text,
    uuid,
    whole,
    wwn,
)

ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text())


@pytest.mark.parametrize(
    "placeholder",
    ["To Be Filled By O.E.M.", "Default string", "Not Specified", "  ", "0000000000", "FFFFFFFF"],
)
def test_what_a_vendor_forgot_to_fill_in_is_unknown(placeholder: str) -> None:
    assert text(placeholder) is None


def test_text_is_trimmed() -> None:
    assert text("  PowerEdge   R640 ") == "PowerEdge R640"


@pytest.mark.parametrize("empty", ["0" * 8, "f" * 8])
def test_a_uuid_of_one_digit_is_unknown(empty: str) -> None:
    digit = empty[0]
    assert uuid("-".join(digit * length for length in (8, 4, 4, 4, 12))) is None


@given(st.uuids())
def test_a_uuid_is_lower_case(value: object) -> None:
    assert uuid(str(value).upper()) in (str(value), None)


@pytest.mark.parametrize("written", ["52:54:00:AB:cd:01", "52-54-00-ab-cd-01", "525400ABCD01"])
def test_a_mac_is_lower_case_with_colons(written: str) -> None:
    assert mac(written) == "52:54:00:ab:cd:01"


@pytest.mark.parametrize("empty", ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "52:54:00", None])
def test_what_is_no_mac_is_unknown(empty: str | None) -> None:
    assert mac(empty) is None


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("5000C500A1B2C3D4", "0x5000c500a1b2c3d4"),
        ("0x5000c500a1b2c3d4", "0x5000c500a1b2c3d4"),
        ("naa.5000c500a1b2c3d4", "0x5000c500a1b2c3d4"),
        ("50:00:C5:00:A1:B2:C3:D4", "0x5000c500a1b2c3d4"),
        ("eui.0025385B71B00D5A", "eui.0025385b71b00d5a"),
        ("0000000000000000", None),
        ("S4EWNX0R", None),
    ],
)
def test_a_wwn_is_written_as_linux_writes_it(written: str, name: str | None) -> None:
    assert wwn(written) == name


@given(ANYTHING)
def test_nothing_a_bmc_sends_breaks_a_reader(value: object) -> None:
    for read in (text, uuid, mac, wwn):
        assert read(value) is None or isinstance(read(value), str)


def test_a_number_is_whole_and_not_negative() -> None:
    assert [whole(value) for value in (3, 2.0, 0)] == [3, 2, 0]
    assert [whole(value) for value in (-1, True, "3", None)] == [None] * 4
