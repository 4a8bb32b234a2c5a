# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils.disks import Disk
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.hints import (
    check_hints,
    find_root_disk,
)

GIB = 1 << 30
SMALL = Disk(
    name="nvme0n1",
    path="/dev/nvme0n1",
    bus="nvme",
    size_bytes=4 * GIB,
    logical_sector_bytes=512,
    physical_sector_bytes=512,
    read_only=False,
    rotational=False,
    model="Fast  Disk",
    serial_number="S-1",
    wwn="eui.0025385b71b0ab12",
    links=("/dev/disk/by-id/nvme-Fast", "/dev/disk/by-path/pci-0000:01:00.0-nvme-1"),
)
LARGE = replace(
    SMALL,
    name="sda",
    path="/dev/sda",
    bus="sata",
    size_bytes=8 * GIB,
    rotational=True,
    model="Spinning",
    serial_number="S-2",
    wwn="0x5000c500a1b2c3d4",
    links=(),
)
DISKS = [SMALL, LARGE]


@pytest.mark.parametrize(
    ("hints", "found"),
    [
        ({"serial_number": "s-1"}, SMALL),
        ({"serial_number": "S-2", "rotational": True}, LARGE),
        ({"wwn": "naa.5000C500A1B2C3D4"}, LARGE),
        ({"wwn": "5000c500a1b2c3d4"}, LARGE),
        ({"wwn": "0025385B71B0AB12"}, SMALL),
        ({"model": "fast disk"}, SMALL),
        ({"size_bytes": 8 * GIB}, LARGE),
        ({"size_bytes": str(8 * GIB)}, LARGE),
        ({"min_size_bytes": 5 * GIB}, LARGE),
        ({"max_size_bytes": 5 * GIB}, SMALL),
        ({"rotational": "no"}, SMALL),
        ({"by_path": "pci-0000:01:00.0-nvme-1"}, SMALL),
        ({"by_path": "/dev/disk/by-path/pci-0000:01:00.0-nvme-1"}, SMALL),
        ({"name": "sda"}, LARGE),
        ({"name": "/dev/sda", "model": None}, LARGE),
    ],
)
def test_each_hint_chooses_its_disk(hints, found):
    assert find_root_disk(DISKS, hints) is found


@pytest.mark.parametrize(
    "hints",
    [
        {"serial_number": "S-3"},
        {"serial_number": "S"},
        {"serial_number": "S-1", "rotational": True},
        {"wwn": "0x5000c500a1b2c3d5"},
    ],
)
def test_no_match_is_a_fault_that_lists_all_disks(hints):
    with pytest.raises(Fault) as caught:
        find_root_disk(DISKS, hints)
    assert caught.value.code == "ROOT_DISK_NO_MATCH"
    assert [disk["serial_number"] for disk in caught.value.details["disks"]] == ["S-1", "S-2"]
    assert "/dev/nvme0n1" in caught.value.found
    assert "S-2" in caught.value.found


@pytest.mark.parametrize("hints", [{}, {"min_size_bytes": GIB}])
def test_two_matches_are_a_fault_that_lists_them(hints):
    with pytest.raises(Fault) as caught:
        find_root_disk(DISKS, hints)
    assert caught.value.code == "ROOT_DISK_AMBIGUOUS"
    assert len(caught.value.details["disks"]) == 2


def test_the_only_disk_needs_no_hint():
    assert find_root_disk([SMALL], {}) is SMALL


def test_a_machine_without_disks_has_no_root_disk():
    with pytest.raises(Fault, match="no disks at all"):
        find_root_disk([], {})


def test_an_unknown_wwn_fits_no_disk_that_has_none():
    with pytest.raises(Fault) as caught:
        find_root_disk([replace(SMALL, wwn=None)], {"wwn": "naa.5000c500a1b2c3d4"})
    assert caught.value.code == "ROOT_DISK_NO_MATCH"


@pytest.mark.parametrize(
    "hints",
    [
        {"serial": "S-1"},
        {"size_bytes": "4G"},
        {"size_bytes": True},
        {"size_bytes": -1},
        {"rotational": "perhaps"},
        {"serial_number": ""},
        {"serial_number": ["S-1"]},
        {"wwn": " "},
        {"min_size_bytes": 2, "max_size_bytes": 1},
        {"size_bytes": 10, "max_size_bytes": 9},
        {"size_bytes": 10, "min_size_bytes": 11},
    ],
)
def test_unknown_wrong_and_contradictory_hints_are_refused(hints):
    with pytest.raises(Fault) as caught:
        find_root_disk(DISKS, hints)
    assert caught.value.code == "HINTS_INVALID"


@pytest.mark.parametrize("wwn", ["0x", "naa.", "eui."])
def test_a_wwn_that_is_only_a_prefix_matches_nothing(wwn):
    with pytest.raises(Fault) as caught:
        find_root_disk([replace(SMALL, wwn=None)], {"wwn": wwn})
    assert caught.value.code == "ROOT_DISK_NO_MATCH"


@given(
    st.dictionaries(
        st.sampled_from(["serial_number", "size_bytes", "rotational", "name", "other"]),
        st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()),
    )
)
def test_any_hints_are_either_checked_or_refused(hints):
    try:
        names = set(check_hints(hints))
    except Fault as fault:
        names = {fault.code}
    assert names in ({"HINTS_INVALID"}, {name for name in hints if hints[name] is not None})
