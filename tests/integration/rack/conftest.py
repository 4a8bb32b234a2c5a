# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Racks for tests, and what is left of them on this computer."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from virtual_rack.process import in_pid_namespace_of
from virtual_rack.rack import Rack
from virtual_rack.spec import parse_spec

ROOT = Path(__file__).resolve().parents[3]
CREDENTIALS = {"username": "admin", "password": "rack-test-only"}
# A quiet computer with two cores needs a quarter of it.
PATIENCE_SECONDS = 60.0


def spec_document(*, light: int = 0, machines: int = 1) -> dict[str, Any]:
    """A rack of small BIOS machines m0, m1 … with one disk each, and of light ones l0, l1 …"""
    servers: list[dict[str, Any]] = [
        {
            "name": f"m{index}",
            "bmc": {"address": f"10.77.1.{index + 1}", **CREDENTIALS},
            "firmware": "bios",
            "memory_mib": 128,
            "nics": [{"mac": f"52:54:00:77:00:{index + 1:02x}"}],
            "disks": [{"bus": "virtio", "size_mib": 16}],
        }
        for index in range(machines)
    ]
    servers += [
        {
            "name": f"l{index}",
            "kind": "light",
            "bmc": {"address": f"10.77.{2 + index // 250}.{index % 250 + 1}", **CREDENTIALS},
        }
        for index in range(light)
    ]
    return {"name": "test", "servers": servers}


def make_rack(directory: Path, **options: int) -> Rack:
    return Rack(parse_spec(spec_document(**options)), directory)


def power(rack: Rack, server: str, command: str) -> str:
    """What ipmitool's `chassis power …` says."""
    address = str(rack.spec.server(server).bmc.address)
    argv = ["ipmitool", "-I", "lanplus", "-C", "17", "-H", address]
    argv += ["-U", CREDENTIALS["username"], "-P", CREDENTIALS["password"]]
    done = rack.exec(
        [*argv, "chassis", "power", *command.split()],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    return str(done.stdout)


def is_on(rack: Rack, server: str) -> bool:
    return power(rack, server, "status").strip() == "Chassis Power is on"


def wait_until(
    condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)


def process_of(rack: Rack, *words: str) -> int:
    """The number of the one process in the rack whose command line has these words in a row."""
    supervisor = rack.supervisor()
    assert supervisor is not None
    namespace = os.stat(f"/proc/{supervisor.pid}/ns/pid").st_ino
    wanted = "\0".join(words).encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                entry.name.isdigit()
                and os.stat(entry / "ns/pid").st_ino == namespace
                and wanted in (entry / "cmdline").read_bytes()
            ):
                found.append(int(entry.name))
    assert len(found) == 1, f"{words}: {found}"
    return found[0]


class Traces:
    """What a rack may leave on this computer, remembered while it is up."""

    def __init__(self, rack: Rack) -> None:
        supervisor = rack.supervisor()
        assert supervisor is not None
        self._namespaces = {
            os.stat(f"/proc/{supervisor.pid}/ns/{kind}").st_ino for kind in ("net", "pid", "mnt")
        }
        self.processes = len(list(in_pid_namespace_of(supervisor.pid)))
        self._directory = str(rack.layout.directory)

    def left(self) -> list[str]:
        """Processes that live in a namespace of the rack or are about it."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                inside = any(
                    os.stat(entry / "ns" / kind).st_ino in self._namespaces
                    for kind in ("net", "pid", "mnt")
                )
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if inside or self._directory in command:
                found.append(f"{entry.name}: {command}")
        return found

    def gone(self) -> None:
        """See that nothing is left; a namespace without a process and a mount is gone as well."""
        wait_until(lambda: not self.left(), "the last process of the rack is gone", 15)
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        assert not any(f"[{inode}]" in mounts for inode in self._namespaces)
        assert self._directory not in mounts
        links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
        assert "tap0n0" not in links.stdout


def cli(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m virtual_rack …`."""
    argv = [sys.executable, "-m", "virtual_rack", *map(str, arguments)]
    options = {"check": True, "timeout": 2 * PATIENCE_SECONDS} | options
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, **options)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory for a rack that any user may look into; pytest's own is the owner's alone."""
    path = Path(tempfile.mkdtemp(prefix="rack-test-"))
    path.chmod(0o755)
    yield path / "rack"
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def rack() -> Iterator[Rack]:
    """One rack for the tests of a file, with two machines and two light ones."""
    path = Path(tempfile.mkdtemp(prefix="rack-test-"))
    with make_rack(path, machines=2, light=2) as up:
        yield up
    shutil.rmtree(path)
