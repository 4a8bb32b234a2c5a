# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Fixtures: machines that end with their test, a key, a boot server."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.machine.images.guest import BootServer, Guest


@pytest.fixture
def boot_server() -> Iterator[BootServer]:
    """A boot server without answers yet."""
    with BootServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def key(tmp_path: Path) -> str:
    """The public half of the key that the tests log in with."""
    path = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.with_suffix(".pub").read_text().strip()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Guest]]:
    """Starts machines, ends them after the test."""
    guests: list[Guest] = []

    def begin(*arguments: str, user: str = "root", guest_address: str = "") -> Guest:
        guests.append(Guest(tmp_path, arguments, user, guest_address))
        return guests[-1]

    yield begin
    for guest in guests:
        guest.end()
