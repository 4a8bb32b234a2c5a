# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bounded repetition of what a BMC refuses only for now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from ..deadline import Deadline
from ..fault import Fault
from .interfaces import NotYet

T = TypeVar("T")

_FIRST_SECONDS = 0.5
_SLOWEST_SECONDS = 5.0
_LONGEST_REQUESTED_SECONDS = 30.0


def intervals() -> Iterator[float]:
    """Seconds between looks: half a second at first, growing to five."""
    seconds = _FIRST_SECONDS
    while True:
        yield seconds
        seconds = min(seconds * 1.5, _SLOWEST_SECONDS)


def pause_after(refusal: NotYet | None, interval: float) -> float:
    """How long to wait: what the BMC asked for, within reason, else ``interval``."""
    if refusal is None or refusal.retry_after_seconds is None:
        return interval
    return min(max(refusal.retry_after_seconds, 0.1), _LONGEST_REQUESTED_SECONDS)


def patiently(deadline: Deadline, wanted: str, attempt: Callable[[], T], tries: int = 0) -> T:
    """The value of ``attempt``, repeated while it raises ``NotYet``.

    Ends with Fault BMC_BUSY at the deadline, or after ``tries`` attempts when that is not 0.
    """
    last: NotYet | None = None
    for number, interval in enumerate(intervals(), start=1):
        try:
            return attempt()
        except NotYet as refusal:
            last = refusal
        except Fault as fault:
            # The refusals before it say more than that time is over.
            if last is None or fault.code != "DEADLINE_EXCEEDED":
                raise
            break
        if number == tries:
            break
        deadline.sleep(pause_after(last, interval))
        if deadline.expired:
            break
    raise Fault("BMC_BUSY", wanted=wanted, found=str(last))
