# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""What the protocol's contract test needs of an implementation, and the receiver as one of them.

An implementation of the protocol is one more class with these methods in BENCHES: the tests in
``test_protocol.py`` then run against it as well.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from ansible_collections.barewright.metal.plugins.module_utils import boot
from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline
from tests.integration.boot.receiver_process import ReceiverProcess, receiver_process

AUTHORIZED_KEY = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl test"
)


class Bench(Protocol):
    """A running implementation. Times are seconds; events are as the documentation lists them."""

    base_url: str

    def know(
        self, node: str, macs: list[str], address: str, rejoin_token: str | None = None
    ) -> None:
        """Enroll a node, its window shut."""

    def open(self, node: str, seconds: int = 600) -> str:
        """Open a new boot window; its id."""

    def close(self, node: str) -> None:
        """Shut the boot window."""

    def events(self, kind: str, node: str) -> list[dict[str, Any]]:
        """What came in, oldest first: checkin, token_reused, rejoin or work_ended."""

    def serve(self, path: str, content: bytes) -> None:
        """Make a file available below /files/."""

    def everything_kept(self) -> str:
        """All that is stored and logged, to look for secrets in."""


class ReceiverBench:
    """The receiver of role boot_server."""

    def __init__(self, process: ReceiverProcess) -> None:
        self._process = process
        self._folder = boot.BootFolder(process.root)
        self.base_url = process.base_url

    def _change(self, node: str, **options: Any) -> dict[str, Any]:
        request = boot.EntryRequest.of({"node": node, **options})
        with self._folder.locked():
            others = self._folder.entries()
            current = others.pop(node, None)
            entry = boot.plan(current, request, others, datetime.now(UTC))
            assert entry is not None
            self._folder.write(entry)
        self._folder.await_gate(node, entry, request.opens, Deadline(10))
        return entry

    def know(
        self, node: str, macs: list[str], address: str, rejoin_token: str | None = None
    ) -> None:
        digest = hashlib.sha256(rejoin_token.encode()).hexdigest() if rejoin_token else None
        self._change(node, macs=macs, address=address, rejoin_token_sha256=digest)

    def open(self, node: str, seconds: int = 600) -> str:
        window = {
            "duration_seconds": seconds,
            "kernel": "ramdisk/vmlinuz",
            "initrd": "ramdisk/initrd.img",
            "command_line": "console=ttyS0",
            "authorized_keys": [AUTHORIZED_KEY],
        }
        entry = self._change(node, window_state="renewed", window=window)
        return str(entry["window"]["window_id"])

    def close(self, node: str) -> None:
        self._change(node, window_state="closed")

    def events(self, kind: str, node: str) -> list[dict[str, Any]]:
        return self._folder.events(kind, node)

    def serve(self, path: str, content: bytes) -> None:
        target = self._process.root / "files" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def everything_kept(self) -> str:
        files = [path for path in self._process.root.rglob("*") if path.is_file()]
        return self._process.log() + "".join(path.read_text(errors="replace") for path in files)


@contextlib.contextmanager
def receiver_bench(directory: Path) -> Iterator[Bench]:
    with receiver_process(directory / "boot") as process:
        yield ReceiverBench(process)


BENCHES: dict[str, Callable[[Path], AbstractContextManager[Bench]]] = {"receiver": receiver_bench}
