# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""`python -m virtual_rack.bmc` as the supervisor of a rack starts it."""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
import sys
from pathlib import Path

import sushy
from sushy import auth as sushy_auth

from virtual_rack.bmc.journal import read_journal
from virtual_rack.layout import RackLayout
from virtual_rack.spec import dump_spec, parse_spec
from virtual_rack.testing import free_port
from virtual_rack.tls import prepare

ROOT = Path(__file__).parents[3]


def make_rack(directory: Path, count: int) -> list[int]:
    """A rack of light servers on 127.0.0.1, ready to be started; gives their Redfish ports."""
    ports = [free_port() for _ in range(count)]
    servers = [
        {
            "name": f"light-{port}",
            "kind": "light",
            "bmc": {
                "address": "127.0.0.1",
                "username": "admin",
                "password": "Light-123",
                "redfish_port": port,
                "ipmi_port": port,
            },
            "light": {"boot_seconds": 0.1},
        }
        for port in ports
    ]
    spec = parse_spec({"name": "process", "servers": servers})
    layout = RackLayout(directory)
    layout.directory.mkdir(exist_ok=True)
    layout.spec.write_text(dump_spec(spec))
    address = ipaddress.IPv4Address("127.0.0.1")
    prepare(layout, spec.name, {server.name: address for server in spec.servers})
    return ports


def start(directory: Path, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start it and wait for what it says on the descriptor for being ready."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "virtual_rack.bmc", "--dir", str(directory)]
    command += ["--spec", str(directory / "spec.yml"), "--ready-fd", str(writing), *arguments]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        pass_fds=[writing],
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    with os.fdopen(reading) as ready:
        return process, ready.read()


def test_all_light_bmcs_of_a_rack_are_one_process_that_ends_by_sigterm(tmp_path: Path) -> None:
    ports = make_rack(tmp_path, 3)
    process, said = start(tmp_path, "--light")
    try:
        assert said == "ready\n"
        for port in ports:
            login = sushy_auth.SessionAuth("admin", "Light-123")
            client = sushy.Sushy(
                f"https://127.0.0.1:{port}", auth=login, verify=str(tmp_path / "ca.pem")
            )
            client.get_system().reset_system(sushy.ResetType.ON)
            client._auth.close()
            journal = read_journal(RackLayout(tmp_path).journal(f"light-{port}"))
            assert "power: off→on" in [entry["effect"] for entry in journal]
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=5)
    assert (process.returncode, errors) == (0, "")


def test_a_server_that_is_not_in_the_spec_is_named(tmp_path: Path) -> None:
    make_rack(tmp_path, 1)
    process, said = start(tmp_path, "--server", "nobody")
    _, errors = process.communicate(timeout=10)
    assert (process.returncode, said) == (1, "")
    assert "nobody" in errors
    assert "Traceback" not in errors


def test_an_address_in_use_is_a_clear_failure(tmp_path: Path) -> None:
    make_rack(tmp_path, 1)
    first, said = start(tmp_path, "--light")
    try:
        assert said == "ready\n"
        second, said = start(tmp_path, "--light")
        _, errors = second.communicate(timeout=10)
        assert (second.returncode, said) == (1, "")
        assert "in use" in errors
        assert "Traceback" not in errors
    finally:
        first.terminate()
        first.communicate(timeout=5)
