# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Boot entries: what is planned from what, and what is refused."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils import boot
from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
OFFER = {
    "duration_seconds": 600,
    "kernel": "ramdisk/vmlinuz",
    "initrd": "ramdisk/initrd.img",
    "command_line": "console=ttyS0",
    "authorized_keys": ["ssh-ed25519 AAAA test"],
}
NODE = {"node": "alpha", "macs": ["52:54:00:00:00:01"], "address": "10.0.0.1"}


def planned(current=None, others=None, now=NOW, **options):
    request = boot.EntryRequest.of({"node": "alpha", **options})
    return boot.plan(current, request, others or {}, now)


def opened(now=NOW, **options):
    return planned(**{**NODE, "window_state": "open", "window": OFFER, **options}, now=now)


def fault_of(call, *arguments, **options):
    with pytest.raises(Fault) as raised:
        call(*arguments, **options)
    return raised.value.code


def test_new_entry_has_its_cards_in_one_spelling_and_no_window():
    entry = planned(macs=["52-54-00-AA-00-01", "52:54:00:aa:00:01"], address="10.0.0.1")
    assert entry == {
        "version": 1,
        "node": "alpha",
        "macs": ["52:54:00:aa:00:01"],
        "address": "10.0.0.1",
        "rejoin_token_sha256": None,
        "window": None,
    }


def test_what_is_not_named_stays_and_what_is_empty_goes():
    entry = planned(**NODE, rejoin_token_sha256="a" * 64)
    assert planned(entry) == entry
    assert planned(entry, rejoin_token_sha256="")["rejoin_token_sha256"] is None
    assert planned(entry, address="")["address"] is None


def test_entry_needs_a_card():
    assert fault_of(planned, address="10.0.0.1") == "INVALID_INPUT"
    assert fault_of(planned, rejoin_token_sha256="a" * 64) == "INVALID_INPUT"
    assert fault_of(planned, macs=[""]) == "INVALID_INPUT"


def test_closing_what_is_not_there_is_nothing():
    assert planned(window_state="closed") is None
    entry = planned(**NODE)
    assert planned(entry, window_state="closed") == entry


def test_open_keeps_a_window_that_offers_the_same():
    entry = opened()
    again = planned(entry, now=NOW + timedelta(seconds=300), window_state="open", window=OFFER)
    assert again == entry


@pytest.mark.parametrize(
    ("seconds", "change"),
    [(601, {}), (10, {"command_line": "other"}), (10, {"duration_seconds": 300})],
)
def test_open_renews_a_window_that_is_over_or_offers_something_else(seconds, change):
    entry = opened()
    later = NOW + timedelta(seconds=seconds)
    again = planned(entry, now=later, window_state="open", window={**OFFER, **change})
    assert again["window"]["window_id"] != entry["window"]["window_id"]
    assert again["window"]["opened_at"] == boot.timestamp(later)


def test_renewed_is_always_a_new_window():
    entry = opened()
    again = planned(entry, window_state="renewed", window=OFFER)
    assert again["window"]["window_id"] != entry["window"]["window_id"]


def test_closed_window_stays_closed_and_a_past_one_needs_no_closing():
    closed = planned(opened(), window_state="closed")
    assert closed["window"]["closed_at"] == "2026-01-31T12:00:00Z"
    assert planned(closed, window_state="closed", now=NOW + timedelta(seconds=5)) == closed
    past = opened()
    assert planned(past, window_state="closed", now=NOW + timedelta(hours=1)) == past


def test_window_needs_an_address():
    assert fault_of(opened, address=None) == "INVALID_INPUT"


def test_card_and_address_of_another_node_are_refused():
    other = {"beta": planned(node="beta", macs=NODE["macs"], address="10.0.0.2")}
    assert fault_of(planned, None, other, **NODE) == "BOOT_MAC_CONFLICT"
    other = {"beta": planned(node="beta", macs=["52:54:00:00:00:02"], address="10.0.0.1")}
    assert fault_of(planned, None, other, **NODE) == "BOOT_ADDRESS_CONFLICT"


@pytest.mark.parametrize(
    "change",
    [
        {"duration_seconds": 601},
        {"duration_seconds": 0},
        {"kernel": ""},
        {"kernel": "../etc/passwd"},
        {"kernel": "/absolute"},
        {"kernel": "a b"},
        {"initrd": "ftp://x/y"},
        {"command_line": "a\nb"},
        {"command_line": "a || b"},
        {"command_line": "${net0/mac}"},
        {"command_line": "ümlaut"},
        {"command_line": "x barewright.token=y"},
        {"command_line": "BOOTIF=1"},
        {"authorized_keys": []},
        {"authorized_keys": ["no key"]},
        {"authorized_keys": ["ssh-ed25519 AAAA\nssh-ed25519 BBBB"]},
    ],
)
def test_window_that_could_not_be_served_safely_is_refused(change):
    assert fault_of(opened, window={**OFFER, **change}) == "INVALID_INPUT"


@pytest.mark.parametrize("node", ["", "a/b", "..", "-a", "a_b", "a" * 64, "a..b", "é"])
def test_node_name_must_be_one(node):
    assert fault_of(boot.check_node, node) == "INVALID_INPUT"


@pytest.mark.parametrize("node", ["a", "Alpha", "db-1.example.com", "0"])
def test_usual_node_names_are_taken(node):
    assert boot.check_node(node) == node


@given(st.text(max_size=40))
def test_mac_address_is_normal_or_refused(text):
    try:
        mac = boot.normal_mac(text)
    except Fault:
        return
    assert boot.normal_mac(mac.upper().replace(":", "-")) == mac


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(2000, 1, 1)))
def test_times_come_back_as_they_were_written(moment):
    assert boot.parse_timestamp(boot.timestamp(moment)) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-31T12:00:00"])
def test_time_without_a_zone_is_refused(text):
    assert fault_of(boot.parse_timestamp, text) == "INVALID_INPUT"


@pytest.fixture
def folder(tmp_path):
    for name in ("entries", "run", "spool"):
        (tmp_path / name).mkdir()
    return boot.BootFolder(tmp_path)


def spool(folder, kind, name, **event):
    target = folder.root / "spool" / kind / "alpha"
    target.mkdir(parents=True, exist_ok=True)
    received = event.pop("received_at", "2026-01-31T12:00:00.5Z")
    (target / f"{name}.json").write_text(json.dumps({"received_at": received, **event}))


def test_folder_that_is_no_boot_server_is_named(tmp_path):
    assert fault_of(boot.BootFolder, tmp_path) == "BOOT_SERVER_DOWN"


def test_entries_that_cannot_be_read_are_left_out(folder):
    folder.write(opened())
    (folder.root / "entries/beta.json").write_text("{")
    (folder.root / "entries/gamma.json").write_text('{"version": 9, "node": "gamma"}')
    assert list(folder.entries()) == ["alpha"]
    folder.remove("alpha")
    folder.remove("alpha")
    assert folder.entries() == {}


def report(folder, entry, **changes):
    import hashlib

    digest = hashlib.sha256((folder.root / "entries/alpha.json").read_bytes()).hexdigest()
    about = {"sha256": digest, "window_id": entry["window"]["window_id"], "open": True, **changes}
    dhcp = about.pop("dhcp", "running")
    (folder.root / "run/gate.json").write_text(
        json.dumps({"dhcp": dhcp, "entries": {"alpha": about}})
    )


@pytest.mark.parametrize(
    "changes", [{"sha256": "0"}, {"open": False}, {"dhcp": "not running"}, {"dhcp": "restarting"}]
)
def test_gate_that_does_not_follow_is_a_boot_server_that_is_down(folder, changes):
    entry = opened()
    folder.write(entry)
    report(folder, entry, **changes)
    assert fault_of(folder.await_gate, "alpha", entry, True, Deadline(0)) == "BOOT_SERVER_DOWN"


@pytest.mark.parametrize("dhcp", ["running", "unmanaged"])
def test_gate_that_follows_is_taken(folder, dhcp):
    entry = opened()
    folder.write(entry)
    report(folder, entry, dhcp=dhcp)
    folder.await_gate("alpha", entry, True, Deadline(0))
    assert fault_of(folder.await_gate, "alpha", None, False, Deadline(0)) == "BOOT_SERVER_DOWN"


def test_newest_event_that_fits_is_found(folder):
    spool(folder, "checkin", "1", window_id="w1")
    spool(folder, "checkin", "2", window_id="w2", received_at="2026-01-31T12:00:01Z")
    wanted = boot.EventFilter("alpha", "checkin", window_id="w1")
    assert boot.await_event(folder, wanted, 0)["window_id"] == "w1"
    assert boot.await_event(folder, boot.EventFilter("alpha", "checkin"), 0)["window_id"] == "w2"
    late = boot.EventFilter("alpha", "checkin", after=NOW + timedelta(seconds=1))
    assert boot.await_event(folder, late, 0) is None


def test_second_key_for_the_awaited_window_is_a_fault(folder):
    spool(folder, "checkin", "1", window_id="w1")
    spool(folder, "token_reused", "1", window_id="w1", remote_address="10.0.0.9", macs=[])
    assert (
        fault_of(boot.await_event, folder, boot.EventFilter("alpha", "checkin", window_id="w1"), 5)
        == "BOOT_TOKEN_REUSED"
    )
    other = boot.EventFilter("alpha", "checkin", window_id="w2")
    assert boot.await_event(folder, other, 0) is None


def test_waiting_ends_with_the_event_or_with_the_time(folder):
    wanted = boot.EventFilter("alpha", "rejoin", deploy_id="d1")
    began = time.monotonic()
    assert fault_of(boot.await_event, folder, wanted, 0.3) == "BOOT_TIMEOUT"
    assert time.monotonic() - began < 3
    threading.Timer(0.3, spool, (folder, "rejoin", "1"), {"deploy_id": "d1"}).start()
    assert boot.await_event(folder, wanted, 20)["deploy_id"] == "d1"
