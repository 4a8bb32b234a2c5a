# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""BMCs with light machines inside the test process: 127.0.0.1, free ports, a CA of their own.

with light_bmc(firmware="bios", disks=[{"bus": "sata"}]) as bmc:
    client = connect(bmc.redfish_url, bmc.username, bmc.password, ca=bmc.ca_path)
    ...
    assert bmc.power_effects() == ["power: off→on"]
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from virtual_rack.bmc.host import BmcHost, TlsFiles
from virtual_rack.bmc.journal import read_journal
from virtual_rack.bmc.state import Bmc, Options, make_bmc
from virtual_rack.light import LightMachine, Scheduler
from virtual_rack.spec import parse_spec
from virtual_rack.tls import CertificateAuthority

ADDRESS = "127.0.0.1"
USERNAME = "admin"
PASSWORD = "Light-123"
# What a server is made of when a test says nothing about it.
DEFAULT_NICS: tuple[dict[str, Any], ...] = ({}, {})
DEFAULT_DISKS: tuple[dict[str, Any], ...] = ({"bus": "nvme"}, {"bus": "scsi", "rotational": True})


@dataclasses.dataclass(frozen=True)
class LightBmc:
    """One running BMC and its light machine."""

    bmc: Bmc
    machine: LightMachine
    ca_path: Path
    journal_path: Path
    username: str
    password: str

    @property
    def address(self) -> str:
        return self.bmc.endpoint.address

    @property
    def redfish_port(self) -> int:
        return _offered(self.bmc.endpoint.redfish_port, "redfish")

    @property
    def ipmi_port(self) -> int:
        return _offered(self.bmc.endpoint.ipmi_port, "ipmi")

    @property
    def redfish_url(self) -> str:
        return f"https://{self.address}:{self.redfish_port}"

    def journal(self) -> list[dict[str, Any]]:
        """Everything that this BMC was asked, oldest first (`virtual_rack.bmc.journal`)."""
        return read_journal(self.journal_path)

    def effects(self) -> list[str]:
        """What requests changed, oldest first."""
        return [entry["effect"] for entry in self.journal() if entry["effect"]]

    def power_effects(self) -> list[str]:
        """What happened to the power, by request or by itself, oldest first."""
        return [effect for effect in self.effects() if effect.startswith("power: ")]

    def open_sessions(self) -> int:
        """Redfish and IPMI sessions that are open now, by the journal."""
        effects = self.effects()
        return effects.count("session: opened") - effects.count("session: closed")


def _offered(port: int | None, protocol: str) -> int:
    if port is None:
        raise ValueError(f"this BMC was started without {protocol}")
    return port


@contextlib.contextmanager
def light_bmcs(
    count: int, *, options: Options | None = None, directory: Path | None = None, **server: Any
) -> Iterator[list[LightBmc]]:
    """Run many BMCs in this process; `server` are keys of a server in a rack's spec file.

    Each gets its own name, serial number, MACs and disks. All of them are off.
    """
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="light-bmc-")))
        tls, ca_path = _certificate(directory)
        scheduler = Scheduler()
        stack.callback(scheduler.close)
        specs = [
            parse_spec({"name": "light", "servers": [document]}).servers[0]
            for document in _documents(count, server)
        ]
        machines = [LightMachine(spec, scheduler) for spec in specs]
        for machine in machines:
            stack.callback(machine.close)
        host = BmcHost()
        stack.callback(host.close)
        running = []
        for spec, machine in zip(specs, machines, strict=True):
            journal_path = directory / spec.name / "journal.jsonl"
            bmc = make_bmc(spec, machine, journal_path, dataclasses.replace(options or Options()))
            host.add(
                bmc,
                ADDRESS,
                redfish_port=0 if "redfish" in spec.bmc.protocols else None,
                ipmi_port=0 if "ipmi" in spec.bmc.protocols else None,
                tls=tls,
            )
            account = spec.bmc.accounts[0]
            running.append(
                LightBmc(bmc, machine, ca_path, journal_path, account.username, account.password)
            )
        yield running


@contextlib.contextmanager
def light_bmc(
    *, options: Options | None = None, directory: Path | None = None, **server: Any
) -> Iterator[LightBmc]:
    """Run one BMC in this process; `server` are keys of a server in a rack's spec file."""
    with light_bmcs(1, options=options, directory=directory, **server) as running:
        yield running[0]


def _documents(count: int, server: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for number in range(count):
        bmc = {"address": ADDRESS, "username": USERNAME, "password": PASSWORD}
        document = {
            "name": f"light-{number}" if count > 1 else "light",
            "kind": "light",
            "cpus": 2,
            "memory_mib": 2048,
            "nics": [dict(nic) for nic in DEFAULT_NICS],
            "disks": [dict(disk) for disk in DEFAULT_DISKS],
        }
        light = {"boot_seconds": 0.05}
        yield (
            document
            | dict(server)
            | {
                "bmc": bmc | server.get("bmc", {}),
                "light": light | server.get("light", {}),
            }
        )


def wait_until(
    condition: Callable[[], object], what: str = "it", timeout_seconds: float = 10.0
) -> None:
    """Raises AssertionError when the condition has not become true in time."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {timeout_seconds} s"
        time.sleep(0.01)


def free_port() -> int:
    """A port that is free for TCP and UDP now."""
    with (
        socket.create_server((ADDRESS, 0)) as stream,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram,
    ):
        port = int(stream.getsockname()[1])
        datagram.bind((ADDRESS, port))
    return port


def _certificate(directory: Path) -> tuple[TlsFiles, Path]:
    """A CA and a certificate of it for the address of the tests, as files in the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    ca_path = directory / "ca.pem"
    files = TlsFiles(directory / "bmc.crt", directory / "bmc.key")
    authority = CertificateAuthority.create("light BMCs")
    authority.save(ca_path, directory / "ca.key")
    authority.issue(
        files.certificate,
        files.key,
        common_name="light BMCs",
        addresses=[ipaddress.IPv4Address(ADDRESS)],
        names=["localhost"],
    )
    return files, ca_path
