# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import hashlib
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from virtual_rack.bmc.state import Options
from virtual_rack.testing import LightBmc, light_bmc, wait_until

from .conftest import ROOT, Asking, Controller


def free_port(kind: socket.SocketKind) -> int:
    with socket.socket(type=kind) as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


def test_a_bmc_that_is_not_there_is_unreachable(
    controller: Controller, ask: Asking, driver: str
) -> None:
    kind = socket.SOCK_STREAM if driver == "redfish" else socket.SOCK_DGRAM
    task = ask("power", driver, state="on", port=free_port(kind), timeout_seconds=10)
    (result,) = controller.play([task]).results
    assert result["fault"]["code"] == "BMC_UNREACHABLE"
    assert result["fault"]["details"] == {"address": "127.0.0.1"}


def test_a_silent_bmc_costs_no_more_than_the_time_limit(
    controller: Controller, ask: Asking, driver: str
) -> None:
    kind = socket.SOCK_STREAM if driver == "redfish" else socket.SOCK_DGRAM
    with socket.socket(type=kind) as silent:
        silent.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            silent.listen()
        task = ask("info", driver, port=silent.getsockname()[1], timeout_seconds=3)
        started = time.monotonic()
        (result,) = controller.play([task]).results
    assert result["fault"]["code"] == "BMC_UNREACHABLE"
    # Ansible itself needs the rest.
    assert time.monotonic() - started < 12


def test_a_certificate_of_an_unknown_ca_is_rejected(
    controller: Controller, bmc: LightBmc, ask: Asking
) -> None:
    (result,) = controller.play([ask("power", "redfish", state="on", ca_path=None)]).results
    assert result["fault"]["code"] == "BMC_CERTIFICATE_REJECTED"
    assert bmc.journal() == []


def test_the_pinned_certificate_is_enough_and_no_other_is(
    controller: Controller, bmc: LightBmc, ask: Asking
) -> None:
    pem = ssl.get_server_certificate((bmc.address, bmc.redfish_port))
    pinned = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    right, wrong = controller.play(
        [
            ask("info", "redfish", ca_path=None, tls_fingerprint=f"sha256:{pinned}"),
            ask("info", "redfish", ca_path=None, tls_fingerprint="ab" * 32),
        ]
    ).results
    assert right["power_state"] == "off"
    assert wrong["fault"]["code"] == "BMC_CERTIFICATE_REJECTED"


def test_checking_can_be_switched_off_and_says_nothing_else(
    controller: Controller, ask: Asking
) -> None:
    run = controller.play([ask("info", "redfish", ca_path=None, validate_certs=False)])
    assert run.results[0]["power_state"] == "off"
    assert "Warning" not in run.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_task_that_is_ended_leaves_no_session(
    controller: Controller,
    ask: Asking,
    bmc: LightBmc,
    driver: str,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A machine that ignores its power button keeps the task waiting.
    monkeypatch.setattr(bmc.machine, "press_power_button", lambda: None)
    bmc.machine.power_on()
    task = ask("power", driver, state="off", shutdown="graceful", timeout_seconds=60)
    with subprocess.Popen(
        controller.command([task]),
        cwd=ROOT,
        env=controller.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        wait_until(lambda: bmc.open_sessions() == 1, "the session", timeout_seconds=30)
        time.sleep(1)
        process.send_signal(number)
        process.communicate(timeout=30)
    wait_until(lambda: bmc.open_sessions() == 0, "the end of the session")


def test_the_time_limit_of_a_task_leaves_no_session(
    controller: Controller,
    ask: Asking,
    bmc: LightBmc,
    driver: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bmc.machine, "press_power_button", lambda: None)
    bmc.machine.power_on()
    task = ask("power", driver, state="off", shutdown="graceful", timeout_seconds=60)
    (result,) = controller.play([{**task, "timeout": 4}]).results
    assert result["failed"]
    assert "timedout" in result
    assert bmc.open_sessions() == 0


def test_an_expired_session_is_renewed_in_the_middle_of_a_task(
    controller: Controller, ask: Asking, driver: str, bmc: LightBmc, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = bmc.bmc.options
    options.session_timeout_seconds = options.ipmi_session_timeout_seconds = 0.9
    bmc.machine.power_on()
    (result,) = controller.play([ask("power", driver, state="cycled")]).results
    assert result.get("power_state") == "on", result
    assert bmc.power_effects()[-2:] == ["power: on→off", "power: off→on"]


def test_a_bmc_that_demands_if_match_gets_it(tmp_path: Path, controller: Controller) -> None:
    with light_bmc(options=Options(require_if_match=True), firmware="uefi") as bmc:
        arguments = {
            "address": bmc.address,
            "port": bmc.redfish_port,
            "username": bmc.username,
            "password": bmc.password,
            "ca_path": str(bmc.ca_path),
            "device": "pxe",
        }
        (result,) = controller.play([{"barewright.metal.bmc_boot_device": arguments}]).results
        assert result["boot_override"]["device"] == "pxe"


def test_a_bmc_without_room_for_a_session_is_busy(
    controller: Controller, ask: Asking, bmc: LightBmc
) -> None:
    bmc.bmc.options.max_sessions = 0
    task = ask("info", "redfish", timeout_seconds=3)
    (result,) = controller.play([task]).results
    assert result["fault"]["code"] == "BMC_BUSY"


def test_an_account_without_the_right_is_told_so(controller: Controller) -> None:
    reader = {"username": "reader", "password": "Reader-123", "role": "ReadOnly"}
    with light_bmc(firmware="uefi", bmc={"accounts": [reader]}) as bmc:
        arguments = {
            "address": bmc.address,
            "port": bmc.redfish_port,
            "username": "reader",
            "password": "Reader-123",
            "ca_path": str(bmc.ca_path),
        }
        read, act = controller.play(
            [
                {"barewright.metal.bmc_info": arguments},
                {"barewright.metal.bmc_power": {**arguments, "state": "on"}},
            ]
        ).results
        assert read["power_state"] == "off"
        assert act["fault"]["code"] == "BMC_PRIVILEGE_TOO_LOW"
        assert bmc.open_sessions() == 0
        assert bmc.power_effects() == []


def test_an_operator_is_enough_for_power_by_ipmi(controller: Controller) -> None:
    operator = {"username": "operator", "password": "Operator-123", "role": "Operator"}
    with light_bmc(firmware="bios", bmc={"accounts": [operator]}) as bmc:
        arguments = {
            "address": bmc.address,
            "port": bmc.ipmi_port,
            "username": "operator",
            "password": "Operator-123",
            "driver": "ipmi",
            "state": "on",
        }
        (result,) = controller.play([{"barewright.metal.bmc_power": arguments}]).results
        assert result["power_state"] == "on"
