# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The receiver without HTTP: time, restarts, damaged files. The rest is in the contract test."""

from __future__ import annotations

import base64
import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils import boot
from tests.unit.roles.boot_server.programs import load

receiver_module = load("boot_receiver")

BASE = "http://10.0.0.1:8080"
MAC = "52:54:00:00:00:01"
KEYS = {
    "ssh_host_key": (
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    ),
    "identity_key": (
        "-----BEGIN PUBLIC KEY-----\n"
        "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEYD54V/vp+54P9DXarYqx4MPcm+HK\n"
        "RIQzNasYSoRQHQ/6S6Ps8tpMcT+KvIIC8W/e9k0W7Cm72M1P9jU7SLf/vg==\n"
        "-----END PUBLIC KEY-----\n"
    ),
}


class Clock:
    """Wall clock and monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.wall = datetime.now(UTC)
        self.steady = 1000.0

    def pass_by(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.steady += seconds


class Server:
    """A receiver on a folder, restarted at will."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = Clock()
        self.lines: list[str] = []
        self.start()

    def start(self, **options: Any) -> None:
        self.receiver = receiver_module.Receiver(
            self.root,
            BASE,
            log=self.lines.append,
            now=lambda: self.clock.wall,
            monotonic=lambda: self.clock.steady,
            **options,
        )

    def write(self, node: str, macs: list[str], address: str = "10.0.1.1", **window: Any) -> None:
        """An entry by the very code that module boot_entry runs."""
        options = {"node": node, "macs": macs, "address": address}
        offer = {
            "duration_seconds": 600,
            "kernel": "k",
            "initrd": "i",
            "authorized_keys": ["ssh-ed25519 AAAA"],
            **window,
        }
        request = boot.EntryRequest.of({**options, "window_state": "renewed", "window": offer})
        entry = boot.plan(None, request, {}, self.clock.wall)
        assert entry is not None
        boot.BootFolder(self.root).write(entry)

    def token(self, mac: str = MAC) -> str:
        found = re.search(r"barewright\.token=(\S+)", self.receiver.boot_script(mac))
        assert found
        return found[1]

    def check_in(self, token: str) -> Any:
        body = {"token": token, "macs": [MAC], "boot_mode": "bios", "addresses": [], **KEYS}
        return self.receiver.check_in(body, "10.0.1.1")

    def gate(self) -> Any:
        self.receiver.refresh()
        return json.loads((self.root / "run/gate.json").read_text())


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "boot")


def refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(receiver_module.Refused) as refused:
        call(*arguments)
    return str(refused.value.code)


def test_entry_of_the_module_is_understood(server: Server) -> None:
    server.write("alpha", [MAC])
    gate = server.gate()
    assert gate["dhcp"] == "unmanaged"
    assert gate["entries"]["alpha"]["open"] is True
    hosts = (server.root / "dhcp/hosts").read_text()
    assert hosts == f"{MAC},id:*,set:open,set:node-alpha,10.0.1.1\n"
    assert os.readlink(server.root / "tftp/10.0.1.1") == "../loaders"


def test_window_ends_by_the_steady_clock_when_the_wall_clock_is_set_back(server: Server) -> None:
    server.write("alpha", [MAC])
    token = server.token()
    server.clock.wall -= timedelta(hours=3)
    server.clock.steady += 601
    assert refusal(server.receiver.boot_script, MAC) == "BOOT_NOT_OPEN"
    assert refusal(server.check_in, token) == "BOOT_TOKEN_INVALID"


def test_window_ends_by_the_wall_clock_after_a_restart(server: Server) -> None:
    server.write("alpha", [MAC])
    token = server.token()
    server.clock.pass_by(599)
    server.start()
    assert server.gate()["entries"]["alpha"]["open"] is True
    server.clock.pass_by(2)
    assert server.gate()["entries"]["alpha"]["open"] is False
    assert refusal(server.check_in, token) == "BOOT_TOKEN_INVALID"


def test_entry_with_a_window_longer_than_ten_minutes_is_unusable(server: Server) -> None:
    server.write("alpha", [MAC])
    path = server.root / "entries/alpha.json"
    entry = json.loads(path.read_text())
    entry["window"]["expires_at"] = boot.timestamp(server.clock.wall + timedelta(seconds=700))
    path.write_text(json.dumps(entry))
    assert refusal(server.receiver.boot_script, MAC) == "BOOT_NOT_OPEN"
    assert any("longer than 600 s" in line for line in server.lines)


def test_token_and_check_in_survive_a_restart(server: Server) -> None:
    server.write("alpha", [MAC])
    token = server.token()
    server.start()
    first = server.check_in(token)
    server.start()
    assert server.check_in(token) == first
    assert len(list((server.root / "spool/checkin/alpha").iterdir())) == 1


def test_reuse_of_a_token_survives_a_restart(server: Server) -> None:
    server.write("alpha", [MAC])
    token = server.token()
    server.check_in(token)
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    body = {"token": token, "macs": [MAC], "boot_mode": "bios", "addresses": []}
    changed = {**body, **KEYS, "ssh_host_key": other}
    assert refusal(server.receiver.check_in, changed, "10.0.1.9") == "BOOT_TOKEN_REUSED"
    server.start()
    assert refusal(server.check_in, token) == "BOOT_TOKEN_REUSED"
    assert server.gate()["entries"]["alpha"]["open"] is False


def test_mac_of_two_entries_matches_none_of_them(server: Server) -> None:
    server.write("alpha", [MAC, "52:54:00:00:00:02"])
    server.write("beta", [MAC], address="10.0.1.2")
    assert refusal(server.receiver.boot_script, MAC) == "BOOT_NOT_OPEN"
    assert "bwt_" in server.receiver.boot_script("52:54:00:00:00:02")
    assert (server.root / "dhcp/hosts").read_text().count(MAC) == 0
    assert any("alpha, beta" in line for line in server.lines)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'{"node": "beta", "macs": []}',
        b'{"node": "alpha", "macs": [""]}',
        b'{"node": "alpha", "macs": ["52:54:00:00:00:01"], "window": {"window_id": "x"}}',
        b'{"node": "alpha", "macs": ["52:54:00:00:00:01"], "address": "nowhere"}',
    ],
)
def test_damaged_entry_matches_nothing_and_harms_no_other(server: Server, content: bytes) -> None:
    server.write("beta", ["52:54:00:00:00:02"])
    (server.root / "entries/alpha.json").write_bytes(content)
    assert refusal(server.receiver.boot_script, MAC) == "BOOT_NOT_OPEN"
    assert "bwt_" in server.receiver.boot_script("52:54:00:00:00:02")
    assert server.gate()["entries"]["alpha"]["open"] is False


def test_damaged_state_voids_the_token_only(server: Server) -> None:
    server.write("alpha", [MAC])
    token = server.token()
    (server.root / "state/alpha.json").write_text("{")
    server.start()
    assert refusal(server.check_in, token) == "BOOT_TOKEN_INVALID"
    assert server.check_in(server.token())["node"] == "alpha"


def test_change_within_one_tick_of_the_file_system_s_clock_is_seen(server: Server) -> None:
    server.write("alpha", [MAC])
    assert server.gate()["entries"]["alpha"]["open"] is True
    folder = server.root / "entries"
    before = folder.stat()
    (folder / "alpha.json").unlink()
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert server.gate()["entries"] == {}


def test_spool_keeps_the_newest_events_only(server: Server) -> None:
    server.write("alpha", [MAC])
    for number in range(receiver_module.EVENTS_KEPT + 5):
        server.clock.pass_by(0.001)
        server.receiver.work_ended({"node": "alpha", "operation_id": f"o{number}"}, "10.0.1.1")
    kept = boot.BootFolder(server.root).events("work_ended", "alpha")
    assert len(kept) == receiver_module.EVENTS_KEPT
    assert kept[-1]["operation_id"] == f"o{receiver_module.EVENTS_KEPT + 4}"


def test_link_out_of_the_folder_is_not_served(server: Server, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (server.root / "files/out").symlink_to(tmp_path / "secret")
    (server.root / "files/in").write_text("y")
    (server.root / "files/link").symlink_to("in")
    assert refusal(server.receiver.file, "out") == "FILE_NOT_FOUND"
    assert server.receiver.file("link").read_text() == "y"


def test_loader_is_behind_the_gate_too(server: Server) -> None:
    (server.root / "loaders/snponly.efi").write_bytes(b"MZ")
    server.write("alpha", [MAC])
    assert server.receiver.loader("alpha", "snponly.efi").read_bytes() == b"MZ"
    assert refusal(server.receiver.loader, "alpha", "none.efi") == "BOOT_NOT_OPEN"
    assert refusal(server.receiver.loader, "alpha", "..") == "BOOT_NOT_OPEN"
    server.clock.pass_by(601)
    assert refusal(server.receiver.loader, "alpha", "snponly.efi") == "BOOT_NOT_OPEN"


def test_gate_says_when_the_dhcp_server_that_it_steers_is_missing(server: Server) -> None:
    server.start(dnsmasq_pid_file=server.root / "run/dnsmasq.pid")
    assert server.gate()["dhcp"] == "not running"
    # A pid that another program has by now is not the DHCP server.
    (server.root / "run/dnsmasq.pid").write_text(f"{os.getpid()}\n")
    assert server.gate()["dhcp"] == "not running"


@given(st.binary(max_size=40), st.text(max_size=20))
def test_no_token_survives_redaction(token: bytes, around: str) -> None:
    secret = "bwt_" + base64.urlsafe_b64encode(token + b"0123456789").decode().rstrip("=")
    for text in (
        f"{around} {secret} {around}",
        f"console=x barewright.token={secret} BOOTIF=1",
        f'{{"token": "{secret}"}}',
    ):
        assert secret not in receiver_module.redact(text)


@given(st.text(max_size=30), st.integers(0, 100))
def test_any_range_header_gives_a_range_within_the_file_or_none(header: str, size: int) -> None:
    check_range(header, size)


@given(st.integers(0, 120), st.integers(0, 120), st.integers(0, 100))
def test_range_is_what_was_asked_for(first: int, last: int, size: int) -> None:
    check_range(f"bytes={first}-{last}", size)
    check_range(f"bytes={first}-", size)
    check_range(f"bytes=-{last}", size)


def check_range(header: str, size: int) -> None:
    try:
        found = receiver_module.parse_range(header, size)
    except receiver_module.Refused:
        return
    if found is not None:
        first, last = found
        assert 0 <= first <= last < size


@given(st.text(max_size=40))
def test_mac_addresses_are_normal_or_none(text: str) -> None:
    mac = receiver_module.normal_mac(text)
    assert mac is None or re.fullmatch(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", mac)
