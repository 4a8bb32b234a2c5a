# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The light machine by itself; with a real boot server: tests/integration/virtual_bmc."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from virtual_rack.bmc.state import PowerAction
from virtual_rack.light import Scheduler
from virtual_rack.machine import BootOverride, MachineEvent
from virtual_rack.testing import light_bmc, light_bmcs, wait_until

Answer = Callable[[str, bytes], tuple[int, bytes]]


@contextlib.contextmanager
def http_server(answer: Answer) -> Iterator[str]:
    """A server that answers every request by a function of path and body; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            status, content = answer(self.path, self.rfile.read(length))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def boot_server(requests: list[tuple[str, Any]], known_mac: str = "", status: int = 200) -> Answer:
    """Serves a script for one MAC ("" for every) and answers check-ins with a status."""

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        requests.append((path, json.loads(body) if body else None))
        if path == "/v1/checkin":
            return status, b'{"node": "light"}'
        if path.startswith("/v1/boot/") and path.endswith(known_mac):
            token = f"token-{len(requests)}"
            line = f"kernel http://x/k barewright.url={url[0]} barewright.token={token} quiet"
            return 200, f"#!ipxe\n{line}\nboot\n".encode()
        return 404, b""

    url = ["http://never.invalid"]
    answer.url = url  # type: ignore[attr-defined]  # a mark of the test
    return answer


@contextlib.contextmanager
def running(
    requests: list[tuple[str, Any]], known_mac: str = "", status: int = 200
) -> Iterator[str]:
    answer = boot_server(requests, known_mac, status)
    with http_server(answer) as url:
        answer.url[0] = url  # type: ignore[attr-defined]  # a mark of the test
        yield url


def test_a_network_boot_checks_in_with_all_that_the_protocol_asks_for() -> None:
    requests: list[tuple[str, Any]] = []
    macs = ["52:54:00:00:00:01", "52:54:00:00:00:02"]
    with (
        running(requests, known_mac=macs[1]) as url,
        light_bmc(light={"boot_server": url}, nics=[{"mac": mac} for mac in macs]) as light,
    ):
        light.bmc.set_boot("pxe", "once", "bios")
        light.bmc.power(PowerAction.ON)
        boot = light.machine.wait_for_boot("checked_in")
        paths = [path for path, _ in requests]
        assert paths == [f"/v1/boot/{macs[0]}", f"/v1/boot/{macs[1]}", "/v1/checkin"]
        checkin = requests[-1][1]
        assert checkin == boot.checkin
        assert boot.answer == {"node": "light"}
        assert checkin["token"] == "token-2"
        assert checkin["macs"] == macs
        assert checkin["product_uuid"] == light.machine.hardware().uuid
        assert checkin["boot_mode"] == "bios"
        assert set(checkin) == {
            "token",
            "macs",
            "product_uuid",
            "ssh_host_key",
            "identity_key",
            "boot_mode",
            "addresses",
        }
        host_key = serialization.load_ssh_public_key(checkin["ssh_host_key"].encode())
        assert checkin["ssh_host_key"].startswith("ssh-ed25519 ")
        assert host_key is not None
        identity = serialization.load_pem_public_key(checkin["identity_key"].encode())
        assert isinstance(identity, ec.EllipticCurvePublicKey)
        assert isinstance(identity.curve, ec.SECP256R1)


def test_every_boot_has_keys_of_its_own() -> None:
    requests: list[tuple[str, Any]] = []
    with running(requests) as url, light_bmc(light={"boot_server": url}) as light:
        light.bmc.set_boot("pxe", "continuous", "uefi")
        keys = set()
        for action in (PowerAction.ON, PowerAction.CYCLE, PowerAction.RESET):
            light.bmc.power(action)
            checkin = light.machine.wait_for_boot("checked_in").checkin
            assert checkin is not None
            keys |= {checkin["ssh_host_key"], checkin["identity_key"]}
        assert len(keys) == 6


def test_a_silent_machine_takes_its_script_and_never_checks_in() -> None:
    requests: list[tuple[str, Any]] = []
    with (
        running(requests) as url,
        light_bmc(light={"boot_server": url, "fate": "silent"}) as light,
    ):
        light.bmc.set_boot("pxe", "once", "uefi")
        light.bmc.power(PowerAction.ON)
        assert "barewright.token=" in (light.machine.wait_for_boot("network").script or "")
        time.sleep(0.2)
        assert [path for path, _ in requests] == [
            f"/v1/boot/{light.machine.hardware().nics[0].mac}"
        ]


@pytest.mark.parametrize("device", ["disk", None])
def test_any_other_boot_asks_the_boot_server_nothing(device: Any) -> None:
    requests: list[tuple[str, Any]] = []
    with running(requests) as url, light_bmc(light={"boot_server": url}) as light:
        light.bmc.set_boot(device, "once", "uefi")
        light.bmc.power(PowerAction.ON)
        light.machine.wait_for_boot("disk")
        assert requests == []


def test_a_machine_that_the_boot_server_does_not_know_goes_on_to_its_disk() -> None:
    requests: list[tuple[str, Any]] = []
    with (
        running(requests, known_mac="nobody") as url,
        light_bmc(light={"boot_server": url}) as light,
    ):
        light.bmc.set_boot("pxe", "once", "uefi")
        light.bmc.power(PowerAction.ON)
        light.machine.wait_for_boot("disk")
        assert len(requests) == len(light.machine.hardware().nics)


def test_the_configured_order_can_begin_with_the_network() -> None:
    requests: list[tuple[str, Any]] = []
    with (
        running(requests) as url,
        light_bmc(light={"boot_server": url}, boot_order=["network", "disk"]) as light,
    ):
        light.bmc.power(PowerAction.ON)
        light.machine.wait_for_boot("checked_in")


def test_a_refused_check_in_is_seen_as_such() -> None:
    requests: list[tuple[str, Any]] = []
    with running(requests, status=403) as url, light_bmc(light={"boot_server": url}) as light:
        light.bmc.set_boot("pxe", "once", "uefi")
        light.bmc.power(PowerAction.ON)
        assert light.machine.wait_for_boot("refused").status == 403
        time.sleep(0.2)
        assert [path for path, _ in requests].count("/v1/checkin") == 1


def test_power_lost_during_the_boot_ends_it() -> None:
    requests: list[tuple[str, Any]] = []
    with (
        running(requests) as url,
        light_bmc(light={"boot_server": url, "boot_seconds": 0.2}) as light,
    ):
        light.bmc.set_boot("pxe", "once", "uefi")
        light.bmc.power(PowerAction.ON)
        light.bmc.power(PowerAction.FORCE_OFF)
        time.sleep(0.5)
        assert requests == []
        assert light.machine.power_state() == "off"


def test_the_power_button_shuts_down_only_the_boot_it_was_pressed_in() -> None:
    with light_bmc() as light:
        machine = light.machine
        machine.press_power_button()
        assert machine.power_state() == "off"
        machine.power_on()
        machine.press_power_button()
        machine.reset()
        time.sleep(0.5)
        assert machine.power_state() == "on"
        machine.press_power_button()
        assert machine.power_state() == "on"
        wait_until(lambda: machine.power_state() == "off")
        assert light.power_effects() == ["power: on→off"]


def test_what_is_there_already_is_not_done_again() -> None:
    with light_bmc() as light:
        events: list[MachineEvent] = []
        light.machine.on_event(events.append)
        light.machine.power_off()
        light.machine.reset()
        assert events == []
        light.machine.power_on()
        light.machine.power_on()
        light.machine.power_off()
        light.machine.power_off()
        assert events == [
            MachineEvent("boot_started", "power_on"),
            MachineEvent("powered_off", "bmc_forced_off"),
        ]


def test_the_boot_is_chosen_exactly_once_for_every_boot() -> None:
    with light_bmc() as light:
        chosen: list[BootOverride] = []

        def choose() -> BootOverride:
            chosen.append(BootOverride("disk"))
            return chosen[-1]

        light.machine.on_boot(choose)
        light.machine.power_on()
        light.machine.reset()
        light.machine.guest_reset()
        light.machine.wait_for_boot("disk")
        assert len(chosen) == 3


def test_what_goes_wrong_in_one_machine_does_not_stop_the_others() -> None:
    scheduler = Scheduler()
    done = threading.Event()

    def fail() -> None:
        raise RuntimeError("of no importance")

    try:
        scheduler.after(0, fail)
        scheduler.slowly(fail)
        scheduler.after(0.05, done.set)
        assert done.wait(5)
    finally:
        scheduler.close()


def test_hundreds_check_in_from_one_process() -> None:
    requests: list[tuple[str, Any]] = []
    with running(requests) as url, light_bmcs(200, light={"boot_server": url}) as lights:
        before = threading.active_count()
        for light in lights:
            light.bmc.set_boot("pxe", "once", "uefi")
            light.bmc.power(PowerAction.ON)
        most = threading.active_count()
        for light in lights:
            light.machine.wait_for_boot("checked_in", timeout_seconds=60)
        assert len({body["product_uuid"] for path, body in requests if body}) == 200
        # Neither a BMC nor a machine has a thread of its own.
        assert most - before < 100
        assert before < 20
