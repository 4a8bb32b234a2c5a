# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Light machines against the receiver that role boot_server ships."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from virtual_rack.bmc.state import PowerAction
from virtual_rack.testing import LightBmc, free_port, light_bmc, wait_until

RECEIVER = Path(__file__).parents[3] / "roles/boot_server/files/boot_receiver.py"


def write_entry(root: Path, light: LightBmc, *, window: bool) -> None:
    now = datetime.now(UTC)
    entry: dict[str, Any] = {
        "node": "light",
        "macs": [light.machine.hardware().nics[1].mac],
        "address": None,
        "rejoin_token_sha256": None,
        "window": None,
    }
    if window:
        entry["window"] = {
            "window_id": "window-1",
            "opened_at": now.isoformat(),
            "expires_at": (now + timedelta(seconds=60)).isoformat(),
            "closed_at": None,
            "kernel": "vmlinuz",
            "initrd": "initrd",
            "command_line": "quiet",
            "authorized_keys": ["ssh-ed25519 AAAA"],
        }
    (root / "entries" / "light.json").write_text(json.dumps(entry))


@contextlib.contextmanager
def receiver(root: Path) -> Iterator[str]:
    for name in ("entries", "files", "loaders", "state", "spool", "run"):
        (root / name).mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = ["--root", str(root), "--listen", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen([sys.executable, RECEIVER, *arguments, "--base-url", url])
    try:

        def answers() -> bool:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/boot.ipxe"):
                return True
            return False

        wait_until(answers, "the receiver")
        yield url
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[LightBmc, Path]]:
    root = tmp_path / "boot"
    with receiver(root) as url, light_bmc(light={"boot_server": url}) as light:
        yield light, root


def boot_from_network(light: LightBmc) -> None:
    light.bmc.set_boot("pxe", "once", "uefi")
    light.bmc.power(PowerAction.CYCLE if light.bmc.power_state() == "on" else PowerAction.ON)


def test_a_light_machine_checks_in(site: tuple[LightBmc, Path]) -> None:
    light, root = site
    write_entry(root, light, window=True)
    boot_from_network(light)
    boot = light.machine.wait_for_boot("checked_in", "refused", "disk")
    assert (boot.stage, boot.status) == ("checked_in", 200), boot
    assert boot.answer == {
        "node": "light",
        "window_id": "window-1",
        "authorized_keys": ["ssh-ed25519 AAAA"],
    }
    (event,) = (root / "spool/checkin/light").glob("*.json")
    spooled = json.loads(event.read_text())
    assert boot.checkin is not None
    assert spooled["ssh_host_key"] == boot.checkin["ssh_host_key"]
    assert spooled["product_uuid"] == light.machine.hardware().uuid


def test_without_an_open_window_it_goes_on_to_its_disk(site: tuple[LightBmc, Path]) -> None:
    light, root = site
    write_entry(root, light, window=False)
    boot_from_network(light)
    light.machine.wait_for_boot("disk")


def test_a_token_that_a_later_boot_voided_is_refused(site: tuple[LightBmc, Path]) -> None:
    light, root = site
    write_entry(root, light, window=True)
    boot_from_network(light)
    first = light.machine.wait_for_boot("checked_in").checkin
    boot_from_network(light)
    light.machine.wait_for_boot("checked_in", "refused")
    assert first is not None
    request = urllib.request.Request(
        f"{light.machine.light.boot_server}/v1/checkin", json.dumps(first).encode()
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 403
    refused.value.close()
