# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The receiver as a process of its own on 127.0.0.1, without dnsmasq."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).resolve().parents[3] / "roles/boot_server/files/boot_receiver.py"


@dataclass
class ReceiverProcess:
    """Where it is, and what it wrote to its log."""

    root: Path
    port: int
    log_path: Path

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self.log_path.read_text()


@contextlib.contextmanager
def receiver_process(root: Path, base_url: str = "") -> Iterator[ReceiverProcess]:
    """Start the receiver on a free port; a second one on the same root is its restart."""
    root.mkdir(exist_ok=True)
    log_path = root.with_name(f"{root.name}.log")
    port = int(base_url.rpartition(":")[2]) if base_url else free_port()
    with log_path.open("a") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, str(PROGRAM), f"--root={root}", "--listen=127.0.0.1"),
                *(f"--port={port}", f"--base-url=http://127.0.0.1:{port}"),
            ],
            stderr=log,
        )
    try:
        found = ReceiverProcess(root, port, log_path)
        wait_until_it_answers(found, process)
        yield found
    finally:
        process.terminate()
        process.wait(timeout=10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_it_answers(receiver: ReceiverProcess, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            if request(receiver.base_url, "GET", "/boot.ipxe").status == 200:
                return
        except OSError:
            pass
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"the receiver does not answer: {receiver.log()}")
        time.sleep(0.05)


@dataclass
class Answer:
    """An HTTP answer, its body decoded when it is JSON."""

    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def text(self) -> str:
        return self.content.decode()

    @property
    def fault(self) -> str:
        return str(self.json["fault"]["code"])


def request(
    base_url: str,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """One request on a connection of its own; ``body`` is sent as JSON unless it is bytes."""
    match = re.fullmatch(r"http://([^/:]+):(\d+)", base_url)
    assert match
    connection = http.client.HTTPConnection(match[1], int(match[2]), timeout=20)
    try:
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, content, headers or {})
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()
