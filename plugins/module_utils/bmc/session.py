# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One task's hold on one BMC: the lock, at most one session per driver, and the way out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import cast

from ..deadline import Deadline
from .interfaces import BootDriver, Driver, InspectDriver, PowerDriver
from .lock import BmcLock
from .registry import DRIVERS, driver_for
from .target import Target
from .termination import cleanup_on_termination, shielded


class Bmc:
    """Opens a driver when one of its concerns is first used, and reuses it from then on."""

    def __init__(self, target: Target, deadline: Deadline, lock: BmcLock) -> None:
        self.target = target
        self.deadline = deadline
        self._lock = lock
        self._open: dict[str, Driver] = {}

    @property
    def power(self) -> PowerDriver:
        """The driver bound to ``power``."""
        return cast(PowerDriver, self.driver("power"))

    @property
    def boot(self) -> BootDriver:
        """The driver bound to ``boot``."""
        return cast(BootDriver, self.driver("boot"))

    @property
    def inspect(self) -> InspectDriver:
        """The driver bound to ``inspect``."""
        return cast(InspectDriver, self.driver("inspect"))

    def driver(self, concern: str) -> Driver:
        """The open driver for ``concern``."""
        name = driver_for(self.target, concern)
        if name not in self._open:
            driver = DRIVERS[name].load()(self.target, self.deadline, self._lock)
            # Noted before it is opened: an opening that fails half-way is closed as well.
            self._open[name] = driver
            driver.open()
        return self._open[name]

    def close(self) -> None:
        """Close every driver; never raises."""
        with shielded():
            while self._open:
                _name, driver = self._open.popitem()
                with contextlib.suppress(Exception):
                    driver.close()


@contextlib.contextmanager
def open_bmc(target: Target, deadline: Deadline) -> Iterator[Bmc]:
    """A :class:`Bmc` whose sessions are deleted on every path out, SIGTERM included."""
    with cleanup_on_termination(), BmcLock(target.lock_dir, target.address, deadline) as lock:
        bmc = Bmc(target, deadline, lock)
        try:
            yield bmc
        finally:
            bmc.close()
