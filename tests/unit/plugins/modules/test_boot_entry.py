# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Module boot_entry on a folder whose receiver is played by the gate report that it would write."""

from __future__ import annotations

import hashlib
import json
import threading

import pytest
import yaml

from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.modules import boot_entry, boot_wait

OFFER = {
    "duration_seconds": 600,
    "kernel": "ramdisk/vmlinuz",
    "initrd": "ramdisk/initrd.img",
    "command_line": "",
    "authorized_keys": ["ssh-ed25519 AAAA test"],
}


@pytest.fixture
def root(tmp_path):
    for name in ("entries", "run", "spool"):
        (tmp_path / name).mkdir()
    ended = threading.Event()

    def follow():
        while not ended.wait(0.02):
            entries = {}
            for path in (tmp_path / "entries").glob("[!.]*.json"):
                content = path.read_bytes()
                window = json.loads(content)["window"]
                entries[path.stem] = {
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "open": bool(window and not window["closed_at"]),
                }
            new = tmp_path / "run/.gate"
            new.write_text(json.dumps({"dhcp": "unmanaged", "entries": entries}))
            new.replace(tmp_path / "run/gate.json")

    follower = threading.Thread(target=follow)
    follower.start()
    yield tmp_path
    ended.set()
    follower.join()


def run(root, check=False, **options):
    defaults = dict.fromkeys(boot_entry.ARGUMENTS)
    options = {"state": "present", "timeout_seconds": 10, "node": "alpha", **options}
    return boot_entry.ensure_entry({**defaults, "root": str(root), **options}, check)


def test_second_call_changes_nothing(root):
    options = {"macs": ["52:54:00:00:00:01"], "address": "10.0.0.1"}
    options |= {"window_state": "open", "window": OFFER}
    first = run(root, **options)
    assert first["changed"]
    assert first["diff"]["before"] == {}
    assert first["window_id"] == first["entry"]["window"]["window_id"]
    second = run(root, **options)
    assert (second["changed"], second["window_id"]) == (False, first["window_id"])
    closed = run(root, window_state="closed")
    assert closed["changed"]
    assert closed["window_id"] == first["window_id"]
    assert not run(root, window_state="closed")["changed"]
    assert run(root, state="absent")["changed"]
    assert not run(root, state="absent")["changed"]
    assert not run(root, window_state="closed")["changed"]


def test_check_mode_returns_the_plan_and_writes_nothing(root):
    planned = run(root, True, macs=["52:54:00:00:00:01"], address="10.0.0.1")
    assert planned["changed"]
    assert planned["diff"]["after"] == planned["entry"]
    assert not (root / "entries/alpha.json").exists()
    real = run(root, macs=["52:54:00:00:00:01"], address="10.0.0.1")
    assert real["entry"] == planned["entry"]
    assert run(root, True, state="absent")["changed"]
    assert (root / "entries/alpha.json").exists()


def test_conflict_leaves_both_entries_as_they_were(root):
    run(root, macs=["52:54:00:00:00:01"], address="10.0.0.1")
    with pytest.raises(Fault) as raised:
        run(root, node="beta", macs=["52:54:00:00:00:01"], address="10.0.0.2")
    assert raised.value.code == "BOOT_MAC_CONFLICT"
    assert raised.value.details == {"macs": ["52:54:00:00:00:01"], "node": "alpha"}
    assert not (root / "entries/beta.json").exists()


def test_documented_options_are_those_that_are_taken():
    for module in (boot_entry, boot_wait):
        documented = yaml.safe_load(module.DOCUMENTATION)["options"]
        assert documented.keys() == module.ARGUMENTS.keys()
        for name, option in module.ARGUMENTS.items():
            for key in ("type", "default", "choices", "required", "elements"):
                assert documented[name].get(key) == option.get(key), (name, key)


def wait(root, check=False, **options):
    defaults = dict.fromkeys(boot_wait.ARGUMENTS)
    options = {"node": "alpha", "timeout_seconds": 0, **options}
    return boot_wait.wait_for_event({**defaults, "root": str(root), **options}, check)


def test_looking_once_says_that_nothing_arrived_and_what_time_it_is(root):
    looked = wait(root, kind="rejoin")
    assert (looked["changed"], looked["arrived"], looked["event"]) == (False, False, None)
    folder = root / "spool/rejoin/alpha"
    folder.mkdir(parents=True)
    event = {"received_at": looked["now"], "boot_id": "b", "deploy_id": "d"}
    (folder / "1.json").write_text(json.dumps(event))
    assert wait(root, kind="rejoin")["event"] == event
    # "After" is meant strictly: this one was there when the clock was read.
    assert not wait(root, kind="rejoin", after=looked["now"])["arrived"]


def test_check_mode_never_waits(root):
    assert not wait(root, True, kind="checkin", timeout_seconds=600)["arrived"]
