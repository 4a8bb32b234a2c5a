# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils.inventory_compare import differences

MACHINE = {
    "system": {"uuid": "00112233-4455-6677-8899-aabbccddeeff", "serial_number": "BW-1"},
    "cpu": {"sockets": 1, "cores": 2, "threads": 2},
    "memory": {"size_bytes": 1 << 30},
    "nics": [{"mac": "52:54:00:00:00:01"}],
    "disks": [{"serial_number": "D1", "size_bytes": 1 << 32}],
}


def test_a_machine_agrees_with_itself():
    assert differences(MACHINE, MACHINE) == []


@given(st.sets(st.sampled_from(["system", "cpu", "memory", "nics", "disks"])))
def test_what_one_side_does_not_know_is_no_disagreement(unknown):
    partial = {key: None if key in unknown else value for key, value in MACHINE.items()}
    assert differences(partial, MACHINE) == []
    assert differences(MACHINE, partial) == []


@pytest.mark.parametrize(
    ("field", "section", "key", "value"),
    [
        ("system.serial_number", "system", "serial_number", "BW-2"),
        ("system.uuid", "system", "uuid", "ffffffff-4455-6677-8899-aabbccddee00"),
        ("cpu.threads", "cpu", "threads", 4),
        ("memory.size_bytes", "memory", "size_bytes", 1 << 29),
    ],
)
def test_each_disagreement_is_named(field, section, key, value):
    other = copy.deepcopy(MACHINE)
    other[section][key] = value
    found = differences(MACHINE, other)
    assert [row["field"] for row in found] == [field]
    assert str(value) in found[0]["text"]


def test_a_uuid_in_the_other_byte_order_is_the_same():
    other = copy.deepcopy(MACHINE)
    other["system"]["uuid"] = "33221100-5544-7766-8899-aabbccddeeff"
    assert differences(MACHINE, other) == []


def test_memory_that_firmware_keeps_is_no_disagreement():
    other = copy.deepcopy(MACHINE)
    other["memory"]["size_bytes"] = int((1 << 30) * 0.96)
    assert differences(MACHINE, other) == []


def test_a_card_that_only_the_bmc_sees_is_named():
    other = copy.deepcopy(MACHINE)
    other["nics"] = [{"mac": "52:54:00:00:00:02"}]
    assert [row["field"] for row in differences(MACHINE, other)] == ["nics.mac"]


def test_a_disk_that_only_the_machine_sees_is_no_disagreement():
    other = copy.deepcopy(MACHINE)
    other["disks"].append({"serial_number": "D2", "size_bytes": 5})
    assert differences(MACHINE, other) == []


def test_a_vanished_and_a_shrunken_disk_are_named():
    there = copy.deepcopy(MACHINE)
    there["disks"].append({"serial_number": "D2", "size_bytes": 5})
    here = copy.deepcopy(MACHINE)
    here["disks"][0]["size_bytes"] = 7
    fields = [row["field"] for row in differences(there, here)]
    assert fields == ["disks.serial_number", "disks[D1].size_bytes"]
