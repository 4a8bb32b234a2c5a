# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands behind the table of methods.

An eraser returns when the disk says that it is done, or raises ``DiskRefused``; whether it is
erased is for ``verify`` to find out. Each tells the watch how long it may take.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..disks import Disk
from .features import (
    Features,
    SanitizeLog,
    read_ata_features,
    read_nvme_format,
    read_sanitize_log,
)
from .medium import Medium
from .methods import Method
from .reasons import DiskRefused
from .tools import Outcome, Tools

# What a disk may take when it does not say so: the slowest known medium, with room to spare.
_FIRMWARE_SECONDS_LEAST = 7200.0
_FIRMWARE_BYTES_PER_SECOND = 40e6
_ESTIMATE_FACTOR, _ESTIMATE_SLACK_SECONDS = 2.0, 600.0

_COMMAND_SECONDS = 60.0
_POLL_FIRST_SECONDS, _POLL_SLOWEST_SECONDS = 0.5, 30.0

# sg3-utils, sg_cmds.h: the device is not ready, here because it is sanitizing.
_SG_NOT_READY = 2

# Set for the length of a secure erase, which the ATA standard allows only with a password.
_ATA_PASSWORD = "barewright"


class Watch(Protocol):
    """Who looks after one erase."""

    def allow(self, seconds: float) -> float:
        """Give the disk ``seconds`` from now; returns what the whole wipe leaves of them."""

    def advance(self, done_bytes: int) -> None:
        """So much of the disk is done."""


@dataclass(frozen=True)
class Job:
    """One erase of one disk by one method."""

    disk: Disk
    features: Features
    method: Method
    tools: Tools
    watch: Watch


def erase(job: Job) -> None:
    """Erase ``job.disk`` by ``job.method``."""
    _ERASERS[job.method.name](job)


def estimate_seconds(size_bytes: int, estimate: float | None) -> float:
    """How long the disk's own firmware may take, from its estimate if it has one."""
    if estimate is None:
        return max(_FIRMWARE_SECONDS_LEAST, size_bytes / _FIRMWARE_BYTES_PER_SECOND)
    return estimate * _ESTIMATE_FACTOR + _ESTIMATE_SLACK_SECONDS


class Pace:
    """Keeps the limit of a write that goes over the whole disk true to its measured speed."""

    def __init__(self, watch: Watch, size_bytes: int) -> None:
        self._watch = watch
        self._size_bytes = size_bytes
        self._began = time.monotonic()
        watch.allow(_ESTIMATE_SLACK_SECONDS)

    def __call__(self, done_bytes: int) -> None:
        self._watch.advance(done_bytes)
        rate = done_bytes / max(time.monotonic() - self._began, 1e-3)
        left = (self._size_bytes - done_bytes) / rate
        self._watch.allow(left * _ESTIMATE_FACTOR + _ESTIMATE_SLACK_SECONDS)


def _overwrite(job: Job) -> None:
    with Medium(job.disk) as medium:
        size = job.disk.size_bytes
        medium.overwrite(0, size, Pace(job.watch, size))
        medium.flush()


def _write_zeroes(job: Job) -> None:
    with Medium(job.disk) as medium:
        size = job.disk.size_bytes
        medium.write_zeroes(0, size, Pace(job.watch, size))
        medium.flush()


def _nvme_format(secure_erase: int) -> Callable[[Job], None]:
    def erase_by_format(job: Job) -> None:
        now = read_nvme_format(job.disk, job.tools)
        if now is None:
            raise DiskRefused("METHOD_FAILED", "the namespace does not tell its format")
        seconds = job.watch.allow(estimate_seconds(job.disk.size_bytes, None))
        _require(
            job.tools.run(
                [
                    "nvme",
                    "format",
                    job.disk.path,
                    # Without --ses nothing is erased; the other fields keep the format.
                    f"--ses={secure_erase}",
                    f"--lbaf={now.lba_format}",
                    f"--ms={now.extended_metadata}",
                    f"--pi={now.protection}",
                    f"--pil={now.protection_first}",
                    f"--timeout={int(seconds * 1000)}",
                    "--force",
                ],
                seconds,
            )
        )

    return erase_by_format


def _nvme_sanitize(
    estimate: Callable[[SanitizeLog], float | None], *options: str
) -> Callable[[Job], None]:
    def erase_by_sanitize(job: Job) -> None:
        controller = job.disk.controllers[0] if job.disk.controllers else job.disk.name
        before = read_sanitize_log(controller, job.tools)
        told = estimate(before) if before else None
        seconds = job.watch.allow(estimate_seconds(job.disk.size_bytes, told))
        _require(
            job.tools.run(["nvme", "sanitize", f"/dev/{controller}", *options], _COMMAND_SECONDS)
        )

        def ended() -> bool:
            log = read_sanitize_log(controller, job.tools)
            if log is None:
                return False
            if log.status == 2:
                job.watch.advance(int(log.progress * job.disk.size_bytes))
                return False
            if log.status == 3:
                raise DiskRefused("METHOD_FAILED", "the sanitize log says that it failed")
            return True

        _await(ended, seconds)

    return erase_by_sanitize


def _ata_sanitize(*options: str) -> Callable[[Job], None]:
    def erase_by_sanitize(job: Job) -> None:
        path = job.disk.path
        seconds = job.watch.allow(estimate_seconds(job.disk.size_bytes, None))
        _require(
            job.tools.run(
                ["hdparm", "--yes-i-know-what-i-am-doing", *options, path], _COMMAND_SECONDS
            )
        )

        def ended() -> bool:
            outcome = job.tools.run(["hdparm", "--sanitize-status", path], _COMMAND_SECONDS)
            return sanitize_ended(outcome.output.decode("utf-8", "replace"))

        _await(ended, seconds)

    return erase_by_sanitize


def sanitize_ended(text: str) -> bool:
    """Whether the output of ``hdparm --sanitize-status`` says that no sanitize is running.

    Raises ``DiskRefused`` for a failed one and a frozen disk (ACS-4, Sanitize Device states).
    """
    state = re.search(r"State:\s*SD(\d)", text)
    if state is None:
        raise DiskRefused("METHOD_FAILED", f"no sanitize status in {' '.join(text.split())!r}")
    if state[1] == "1":
        raise DiskRefused("FROZEN", "SD1 Sanitize Frozen")
    if state[1] == "3":
        raise DiskRefused("METHOD_FAILED", "SD3 Sanitize Operation Failed")
    return state[1] != "2"


def _ata_secure_erase(option: str, enhanced: bool) -> Callable[[Job], None]:
    def erase_securely(job: Job) -> None:
        security = job.features.ata
        if security and security.frozen:
            raise DiskRefused("FROZEN")
        if security and security.enabled:
            raise DiskRefused("LOCKED")
        told = None
        if security:
            told = security.enhanced_erase_seconds if enhanced else security.erase_seconds
        seconds = job.watch.allow(estimate_seconds(job.disk.size_bytes, told))
        hdparm = ["hdparm", "--user-master", "u"]
        path = job.disk.path
        _require(
            job.tools.run([*hdparm, "--security-set-pass", _ATA_PASSWORD, path], _COMMAND_SECONDS)
        )
        try:
            _require(job.tools.run([*hdparm, option, _ATA_PASSWORD, path], seconds))
        finally:
            # A finished erase takes the password away; a disk must never be left locked.
            now = read_ata_features(job.disk, job.tools)
            if now and now.locked:
                job.tools.run([*hdparm, "--security-unlock", _ATA_PASSWORD, path], _COMMAND_SECONDS)
            if now and now.enabled:
                job.tools.run(
                    [*hdparm, "--security-disable", _ATA_PASSWORD, path], _COMMAND_SECONDS
                )

    return erase_securely


def _scsi_sanitize(*options: str) -> Callable[[Job], None]:
    def erase_by_sanitize(job: Job) -> None:
        path = job.disk.path
        seconds = job.watch.allow(estimate_seconds(job.disk.size_bytes, None))
        # --early returns at once; without it the tool looks only once a minute.
        _require(
            job.tools.run(["sg_sanitize", "--quick", "--early", *options, path], _COMMAND_SECONDS)
        )

        def ended() -> bool:
            outcome = job.tools.run(["sg_turs", path], _COMMAND_SECONDS)
            return outcome.status not in (_SG_NOT_READY, None)

        _await(ended, seconds)

    return erase_by_sanitize


def _require(outcome: Outcome) -> None:
    if not outcome.succeeded:
        raise DiskRefused("METHOD_FAILED", str(outcome))


def _await(ended: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    pause = _POLL_FIRST_SECONDS
    while not ended():
        if time.monotonic() >= end:
            raise DiskRefused("TIMED_OUT", f"still running after {seconds:.0f} s")
        time.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause = min(pause * 2, _POLL_SLOWEST_SECONDS)


_ERASERS: dict[str, Callable[[Job], None]] = {
    "nvme_sanitize_block": _nvme_sanitize(lambda log: log.block_seconds, "--sanact=2"),
    "nvme_sanitize_overwrite": _nvme_sanitize(
        # 0 passes would mean 16
        lambda log: log.overwrite_seconds,
        "--sanact=3",
        "--owpass=1",
        "--ovrpat=0",
    ),
    "nvme_sanitize_crypto": _nvme_sanitize(lambda log: log.crypto_seconds, "--sanact=4"),
    "nvme_format_user_data": _nvme_format(1),
    "nvme_format_crypto": _nvme_format(2),
    "ata_sanitize_block": _ata_sanitize("--sanitize-block-erase"),
    "ata_sanitize_overwrite": _ata_sanitize(
        "--sanitize-overwrite-passes", "1", "--sanitize-overwrite", "hex:00000000"
    ),
    "ata_sanitize_crypto": _ata_sanitize("--sanitize-crypto-scramble"),
    "ata_secure_erase_enhanced": _ata_secure_erase("--security-erase-enhanced", True),
    "ata_secure_erase": _ata_secure_erase("--security-erase", False),
    "scsi_sanitize_block": _scsi_sanitize("--block"),
    "scsi_sanitize_overwrite": _scsi_sanitize("--overwrite", "--zero"),
    "scsi_sanitize_crypto": _scsi_sanitize("--crypto"),
    "write_zeroes": _write_zeroes,
    "overwrite": _overwrite,
}
