# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A total time limit that every call of an operation shares."""

from __future__ import annotations

import time

from .fault import Fault


class Deadline:
    """``seconds`` from now by the monotonic clock; a clock step does not move it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether no time is left."""
        return self.remaining() <= 0.0

    def check(self, wanted: str, found: str = "") -> None:
        """Raise ``Fault("DEADLINE_EXCEEDED")`` when no time is left."""
        if self.expired:
            raise Fault(
                "DEADLINE_EXCEEDED",
                wanted=f"{wanted} within {self.seconds:g} s",
                found=found or "no time left",
            )

    def sleep(self, seconds: float) -> None:
        """Sleep ``seconds``, or what is left when that is less."""
        time.sleep(min(seconds, self.remaining()))
