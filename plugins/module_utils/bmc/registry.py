# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drivers by name, and which of them a node binds to which concern."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from ..deadline import Deadline
from ..fault import Fault
from .interfaces import Driver
from .lock import BmcLock
from .target import Target

DriverFactory = Callable[[Target, Deadline, BmcLock], Driver]


@dataclass(frozen=True)
class DriverRow:
    """A driver: the concerns it serves, what it is built on, and how to get its class.

    ``load`` imports the driver's library only when a task needs it: sushy alone costs more CPU
    time than a whole task.
    """

    concerns: frozenset[str]
    package: str
    load: Callable[[], DriverFactory]


def _load_redfish() -> DriverFactory:
    from .redfish import LIBRARY_ERROR, RedfishDriver

    _need(LIBRARY_ERROR, "sushy")
    return RedfishDriver


def _load_ipmi() -> DriverFactory:
    from .ipmi import LIBRARY_ERROR, IpmiDriver

    _need(LIBRARY_ERROR, "pyghmi")
    return IpmiDriver


DRIVERS: dict[str, DriverRow] = {
    "redfish": DriverRow(frozenset({"power", "boot", "inspect"}), "sushy", _load_redfish),
    "ipmi": DriverRow(frozenset({"power", "boot", "inspect"}), "pyghmi", _load_ipmi),
}


def driver_for(target: Target, concern: str) -> str:
    """The name of the driver that ``target`` binds to ``concern``.

    Raises DRIVER_UNKNOWN for a name that nobody knows, CONCERN_NOT_SUPPORTED when that driver does
    not serve the concern.
    """
    name = target.drivers[concern]
    row = DRIVERS.get(name)
    if row is None:
        raise Fault(
            "DRIVER_UNKNOWN",
            wanted=f"a driver for the concern {concern!r}: one of {', '.join(sorted(DRIVERS))}",
            found=repr(name),
        )
    if concern not in row.concerns:
        able = sorted(each for each, other in DRIVERS.items() if concern in other.concerns)
        raise Fault(
            "CONCERN_NOT_SUPPORTED",
            wanted=f"a driver that serves the concern {concern!r}",
            found=f"driver {name!r} serves {', '.join(sorted(row.concerns)) or 'nothing'}",
            cure=f"bind another one: drivers: {{{concern}: {' or '.join(able) or '…'}}}",
        )
    return name


def _need(error: str | None, package: str) -> None:
    if error is not None:
        raise Fault(
            "LIBRARY_MISSING",
            wanted=f"the Python library {package} for the interpreter {sys.executable}",
            found=error,
            cure=f"{sys.executable} -m pip install {package}",
            details={"package": package, "interpreter": sys.executable},
        )
