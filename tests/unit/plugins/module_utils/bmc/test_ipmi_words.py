# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils.bmc.interfaces import BootOverride
from ansible_collections.barewright.metal.plugins.module_utils.bmc.ipmi_words import (
    SELECTORS,
    decode_boot_flags,
    decode_device_id,
    decode_guid,
    encode_boot_flags,
)
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault

OVERRIDES = st.builds(
    BootOverride,
    st.sampled_from(sorted(set(SELECTORS) - {"none"})),
    st.sampled_from(["once", "continuous"]),
    st.sampled_from(["uefi", "bios"]),
)


@pytest.mark.parametrize(
    ("override", "sent"),
    [
        # As `ipmitool chassis bootdev pxe`, with options=efiboot and with options=persistent.
        (BootOverride("pxe", "once", "bios"), "058004000000"),
        (BootOverride("pxe", "once", "uefi"), "05a004000000"),
        (BootOverride("disk", "continuous", "uefi"), "05e008000000"),
        (BootOverride("none", "disabled", None), "050000000000"),
    ],
)
def test_flags_are_the_bytes_of_the_standard(override: BootOverride, sent: str) -> None:
    assert encode_boot_flags(override).hex() == sent


def test_supermicro_boots_a_uefi_disk_by_another_selector() -> None:
    override = BootOverride("disk", "continuous", "uefi")
    assert encode_boot_flags(override, 0x9).hex() == "05e024000000"
    assert encode_boot_flags(BootOverride("disk", "once", "bios"), 0x9).hex() == "058008000000"


@given(OVERRIDES, st.none() | st.just(0x9))
def test_what_is_sent_is_what_is_read_back(override: BootOverride, selector: int | None) -> None:
    sent = encode_boot_flags(override, selector)
    assert decode_boot_flags(b"\x01" + sent, selector) == override


def test_flags_that_are_not_valid_are_no_override() -> None:
    assert decode_boot_flags(bytes.fromhex("0105000400000000")).enabled == "disabled"
    assert decode_boot_flags(bytes.fromhex("0185a004000000")).enabled == "disabled"


@given(st.binary(max_size=8))
def test_any_answer_is_an_override_or_a_fault(data: bytes) -> None:
    if len(data) < 4 or data[1] & 0x7F != 5:
        with pytest.raises(Fault):
            decode_boot_flags(data)
    else:
        assert decode_boot_flags(data).enabled in ("once", "continuous", "disabled")


@given(st.uuids())
def test_a_guid_is_read_in_the_byte_order_of_smbios(value: Any) -> None:
    assert decode_guid(value.bytes_le) == str(value)
    assert decode_guid(value.bytes_le[:15]) is None


def test_device_id_names_manufacturer_and_firmware() -> None:
    # Firmware 1.73 (the minor version is BCD) of IANA number 10876.
    data = bytes((0x20, 0x01, 0x01, 0x73, 0x02, 0xBF, 0x7C, 0x2A, 0x00, 0x35, 0x09))
    assert decode_device_id(data) == (10876, "1.73")
    assert decode_device_id(b"") == (0, "")
