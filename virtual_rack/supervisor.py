# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Process number 1 of a rack's namespaces, which live and die with it.

`virtual_rack.rack` starts it by unshare(1) as

    python -m virtual_rack.supervisor --dir DIR --control-fd N --lock-fd N [--parent-fd N]

Over the control socket it reports `{"ready": true}` or `{"error": …}`. Until it is answered by
`release` it ends when the socket is closed, so that a starter that is killed leaves nothing behind.
`--parent-fd` is a pidfd: the rack ends when that process does. The lock file stays locked as long
as the descriptor is open, that is, as long as this process lives.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from virtual_rack import network
from virtual_rack.layout import RackLayout
from virtual_rack.programs import MissingProgramError, find
from virtual_rack.spec import RackSpec, load_spec
from virtual_rack.tap import NetworkError

_START_LIMIT_SECONDS = 120.0
_STOP_LIMIT_SECONDS = 8.0


class _StartError(Exception):
    """The rack cannot be built; the message goes to whoever started it."""


class Supervisor:
    """Builds the network, starts the BMCs, reaps what dies, and ends everything in the end."""

    def __init__(
        self, layout: RackLayout, control: socket.socket, parent_descriptor: int | None
    ) -> None:
        self._layout = layout
        self._spec: RackSpec = load_spec(layout.spec)
        self._control = control
        self._children: dict[int, str] = {}
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: None)
        self._selector.register(wake_read, selectors.EVENT_READ, self._on_signals)
        self._selector.register(control, selectors.EVENT_READ, self._on_control)
        if parent_descriptor is not None:
            self._selector.register(parent_descriptor, selectors.EVENT_READ, self._on_parent_end)

    def run(self) -> int:
        try:
            self._build()
        except (_StartError, OSError) as error:
            self._report({"error": str(error)})
            self._end_everything()
            return 1
        self._report({"ready": True})
        while not self._stopping:
            self._wait(None)
        self._end_everything()
        return 0

    def _build(self) -> None:
        _show_own_network_in_sysfs()
        try:
            network.build(self._spec)
            network.Advertiser(self._spec.network).start()
        except (NetworkError, OSError, MissingProgramError) as error:
            raise _StartError(f"the network could not be built: {error}") from error
        waiting = {}
        for server in self._spec.of_kind("machine"):
            log = self._layout.bmc_log(server.name)
            waiting[self._start_bmc(["--server", server.name], log, f"BMC {server.name}")] = log
        if self._spec.of_kind("light"):
            log = self._layout.light_log
            waiting[self._start_bmc(["--light"], log, "BMC of light machines")] = log
        deadline = time.monotonic() + _START_LIMIT_SECONDS
        for descriptor, log in waiting.items():
            self._wait_until_ready(descriptor, log, deadline)

    def _start_bmc(self, arguments: list[str], log: Path, name: str) -> int:
        """Start a BMC process; its descriptor is readable once it is ready or has ended."""
        ready, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        argv = [sys.executable, "-m", "virtual_rack.bmc", *arguments]
        argv += ["--spec", str(self._layout.spec), "--dir", str(self._layout.directory)]
        argv += ["--ready-fd", str(theirs)]
        with log.open("wb") as file:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, pass_fds=[theirs]
            )
        os.close(theirs)
        self._children[child.pid] = name
        # Whoever dies is reaped here by number, not by its object.
        child.returncode = 0
        return ready

    def _wait_until_ready(self, descriptor: int, log: Path, deadline: float) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, lambda _descriptor: None)
        while True:
            with contextlib.suppress(BlockingIOError):
                said = os.read(descriptor, 64)
                break
            if self._stopping:
                raise _StartError("told to stop before it was up")
            if time.monotonic() > deadline:
                raise _StartError(f"a BMC was not ready in {_START_LIMIT_SECONDS:g} s; see {log}")
            self._wait(deadline - time.monotonic())
        self._selector.unregister(descriptor)
        os.close(descriptor)
        if said.strip() != b"ready":
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise _StartError(f"a BMC ended at once; see {log}: {lines[-1] if lines else ''}")

    def _wait(self, timeout_seconds: float | None) -> None:
        for key, _ in self._selector.select(timeout_seconds):
            key.data(key.fd)

    def _on_signals(self, descriptor: int) -> None:
        numbers = os.read(descriptor, 4096)
        self._reap()
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            self._stopping = True

    def _on_control(self, _descriptor: int) -> None:
        try:
            said = self._control.recv(64)
        except OSError:
            said = b""
        self._selector.unregister(self._control)
        if said.strip() == b"release":
            self._control.close()
        else:
            self._stopping = True

    def _on_parent_end(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        print("the parent process has ended", file=sys.stderr)
        self._stopping = True

    def _reap(self) -> None:
        """Take leave of every process that ended: as number 1 all orphans are ours."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            name = self._children.pop(pid, None)
            if name and not self._stopping:
                code = os.waitstatus_to_exitcode(status)
                print(f"{name} has ended with code {code}", file=sys.stderr, flush=True)

    def _report(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def _end_everything(self) -> None:
        self._stopping = True
        deadline = time.monotonic() + _STOP_LIMIT_SECONDS
        # The BMCs first: they end their machines themselves, and journal no machine that died.
        for pid in list(self._children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        while self._children and time.monotonic() < deadline:
            time.sleep(0.02)
            self._reap()
        # All but ourselves; what does not obey in time is killed by the kernel when we end.
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGTERM)
        while _somebody_is_left() and time.monotonic() < deadline:
            time.sleep(0.02)
            self._reap()
        self._layout.record.unlink(missing_ok=True)


def _somebody_is_left() -> bool:
    try:
        os.kill(-1, 0)
    except ProcessLookupError:
        return False
    return True


def _show_own_network_in_sysfs() -> None:
    """Let /sys/class/net show the interfaces of the rack instead of the computer's.

    Where the kernel forbids it (a user namespace in a container that hides parts of /sys) nothing
    that the rack itself needs is lost.
    """
    result = subprocess.run(
        [find("mount"), "-t", "sysfs", "-o", "nosuid,nodev,noexec", "sysfs", "/sys"],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        print(f"/sys keeps showing the outer network: {result.stderr.strip()}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--parent-fd", type=int)
    arguments = parser.parse_args()
    for descriptor in (arguments.control_fd, arguments.lock_fd, arguments.parent_fd):
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
    # Whoever started this may have had signals blocked.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    control = socket.socket(fileno=arguments.control_fd)
    return Supervisor(RackLayout(arguments.dir), control, arguments.parent_fd).run()


if __name__ == "__main__":
    sys.exit(main())
