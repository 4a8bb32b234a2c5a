# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A machine that is a timer: powers on, boots, checks in over the boot protocol, and runs nothing.

For tests of many: hundreds share one thread that waits and a few that talk to the boot server.
"""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from virtual_rack.machine import (
    BootOverride,
    Hardware,
    MachineEvent,
    PowerState,
)
from virtual_rack.qemu import describe
from virtual_rack.spec import ServerSpec

LOG = logging.getLogger(__name__)

# Enough to keep hundreds of check-ins moving, few enough to be nothing on two cores.
BOOT_WORKERS = 16
# A system that is told to shut down by its power button needs a moment for it.
SHUTDOWN_SECONDS = 0.2
# iPXE and the ramdisk try again when nobody answers; an answer of the server is final.
REQUEST_ATTEMPTS = 5
REQUEST_TIMEOUT_SECONDS = 10.0
_KERNEL_ARGUMENT = re.compile(r"\bbarewright\.(url|token)=(\S+)")


class Scheduler:
    """Calls functions at a time, from one thread, or from a few where they take long."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._condition = threading.Condition()
        self._running = True
        self._pool = ThreadPoolExecutor(BOOT_WORKERS, thread_name_prefix="light-boot")
        self._thread = threading.Thread(target=self._run, name="light-timer", daemon=True)
        self._thread.start()

    def after(self, delay_seconds: float, action: Callable[[], None]) -> None:
        """Call a function that returns at once."""
        with self._condition:
            due = time.monotonic() + delay_seconds
            heapq.heappush(self._queue, (due, next(self._numbers), action))
            self._condition.notify()

    def slowly(self, action: Callable[[], None]) -> None:
        """Call a function that may take long, in one of the workers."""
        if self._running:
            self._pool.submit(_logged, action)

    def close(self) -> None:
        with self._condition:
            self._running = False
            self._condition.notify()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            with self._condition:
                while self._running:
                    wait = self._queue[0][0] - time.monotonic() if self._queue else None
                    if wait is not None and wait <= 0:
                        break
                    self._condition.wait(wait)
                if not self._running:
                    return
                _, _, action = heapq.heappop(self._queue)
            _logged(action)


def _logged(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception:
        LOG.exception("a light machine failed")


@dataclass(frozen=True)
class LightBoot:
    """How the latest boot of a light machine went.

    `stage`: `booting` until the firmware has decided; then `disk`, `network` (a ramdisk that says
    nothing more), `checked_in`, or `refused` (the boot server did not accept the check-in).
    `checkin` is what was posted, `status` and `answer` are the answer to it.
    """

    stage: Literal["booting", "disk", "network", "checked_in", "refused"]
    script: str | None = None
    checkin: dict[str, Any] | None = None
    status: int | None = None
    answer: dict[str, Any] | None = None


class LightMachine:
    """Implements `virtual_rack.machine.Machine`; see there for what the methods promise.

    It reports the hardware that a QEMU machine of the same spec has.
    """

    def __init__(self, server: ServerSpec, scheduler: Scheduler) -> None:
        self.light = server.light
        self._server = server
        self._hardware = describe(server)
        self._scheduler = scheduler
        self._lock = threading.RLock()
        self._state: PowerState = "off"
        # Counts boots: what was scheduled for an earlier one finds that it is over.
        self._boot_number = 0
        self._boot = LightBoot("booting")
        self._changed = threading.Condition(self._lock)
        self._choose: Callable[[], BootOverride | None] = lambda: None
        self._callbacks: list[Callable[[MachineEvent], None]] = []

    # The machine as its BMC drives it

    def power_state(self) -> PowerState:
        with self._lock:
            return self._state

    def power_on(self) -> None:
        with self._lock:
            if self._state == "off":
                self._start("power_on")

    def power_off(self) -> None:
        with self._lock:
            self._stop("bmc_forced_off")

    def press_power_button(self) -> None:
        with self._lock:
            if self._state == "off":
                return
            number = self._boot_number
        self._scheduler.after(SHUTDOWN_SECONDS, lambda: self._shut_down(number))

    def reset(self) -> None:
        with self._lock:
            if self._state == "on":
                self._start("bmc_reset")

    def hardware(self) -> Hardware:
        return self._hardware

    def on_boot(self, choose: Callable[[], BootOverride | None]) -> None:
        self._choose = choose

    def on_event(self, callback: Callable[[MachineEvent], None]) -> None:
        self._callbacks.append(callback)

    def close(self) -> None:
        with self._lock:
            self._callbacks.clear()
            self._stop("bmc_forced_off")

    # What only a light machine has

    def guest_reset(self) -> None:
        """The operating system on the machine reboots it."""
        with self._lock:
            if self._state == "on":
                self._start("guest_reset")

    def boot(self) -> LightBoot:
        with self._lock:
            return self._boot

    def wait_for_boot(self, *stages: str, timeout_seconds: float = 10.0) -> LightBoot:
        """Wait until the latest boot is at one of the stages.

        Raises TimeoutError when that does not come.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._boot.stage in stages, timeout_seconds):
                raise TimeoutError(f"wanted {' or '.join(stages)}, found {self._boot.stage}")
            return self._boot

    # Inside

    def _tell(self, event: MachineEvent) -> None:
        for callback in self._callbacks:
            callback(event)

    def _start(self, reason: str) -> None:
        self._boot_number += 1
        self._state = "on"
        self._boot = LightBoot("booting")
        override = self._choose()
        number = self._boot_number
        self._tell(MachineEvent("boot_started", reason, override))
        self._scheduler.after(
            self.light.boot_seconds,
            lambda: self._scheduler.slowly(lambda: self._load(number, override)),
        )

    def _stop(self, reason: str) -> None:
        if self._state == "off":
            return
        self._boot_number += 1
        self._state = "off"
        self._tell(MachineEvent("powered_off", reason))

    def _shut_down(self, number: int) -> None:
        with self._lock:
            if number == self._boot_number:
                self._stop("guest_shutdown")

    def _reach(self, number: int, boot: LightBoot) -> None:
        with self._changed:
            if number == self._boot_number:
                self._boot = boot
                self._changed.notify_all()

    def _is_over(self, number: int) -> bool:
        with self._lock:
            return number != self._boot_number

    def _load(self, number: int, override: BootOverride | None) -> None:
        """What firmware, loader and ramdisk do once the machine is on."""
        configured = self._server.boot_order[0] == "network"
        from_network = override.device == "pxe" if override else configured
        script = self._boot_script(number) if from_network else None
        arguments = dict(_KERNEL_ARGUMENT.findall(script or ""))
        if script is None:
            self._reach(number, LightBoot("disk"))
        elif self.light.fate == "silent" or len(arguments) < 2:
            self._reach(number, LightBoot("network", script))
        else:
            mode = (override.mode if override else None) or self._hardware.firmware.mode
            checkin = self._checkin(arguments["token"], mode)
            self._check_in(number, script, arguments["url"], checkin)

    def _boot_script(self, number: int) -> str | None:
        """What the boot server serves for the first port that it knows, None for none of them."""
        if self.light.boot_server is None:
            return None
        for nic in self._hardware.nics:
            url = f"{self.light.boot_server.rstrip('/')}/v1/boot/{nic.mac}"
            status, content = self._request(number, urllib.request.Request(url))
            if status == 200:
                return content.decode(errors="replace")
        return None

    def _checkin(self, token: str, mode: str) -> dict[str, Any]:
        host_key = ed25519.Ed25519PrivateKey.generate().public_key()
        identity_key = ec.generate_private_key(ec.SECP256R1()).public_key()
        return {
            "token": token,
            "macs": [nic.mac for nic in self._hardware.nics],
            "product_uuid": self._hardware.uuid,
            "ssh_host_key": host_key.public_bytes(
                serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
            ).decode(),
            "identity_key": identity_key.public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            ).decode(),
            "boot_mode": mode,
            "addresses": [],
        }

    def _check_in(self, number: int, script: str, url: str, checkin: dict[str, Any]) -> None:
        request = urllib.request.Request(
            f"{url.rstrip('/')}/v1/checkin",
            data=json.dumps(checkin).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        status, content = self._request(number, request)
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        stage: Literal["checked_in", "refused"] = "checked_in" if status == 200 else "refused"
        self._reach(number, LightBoot(stage, script, checkin, status, answer))

    def _request(self, number: int, request: urllib.request.Request) -> tuple[int | None, bytes]:
        """Status and body of the answer; (None, b"") when nobody answered or this boot is over."""
        for attempt in range(REQUEST_ATTEMPTS):
            if attempt:
                time.sleep(min(1.0, 0.1 * 2**attempt))
            if self._is_over(number):
                break
            try:
                with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_SECONDS) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read()
            except OSError as error:
                LOG.info("%s %s: %s", request.get_method(), request.full_url, error)
        return None, b""
