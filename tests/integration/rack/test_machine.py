# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Machines that really power on, boot and go off, driven through their BMCs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.rack import boot_sectors
from tests.integration.rack.conftest import (
    CREDENTIALS,
    ROOT,
    is_on,
    make_rack,
    power,
    process_of,
    wait_until,
)
from virtual_rack.rack import Rack
from virtual_rack.spec import parse_spec

# Waits for a DHCP request as a server does, and says who asked and with which firmware (option 93).
LISTEN_FOR_DHCP = """
import socket
listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
listener.bind(("", 67))
listener.settimeout(60)
print("listening", flush=True)
message = listener.recv(4096)
options = message[240:]
while options[0] != 93:
    options = options[2 + options[1]:] if options[0] else options[1:]
print(message[28:34].hex(":"), int.from_bytes(options[2:4], "big"))
"""


@pytest.fixture(autouse=True)
def machine_off(rack: Rack) -> Iterator[None]:
    yield
    power(rack, "m0", "off")
    wait_until(lambda: not is_on(rack, "m0"), "the machine is off")
    boot_sectors.remove(rack.disk("m0", 0))
    rack.layout.console_log("m0").unlink(missing_ok=True)


def starts(rack: Rack, sign: str) -> int:
    """How often the system with that sign has started."""
    return rack.console("m0").count(sign)


def boot(rack: Rack, code: str, sign: str) -> None:
    boot_sectors.install(code, rack.disk("m0", 0))
    power(rack, "m0", "on")
    wait_until(lambda: starts(rack, sign) == 1, "the system on the disk runs")


def test_a_machine_runs_what_is_on_its_disk_and_power_off_ends_it(rack: Rack) -> None:
    assert not is_on(rack, "m0")
    boot(rack, boot_sectors.STAYS, "{")
    assert is_on(rack, "m0")
    assert rack.status()[0].power == "on"
    power(rack, "m0", "off")
    wait_until(lambda: not is_on(rack, "m0"), "the machine is off")
    assert rack.status()[0].power == "off"


def test_a_system_that_turns_itself_off_is_off(rack: Rack) -> None:
    boot_sectors.install(boot_sectors.TURNS_ITSELF_OFF, rack.disk("m0", 0))
    power(rack, "m0", "on")
    wait_until(lambda: starts(rack, "}") == 1 and not is_on(rack, "m0"), "the machine is off")


def test_a_reset_by_the_system_is_a_new_boot(rack: Rack) -> None:
    boot(rack, boot_sectors.RESETS, "|")
    wait_until(lambda: starts(rack, "|") >= 3, "the system has reset itself twice")
    assert is_on(rack, "m0")


def test_a_reset_by_the_bmc_is_a_new_boot(rack: Rack) -> None:
    boot(rack, boot_sectors.STAYS, "{")
    power(rack, "m0", "reset")
    wait_until(lambda: starts(rack, "{") == 2, "the system runs again")


def test_the_power_button_is_a_wish_to_the_system(rack: Rack) -> None:
    boot(rack, boot_sectors.OBEYS_THE_BUTTON, "~")
    power(rack, "m0", "soft")
    wait_until(lambda: not is_on(rack, "m0"), "the system obeyed")
    boot_sectors.install(boot_sectors.STAYS, rack.disk("m0", 0))
    rack.layout.console_log("m0").unlink()
    boot(rack, boot_sectors.STAYS, "{")
    power(rack, "m0", "soft")
    with pytest.raises(AssertionError):
        wait_until(lambda: not is_on(rack, "m0"), "a system without ears obeyed", 2)


def test_qemu_has_no_rights_that_a_machine_could_misuse(rack: Rack) -> None:
    boot(rack, boot_sectors.STAYS, "{")
    pid = process_of(rack, "-name", "m0")
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = dict(line.split(":\t", 1) for line in status.splitlines())
    for capabilities in ("CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(found[capabilities], 16) == 0
    assert found["NoNewPrivs"] == "1"
    assert found["Seccomp"] == "2"


def test_the_cable_of_a_machine_is_plugged_in_while_it_is_on(rack: Rack) -> None:
    def plugged() -> bool:
        links = rack.exec(["ip", "-br", "link"], capture_output=True, text=True, check=True)
        return "tap0n0" in links.stdout

    assert not plugged()
    boot(rack, boot_sectors.STAYS, "{")
    assert plugged()
    power(rack, "m0", "off")
    wait_until(lambda: not is_on(rack, "m0"), "the machine is off")
    assert not plugged()


def test_the_console_command_shows_the_end_and_follows(rack: Rack) -> None:
    boot(rack, boot_sectors.STAYS, "{")
    base = [sys.executable, "-m", "virtual_rack", "console", "m0"]
    base += ["--dir", str(rack.layout.directory)]
    options: dict[str, Any] = {"cwd": ROOT, "stdout": subprocess.PIPE, "text": True}
    shown = subprocess.run([*base, "--lines", "2", "--no-follow"], check=True, **options).stdout
    assert "{" in shown
    assert len(shown.splitlines()) <= 2
    followed = rack.layout.directory / "followed"
    with followed.open("wb") as file:
        follower = subprocess.Popen([*base, "--lines", "0"], **options | {"stdout": file})
    try:
        power(rack, "m0", "reset")
        wait_until(lambda: starts(rack, "{") == 2, "the system runs again")
        wait_until(lambda: followed.read_text().count("{") == 1, "the new output is shown")
    finally:
        follower.kill()
        follower.wait()


def network_machine(kind: str) -> dict[str, Any]:
    models = {"bios": "virtio", "bios-e1000e": "e1000e", "uefi": "virtio", "http": "virtio"}
    return {
        "name": "m0",
        "bmc": {"address": "10.77.1.1", **CREDENTIALS},
        "firmware": kind.partition("-")[0] if kind.startswith("bios") else "uefi",
        "secure_boot": kind == "secure",
        "network_boot": "http" if kind == "http" else "pxe",
        "memory_mib": 256,
        "nics": [{"mac": "52:54:00:77:00:01", "model": models.get(kind, "virtio")}],
    }


@pytest.mark.parametrize(
    ("kind", "architecture"),
    # RFC 4578 and IANA's registry: 0 BIOS, 7 UEFI x86-64, 16 UEFI x86-64 by HTTP.
    [("bios", 0), ("bios-e1000e", 0), ("uefi", 7), ("secure", 7), ("http", 16)],
)
def test_a_machine_without_a_system_asks_the_network(
    directory: Path, kind: str, architecture: int
) -> None:
    spec = parse_spec({"name": "test", "servers": [network_machine(kind)]})
    with Rack(spec, directory) as rack:
        listener = rack.popen(
            [sys.executable, "-c", LISTEN_FOR_DHCP], stdout=subprocess.PIPE, text=True
        )
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        power(rack, "m0", "on")
        said = listener.communicate(timeout=90)[0]
    assert said == f"52:54:00:77:00:01 {architecture}\n"


def test_machines_of_one_rack_run_side_by_side(directory: Path) -> None:
    with make_rack(directory, machines=2) as rack:
        for server in ("m0", "m1"):
            boot_sectors.install(boot_sectors.STAYS, rack.disk(server, 0))
            power(rack, server, "on")
        wait_until(lambda: "{" in rack.console("m0"), "one runs")
        wait_until(lambda: "{" in rack.console("m1"), "the other runs")
        power(rack, "m0", "off")
        wait_until(lambda: not is_on(rack, "m0"), "one is off")
        assert is_on(rack, "m1")
