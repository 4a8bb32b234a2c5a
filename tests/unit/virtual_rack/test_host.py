# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""What the rack finds out about the computer that it runs on."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from virtual_rack import accelerator, programs, tap
from virtual_rack.network import advertisement
from virtual_rack.process import ProcessIdentity, boot_id
from virtual_rack.rack import Rack, RackError, create_disk
from virtual_rack.spec import parse_spec


def test_a_process_that_got_the_number_of_a_dead_one_is_another() -> None:
    process = subprocess.Popen(["sleep", "60"])
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    assert identity.alive()
    later = ProcessIdentity(process.pid, identity.start_ticks + 1, identity.boot_id)
    assert not later.alive()
    later.end(grace_seconds=0)
    assert process.poll() is None
    identity.end(grace_seconds=5)
    process.wait()
    assert not identity.alive()


def test_a_process_that_ignores_being_asked_is_killed() -> None:
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    started = time.monotonic()
    identity.end(grace_seconds=0.2)
    assert process.wait() == -9
    assert time.monotonic() - started < 5
    process.stdout.close()


def test_a_stale_record_means_that_no_rack_is_up(tmp_path: Path) -> None:
    rack = Rack(parse_spec({"name": "demo"}), tmp_path)
    ourselves = ProcessIdentity.of(os.getpid())
    assert ourselves is not None
    stale = {"pid": ourselves.pid, "start_ticks": ourselves.start_ticks - 1}
    records: list[object] = [
        {"supervisor": stale | {"boot_id": ourselves.boot_id}},
        {"supervisor": {"pid": 1}},
        {},
        [],
    ]
    for record in records:
        rack.layout.record.write_text(json.dumps(record), encoding="utf-8")
        assert rack.supervisor() is None
        assert rack.status() == []
        with pytest.raises(RackError, match="no rack is up"):
            rack.command(["true"])


def test_a_directory_without_a_rack_says_so(tmp_path: Path) -> None:
    with pytest.raises(RackError, match="no rack was started in"):
        Rack.at(tmp_path)


def test_a_disk_keeps_its_contents_until_its_size_changes(tmp_path: Path) -> None:
    disk = tmp_path / "disks" / "0.raw"
    create_disk(disk, 1024 * 1024)
    with disk.open("r+b") as file:
        file.write(b"contents")
    create_disk(disk, 1024 * 1024)
    assert disk.read_bytes()[:8] == b"contents"
    create_disk(disk, 2 * 1024 * 1024)
    assert disk.stat().st_size == 2 * 1024 * 1024
    assert disk.stat().st_blocks == 0


def test_what_kvm_did_is_believed_for_one_boot_of_the_computer_only(tmp_path: Path) -> None:
    cache, shared = tmp_path / "rack.json", tmp_path / "shared" / "accelerator.json"
    known = {"boot_id": boot_id(), "uid": os.getuid()}
    document = {"key": known, "name": "tcg", "reason": "from the cache"}
    shared.parent.mkdir()
    shared.write_text(json.dumps(document), encoding="utf-8")
    assert accelerator.choose(cache, shared_cache=shared).reason == "from the cache"
    shared.unlink()
    assert accelerator.choose(cache).reason == "from the cache"
    assert accelerator.read(cache).reason == "from the cache"
    document["key"] = known | {"boot_id": "an earlier boot"}
    for file in (cache, shared):
        file.write_text(json.dumps(document), encoding="utf-8")
    found = accelerator.choose(cache, shared_cache=shared)
    assert found.reason != "from the cache"
    assert accelerator.read(cache) == accelerator.read(shared) == found


def test_a_guest_that_does_not_end_in_time_is_killed_and_kvm_not_used() -> None:
    if not os.access(accelerator.KVM_DEVICE, os.R_OK | os.W_OK):
        pytest.skip("there is no KVM that this user may open")
    started = time.monotonic()
    # No guest of 1.5 seconds can do this.
    found = accelerator.probe(limit_seconds=0.5)
    assert found.name == "tcg"
    assert time.monotonic() - started < 6


def test_a_missing_program_is_named_with_its_debian_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "_SYSTEM_DIRECTORIES", ())
    with pytest.raises(programs.MissingProgramError, match="apt-get install iproute2"):
        programs.find("ip")
    assert any("qemu-system-x86" in line for line in programs.missing(machines=True))
    assert not any("qemu" in line for line in programs.missing(machines=False))


def test_programs_of_the_administrator_are_found_without_their_directory_in_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    assert Path(programs.find("ip")).name == "ip"


def test_a_tun_device_that_may_not_be_opened_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tap, "TUN_DEVICE", tmp_path / "tun")
    with pytest.raises(tap.NetworkError, match="modprobe tun"):
        tap.check_tun_device()
    if os.geteuid():
        (tmp_path / "tun").touch(mode=0)
        with pytest.raises(tap.NetworkError, match="chmod 0666"):
            tap.check_tun_device()


def test_the_advertisement_offers_the_prefix_and_no_way_out() -> None:
    message = advertisement(ipaddress.IPv6Network("fd00:77::/64"), "02:77:00:00:00:01")
    assert message[0] == 134
    assert message[6:8] == b"\0\0"  # router lifetime
    options = message[16:]
    assert options[:8] == b"\1\1\2\x77\0\0\0\1"
    assert options[8:12] == bytes([3, 4, 64, 0xC0])
    assert options[24:40] == ipaddress.IPv6Address("fd00:77::").packed
    assert len(message) % 8 == 0
