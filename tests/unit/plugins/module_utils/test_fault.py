# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault

TEXTS = st.text(max_size=40)
PLAIN = st.dictionaries(TEXTS, st.none() | st.booleans() | st.integers() | TEXTS, max_size=3)


def test_message_says_what_was_wanted_what_was_found_and_what_to_do() -> None:
    fault = Fault(
        "IMAGE_TOO_LARGE", wanted="at most 4 GiB", found="5 GiB", cure="take a larger disk"
    )
    assert str(fault) == (
        "IMAGE_TOO_LARGE: wanted at most 4 GiB; found 5 GiB; to do: take a larger disk"
    )


def test_message_leaves_out_what_is_not_known() -> None:
    assert str(Fault("BMC_UNREACHABLE")) == "BMC_UNREACHABLE"
    assert str(Fault("BMC_UNREACHABLE", found="no answer")) == "BMC_UNREACHABLE: found no answer"


@given(wanted=TEXTS, found=TEXTS, cure=TEXTS, details=PLAIN)
def test_a_fault_survives_the_way_through_a_result(
    wanted: str, found: str, cure: str, details: dict[str, object]
) -> None:
    result = Fault("CODE", wanted=wanted, found=found, cure=cure, details=details).to_result()
    assert result["failed"] is True
    again = Fault.from_result(result["fault"])
    assert again.to_result() == result
