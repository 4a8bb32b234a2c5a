# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The QMP client, against a QEMU without a machine."""

from __future__ import annotations

import queue
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from virtual_rack.programs import QEMU
from virtual_rack.qmp import QmpClient, QmpError

pytestmark = pytest.mark.skipif(shutil.which(QEMU) is None, reason="QEMU is not installed")

Told = queue.SimpleQueue[dict[str, Any] | None]


@contextmanager
def qemu(*options: str) -> Iterator[tuple[QmpClient, Told, subprocess.Popen[bytes]]]:
    """A started client, the events it tells (None is the end), and the process."""
    ours, theirs = socket.socketpair()
    told: Told = queue.SimpleQueue()
    client = QmpClient(ours, on_event=told.put, on_end=lambda: told.put(None))
    with theirs:
        argv = [QEMU, "-machine", "none", "-nodefaults", "-display", "none", *options]
        argv += ["-chardev", f"socket,id=qmp,fd={theirs.fileno()}", "-mon", "qmp,mode=control"]
        process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL)
    try:
        client.start(timeout_seconds=60)
        yield client, told, process
    finally:
        process.kill()
        process.wait()
        client.close()


def test_a_command_has_its_answer_and_an_error_its_text() -> None:
    with qemu() as (client, _, _):
        assert client.execute("query-status")["running"] is True
        with pytest.raises(QmpError, match="no-such-command"):
            client.execute("no-such-command")
        # The connection lives on.
        assert client.execute("query-version")["qemu"]["major"] >= 7


def test_events_and_the_end_are_told_in_order() -> None:
    with qemu() as (client, told, process):
        client.execute("quit")
        event = told.get(timeout=30)
        assert event is not None
        assert event["event"] == "SHUTDOWN"
        assert event["data"]["reason"] == "host-qmp-quit"
        assert told.get(timeout=30) is None
        assert process.wait(timeout=30) == 0
        with pytest.raises(QmpError, match="is gone"):
            client.execute("query-status")


def test_a_killed_qemu_is_an_end_and_no_hang() -> None:
    with qemu() as (client, told, process):
        process.kill()
        assert told.get(timeout=30) is None
        with pytest.raises(QmpError, match="is gone"):
            client.execute("query-status")


def test_a_qemu_that_does_not_start_is_an_error() -> None:
    with pytest.raises(QmpError, match="is gone"), qemu("-device", "no-such-device"):
        pass
