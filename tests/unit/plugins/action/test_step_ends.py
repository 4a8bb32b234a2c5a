# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import pytest

from ansible_collections.barewright.metal.plugins.action.node_record import (
    refuse_shared,
    values_at,
)
from ansible_collections.barewright.metal.plugins.action.step_result import failed_outcome
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.state_folder import update_record


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("DEADLINE_EXCEEDED", "retry"),
        ("IMAGE_UNSPECIFIED", "fail"),
        ("PHASE_REFUSED", "fail"),
    ],
)
def test_the_class_of_the_fault_decides_how_the_step_ends(code, outcome):
    ended = failed_outcome("wipe", Fault(code, wanted="w", found="f").to_result())
    assert ended["outcome"] == outcome
    assert ended["code"] == code
    assert "wanted w" in ended["reason"]


def test_a_fault_without_a_cure_gets_the_cure_of_the_table():
    assert failed_outcome("wipe", Fault("PHASE_REFUSED").to_result())["cure"]
    ended = failed_outcome("wipe", Fault("PHASE_REFUSED", cure="do this").to_result())
    assert ended["cure"] == "do this"


def test_a_refused_argument_is_invalid_input_and_named():
    ended = failed_outcome("seed", {"failed": True, "argument_errors": ["missing: image"]})
    assert ended["code"] == "INVALID_INPUT"
    assert "missing: image" in ended["reason"]


def test_a_failure_that_nobody_foresaw_needs_an_operator():
    ended = failed_outcome("seed", {"failed": True, "msg": "boom"})
    assert (ended["code"], ended["class"]) == ("UNEXPECTED", "needs_operator")
    assert "boom" in ended["reason"]


def test_a_failed_loop_ends_with_the_fault_of_its_first_failed_item():
    item = Fault("DEADLINE_EXCEEDED", wanted="off").to_result()
    ended = failed_outcome("wipe", {"failed": True, "results": [{"failed": False}, item]})
    assert ended["code"] == "DEADLINE_EXCEEDED"


def test_a_mac_of_another_node_is_refused(tmp_path):
    update_record(tmp_path, "alpha", {"pxe_macs": ["52:54:00:00:00:01"]})
    with pytest.raises(Fault, match=r"NODE_DUPLICATE.*alpha"):
        refuse_shared(str(tmp_path), "beta", {"pxe_macs": ["52:54:00:00:00:01"]}, ["pxe_macs"])


def test_empty_values_never_match(tmp_path):
    update_record(tmp_path, "alpha", {"serial_number": "", "pxe_macs": []})
    record = {"serial_number": "", "pxe_macs": []}
    refuse_shared(str(tmp_path), "beta", record, ["serial_number", "pxe_macs", "bmc.endpoint"])
    assert values_at({"serial_number": None}, "serial_number") == set()


def test_a_node_does_not_clash_with_itself(tmp_path):
    update_record(tmp_path, "alpha", {"serial_number": "S1"})
    refuse_shared(str(tmp_path), "alpha", {"serial_number": "S1"}, ["serial_number"])
