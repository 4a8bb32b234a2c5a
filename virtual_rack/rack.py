# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A rack from outside: bring it up, look at it, run commands in it, take it down.

    with Rack(load_spec(path), directory) as rack:
        rack.exec(["ipmitool", "-H", "10.77.1.1", …], check=True)

Works the same for root and for an ordinary user; the latter's rack lives in a user namespace too.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import json
import os
import pwd
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from virtual_rack import accelerator, enter, tls
from virtual_rack.layout import RackLayout
from virtual_rack.machine import PowerState
from virtual_rack.process import ProcessIdentity, in_pid_namespace_of
from virtual_rack.programs import find, missing
from virtual_rack.spec import RackSpec, dump_spec, load_spec
from virtual_rack.tap import NetworkError, check_tun_device

RECORD_VERSION = 1
_STOP_GRACE_SECONDS = 12.0
_PACKAGE_ROOT = Path(__file__).resolve().parent.parent


class RackError(Exception):
    """The rack could not be brought up, found or entered; the message says what to do."""


@dataclass(frozen=True)
class ServerStatus:
    """What can be seen of one server from outside; the power of a light machine is not."""

    name: str
    kind: Literal["machine", "light"]
    bmc_address: str
    protocols: tuple[str, ...]
    bmc_running: bool
    power: PowerState | None


class Rack:
    """One rack in one directory.

    As a context manager it is up inside the block and dies with this process, however that ends.
    """

    def __init__(self, spec: RackSpec, directory: Path) -> None:
        self.spec = spec
        self.layout = RackLayout(directory.absolute())
        self._starter: subprocess.Popen[bytes] | None = None

    @classmethod
    def at(cls, directory: Path) -> Rack:
        """The rack that was started in that directory, up or not.

        Raises:
            RackError: none ever was.
            SpecError: what it was started with cannot be read, by this user at least.
        """
        spec = RackLayout(directory.absolute()).spec
        if not spec.exists():
            raise RackError(f"no rack was started in {directory}")
        return cls(load_spec(spec), directory)

    def __enter__(self) -> Self:
        self.up(parent_pid=os.getpid())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.down()

    # Up and down.

    def up(self, *, parent_pid: int | None = None, fresh: bool = False) -> None:
        """Start the rack and return when every BMC answers.

        Disks and firmware variables are kept from the last time, unless `fresh`; a disk whose size
        changed is a new one. With `parent_pid` the rack ends when that process does.

        Raises:
            RackError: it is up already, something is missing, or it did not start.
        """
        check_requirements(machines=bool(self.spec.of_kind("machine")))
        self.layout.directory.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            lock = os.open(self.layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            self._take_lock(lock)
            parent = None
            if parent_pid is not None:
                try:
                    parent = os.pidfd_open(parent_pid)
                except ProcessLookupError:
                    raise RackError(f"there is no process {parent_pid} to live with") from None
                stack.callback(os.close, parent)
            self.layout.record.unlink(missing_ok=True)
            self._prepare(fresh=fresh)
            self._start_supervisor(lock, parent)

    def down(self) -> None:
        """End the rack and everything in it; does nothing when it is not up.

        Raises:
            RackError: it belongs to another user.
        """
        supervisor = self.supervisor()
        if supervisor is not None:
            try:
                supervisor.end(_STOP_GRACE_SECONDS)
            except PermissionError:
                raise RackError(
                    f"the rack in {self.layout.directory} belongs to another user (supervisor "
                    f"{supervisor.pid}); take it down as that one"
                ) from None
        if self._starter is not None:
            self._starter.wait()
            self._starter = None
        self.layout.record.unlink(missing_ok=True)

    def supervisor(self) -> ProcessIdentity | None:
        """The process that holds the rack; None when it is not up, whatever a record says."""
        try:
            record = json.loads(self.layout.record.read_text(encoding="utf-8"))
            identity = ProcessIdentity(**record["supervisor"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return identity if identity.alive() else None

    def _take_lock(self, lock: int) -> None:
        deadline = time.monotonic() + _STOP_GRACE_SECONDS
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            supervisor = self.supervisor()
            if supervisor is not None:
                raise RackError(
                    f"a rack is up in {self.layout.directory} already (supervisor "
                    f"{supervisor.pid}); take it down first: "
                    f"python -m virtual_rack down --dir {self.layout.directory}"
                )
            # One that was told to end, or killed, may need a moment until the last process is gone.
            if time.monotonic() > deadline:
                raise RackError(
                    f"a rack is being started or ended in {self.layout.directory}; try again later"
                )
            time.sleep(0.05)

    def _prepare(self, *, fresh: bool) -> None:
        layout = self.layout
        if fresh:
            shutil.rmtree(layout.directory / "servers", ignore_errors=True)
        # It holds passwords.
        layout.spec.touch(mode=0o600)
        layout.spec.write_text(dump_spec(self.spec), encoding="utf-8")
        for server in self.spec.servers:
            layout.server(server.name).mkdir(parents=True, exist_ok=True)
            if server.kind == "machine":
                for index, disk in enumerate(server.disks):
                    create_disk(layout.disk(server.name, index), disk.size_bytes)
        addresses = {server.name: server.bmc.address for server in self.spec.servers}
        tls.prepare(layout, self.spec.name, addresses)
        if self.spec.of_kind("machine"):
            accelerator.choose(layout.accelerator, shared_cache=accelerator.shared_cache())

    def _start_supervisor(self, lock: int, parent: int | None) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # The kernel then says who sent a message, in our own numbers of processes.
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            argv = [*_unshare(), sys.executable, "-m", "virtual_rack.supervisor"]
            argv += ["--dir", str(self.layout.directory)]
            argv += ["--control-fd", str(theirs.fileno()), "--lock-fd", str(lock)]
            passed = [theirs.fileno(), lock]
            if parent is not None:
                argv += ["--parent-fd", str(parent)]
                passed.append(parent)
            with self.layout.supervisor_log.open("wb") as log:
                self._starter = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.layout.directory,
                    env=_environment(),
                    pass_fds=passed,
                    start_new_session=True,
                )
            theirs.close()
            try:
                self._await_word(ours, self._starter)
                self._await_ready(ours)
                ours.sendall(b"release\n")
            except BaseException:
                # It ends by itself when the socket is closed; nothing may be left when we return.
                ours.close()
                self._starter.wait()
                raise

    def _await_word(self, control: socket.socket, starter: subprocess.Popen[bytes]) -> None:
        # The end of the socket alone does not tell: a helper of unshare that maps subordinate ids
        # holds it too, and stays when unshare itself was refused its namespace.
        while not select.select([control], [], [], 0.2)[0]:
            if starter.poll() is not None and not select.select([control], [], [], 0)[0]:
                raise RackError(
                    f"the rack did not start: {_last_lines(self.layout.supervisor_log)}"
                )

    def _await_ready(self, control: socket.socket) -> None:
        credentials_size = struct.calcsize("3i")
        message, ancillary, _, _ = control.recvmsg(65536, socket.CMSG_SPACE(credentials_size))
        if not message:
            raise RackError(f"the rack did not start: {_last_lines(self.layout.supervisor_log)}")
        said = json.loads(message)
        if "error" in said:
            raise RackError(f"the rack did not start: {said['error']}")
        credentials = array.array("i", ancillary[0][2])
        identity = ProcessIdentity.of(credentials[0])
        if identity is None:
            raise RackError(f"the rack ended at once: {_last_lines(self.layout.supervisor_log)}")
        record = {
            "version": RECORD_VERSION,
            "name": self.spec.name,
            "supervisor": asdict(identity),
            "ca": str(self.layout.ca_certificate),
            "servers": [
                {"name": server.name, "kind": server.kind, "bmc_address": str(server.bmc.address)}
                for server in self.spec.servers
            ],
        }
        partial = self.layout.record.with_suffix(".partial")
        partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        partial.replace(self.layout.record)

    # Running commands.

    def command(self, argv: Sequence[str | os.PathLike[str]]) -> list[str]:
        """The command line that runs a command in the rack, for whoever starts processes itself.

        Raises:
            RackError: the rack is not up.
        """
        supervisor = self.supervisor()
        if supervisor is None:
            raise RackError(f"no rack is up in {self.layout.directory}")
        program = [sys.executable, "-I", "-S", enter.__file__]
        identity = [str(supervisor.pid), str(supervisor.start_ticks)]
        return [*program, *identity, "--", *(os.fspath(argument) for argument in argv)]

    def exec(
        self, argv: Sequence[str | os.PathLike[str]], **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run a command inside the rack to its end; the options are those of `subprocess.run`."""
        return subprocess.run(self.command(argv), **options)

    def popen(
        self, argv: Sequence[str | os.PathLike[str]], **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a command inside the rack; the options are those of `subprocess.Popen`."""
        return subprocess.Popen(self.command(argv), **options)

    # Looking at it.

    def status(self) -> list[ServerStatus]:
        """One entry per server; empty when the rack is not up."""
        supervisor = self.supervisor()
        if supervisor is None:
            return []
        processes = list(in_pid_namespace_of(supervisor.pid))
        bmcs = [argv for argv in processes if "virtual_rack.bmc" in argv]
        light_bmc = any("--light" in argv for argv in bmcs)
        found = []
        for server in self.spec.servers:
            power: PowerState | None = None
            if server.kind == "machine":
                bmc_running = any(_has(argv, "--server", server.name) for argv in bmcs)
                on = any(
                    argv[0].endswith("qemu-system-x86_64") and _has(argv, "-name", server.name)
                    for argv in processes
                )
                power = "on" if on else "off"
            else:
                bmc_running = light_bmc
            found.append(
                ServerStatus(
                    server.name,
                    server.kind,
                    str(server.bmc.address),
                    server.bmc.protocols,
                    bmc_running,
                    power,
                )
            )
        return found

    def journal(self, server: str) -> list[dict[str, Any]]:
        """Every command that the BMC of a server has received, in order."""
        try:
            text = self.layout.journal(self.spec.server(server).name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        # The last line may be one that is being written.
        complete, _, _ = text.rpartition("\n")
        return [json.loads(line) for line in complete.splitlines()]

    def console(self, server: str) -> str:
        """What a machine has written to its serial port, all boots one after the other."""
        try:
            log = self.layout.console_log(self.spec.server(server).name)
            return log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def disk(self, server: str, index: int) -> Path:
        """The raw contents of a disk: to be read any time, written while the machine is off."""
        self.spec.server(server).disks[index]
        return self.layout.disk(server, index)


def check_requirements(*, machines: bool) -> None:
    """See that this computer has what a rack needs; `machines`: one with QEMU machines in it.

    Raises:
        RackError: with one line for each thing to do.
    """
    sentences = missing(machines=machines)
    if machines:
        try:
            check_tun_device()
        except NetworkError as error:
            sentences.append(str(error))
    if os.geteuid() and (limit := _user_namespace_limit()) is not None:
        sentences.append(limit)
    if sentences:
        raise RackError("this computer lacks something:\n  " + "\n  ".join(sentences))


def _user_namespace_limit() -> str | None:
    """Why an ordinary user may not have a user namespace, as far as the kernel's settings tell."""
    for setting, refusing, allowing in (
        ("user.max_user_namespaces", "0", "10000"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ):
        with contextlib.suppress(OSError):  # Not every kernel has each of them.
            file = Path("/proc/sys", setting.replace(".", "/"))
            if file.read_text(encoding="ascii").strip() == refusing:
                return (
                    f"ordinary users may not have user namespaces here ({setting}={refusing}): "
                    f"run as root, or sudo sysctl {setting}={allowing}"
                )
    return None


def create_disk(file: Path, size_bytes: int) -> None:
    """Have a sparse raw file of that size; one of another size is replaced by an empty one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.stat().st_size == size_bytes:
        return
    with file.open("wb") as disk:
        disk.truncate(size_bytes)


def _unshare() -> list[str]:
    argv = [find("unshare"), "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid():
        argv += ["--user", "--map-root-user"]
        if _has_subordinate_ids():
            argv.append("--map-auto")
    return argv


def _has_subordinate_ids() -> bool:
    """Whether more users than one can exist in this user's namespace (Debian's uidmap)."""
    if shutil.which("newuidmap") is None or shutil.which("newgidmap") is None:
        return False
    owners = {str(os.getuid())}
    with contextlib.suppress(KeyError):
        owners.add(pwd.getpwuid(os.getuid()).pw_name)
    for table in ("/etc/subuid", "/etc/subgid"):
        try:
            lines = Path(table).read_text(encoding="utf-8").splitlines()
        except OSError:
            return False
        if not any(line.split(":")[0] in owners for line in lines):
            return False
    return True


def _environment() -> dict[str, str]:
    """This environment, with this package found wherever it was imported from."""
    path = [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _has(argv: Sequence[str], option: str, value: str) -> bool:
    return any(pair == (option, value) for pair in itertools.pairwise(argv))


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "; ".join(lines[-3:]) or f"see {log}"
