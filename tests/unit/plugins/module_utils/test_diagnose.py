# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils.diagnose import (
    hardware_errors,
    judge,
    shortages,
)
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault

MACHINE = {
    "memory": {"size_bytes": 1 << 30},
    "cpu": {"threads": 4},
    "disks": [{}, {}],
    "nics": [{"link_up": True}, {"link_up": False}, {"link_up": None}],
}
HAS = {"memory_bytes": 1 << 30, "threads": 4, "disks": 2, "links": 1}


@given(st.sampled_from(sorted(HAS)), st.integers(min_value=0, max_value=1 << 31))
def test_exactly_what_is_below_its_minimum_is_named(key, least):
    assert bool(shortages(MACHINE, {key: least})) == (HAS[key] < least)


def test_what_is_not_asked_for_is_not_checked():
    assert shortages({}, {}) == []
    assert shortages({}, dict.fromkeys(HAS)) == []


def test_what_a_machine_does_not_know_of_itself_counts_as_nothing():
    unknown = {"memory": None, "cpu": {"threads": None}, "disks": None, "nics": None}
    assert len(shortages(unknown, HAS)) == len(HAS)


def test_a_failed_disk_and_a_machine_check_are_found_in_the_log():
    records = [
        "3,812,5140900,-;critical medium error, dev sda, sector 2048",
        "2,901,6140900,-;mce: [Hardware Error]: Machine check events logged",
        " SUBSYSTEM=block",
    ]
    assert len(hardware_errors(records)) == 2


@pytest.mark.parametrize(
    "record",
    [
        "6,339,5140900,-;mce: CPU0 supports Machine Check banks",  # information
        "3,400,5140900,-;firmware: failed to load some.bin",  # no hardware failed
        "broken",
        "",
    ],
)
def test_what_is_no_hardware_error_is_left_alone(record):
    assert hardware_errors([record]) == []


@given(st.lists(st.text()))
def test_a_log_of_anything_is_read_to_its_end(records):
    assert len(hardware_errors(records)) <= len(records)


def test_a_fault_names_everything_that_is_lacking():
    with pytest.raises(Fault, match=r"disks is 2.*I/O error"):
        judge(["disks is 2, wanted at least 3"], ["I/O error, dev sda"])
    judge([], [])
