# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Processes, as /proc shows them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since this computer did; None when it does not run.

    Together with the number it means one process for ever, until the next boot of the computer. One
    that has ended and only waits to be reaped runs no more.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the name in parentheses, which may hold anything; state is the third,
    # starttime the 22nd.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def boot_id() -> str:
    """A name for this boot of this computer."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@dataclass(frozen=True)
class ProcessIdentity:
    """One process, never mistaken for a later one with the same number."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The identity of a process that runs now; None when there is none."""
        ticks = start_ticks(pid)
        return None if ticks is None else cls(pid, ticks, boot_id())

    def alive(self) -> bool:
        return ProcessIdentity.of(self.pid) == self

    def end(self, grace_seconds: float) -> None:
        """Ask it to end, kill it after the grace, and return when it is gone.

        Raises:
            PermissionError: it belongs to someone else.
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            # Only after the descriptor is open the number cannot come to mean another process.
            if not self.alive():
                return
            for number, wait_seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, None)):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, number)
                if select.select([descriptor], [], [], wait_seconds)[0]:
                    return
        finally:
            os.close(descriptor)


def in_pid_namespace_of(pid: int) -> Iterator[list[str]]:
    """The command line of every process in the pid namespace that a process lives in."""
    try:
        namespace = os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(entry / "ns/pid").st_ino == namespace:
                    yield (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
