# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.run_channel import local_channel
from ansible_collections.barewright.metal.plugins.module_utils.state_folder import (
    merge_patch,
    read_record,
    update_record,
)

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=3), JSON, max_size=4)


def has_null(value: object) -> bool:
    if isinstance(value, dict):
        return any(item is None or has_null(item) for item in value.values())
    return False


@given(OBJECTS, OBJECTS)
def test_a_patch_applied_twice_changes_nothing_more(target, patch):
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@given(OBJECTS, OBJECTS)
def test_a_patch_leaves_the_keys_that_it_does_not_name(target, patch):
    merged = merge_patch(target, patch)
    for key in set(target) - set(patch):
        assert merged[key] == target[key]


@given(OBJECTS, OBJECTS)
def test_null_removes_a_key_and_is_never_stored_by_a_patch(target, patch):
    merged = merge_patch({}, patch)
    assert not has_null(merged)
    for key, value in patch.items():
        if value is None:
            assert key not in merge_patch(target, patch)


def test_rfc_7396_table():
    # the rows of appendix A that have objects on both sides
    assert merge_patch({"a": "b"}, {"a": "c"}) == {"a": "c"}
    assert merge_patch({"a": "b"}, {"b": "c"}) == {"a": "b", "b": "c"}
    assert merge_patch({"a": "b", "b": "c"}, {"a": None}) == {"b": "c"}
    assert merge_patch({"a": ["b"]}, {"a": "c"}) == {"a": "c"}
    assert merge_patch({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}) == {"a": {"b": "d"}}
    assert merge_patch({}, {"a": {"bb": {"ccc": None}}}) == {"a": {"bb": {}}}


def test_an_unknown_node_has_an_empty_record(tmp_path):
    assert read_record(tmp_path, "alpha") == {"version": 1, "node": "alpha"}


def test_a_record_survives_the_way_to_the_disk(tmp_path):
    update_record(tmp_path, "alpha", {"phase": "ready", "pxe_macs": ["52:54:00:00:00:01"]})
    before, after = update_record(tmp_path, "alpha", {"phase": "deployed"})
    assert before["phase"] == "ready"
    assert after == read_record(tmp_path, "alpha")
    assert after["pxe_macs"] == ["52:54:00:00:00:01"]


def test_a_damaged_record_is_a_fault_and_stays_as_it_is(tmp_path):
    path = tmp_path / "alpha.yml"
    path.write_text("phase: [", encoding="utf-8")
    with pytest.raises(Fault, match="STATE_UNUSABLE"):
        update_record(tmp_path, "alpha", {"phase": "ready"})
    assert path.read_text(encoding="utf-8") == "phase: ["


def test_a_record_of_another_version_is_a_fault(tmp_path):
    (tmp_path / "alpha.yml").write_text("version: 2\n", encoding="utf-8")
    with pytest.raises(Fault, match="version 1"):
        read_record(tmp_path, "alpha")


@pytest.mark.parametrize("name", ["", "../alpha", "a/b", ".hidden"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path, name):
    with pytest.raises(Fault, match="STATE_UNUSABLE"):
        read_record(tmp_path, name)


def count_up(directory: str, key: str) -> None:
    for number in range(20):
        update_record(directory, "alpha", {key: {str(number): number}})


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    writers = [
        multiprocessing.Process(target=count_up, args=(str(tmp_path), key)) for key in ("a", "b")
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
    record = read_record(tmp_path, "alpha")
    assert len(record["a"]) == len(record["b"]) == 20


def test_an_intent_without_outcome_forbids_to_send_again_after_a_restart(tmp_path):
    local_channel(str(tmp_path), "alpha").intend("reset", "system")
    with pytest.raises(Fault, match="OUTCOME_UNKNOWN"):
        local_channel(str(tmp_path), "alpha").intend("reset", "system")


def test_an_intent_with_an_outcome_may_be_sent_again(tmp_path):
    channel = local_channel(str(tmp_path), "alpha")
    channel.intend("reset", "system")
    channel.outcome("reset", "system", "answered")
    local_channel(str(tmp_path), "alpha").intend("reset", "system")


def test_without_a_state_folder_the_intent_is_remembered_in_the_process(tmp_path):
    channel = local_channel(None, "alpha")
    channel.intend("reset", "system")
    with pytest.raises(Fault, match="OUTCOME_UNKNOWN"):
        channel.intend("reset", "system")
    assert list(Path(tmp_path).iterdir()) == []
