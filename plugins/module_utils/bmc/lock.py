# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One task at a time per BMC, across processes, and no burst of commands.

BMCs stop answering when several clients talk at once or commands follow too closely
(siderolabs/omni 785), and a hung one is only helped by pulling the plug.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from pathlib import Path
from types import TracebackType

from ..deadline import Deadline
from ..fault import Fault

_POLL_SECONDS = 0.1


def default_lock_dir() -> str:
    """A folder of the user that does not depend on whether somebody is logged in.

    (``/run/user`` comes and goes with the login session, and two folders would be two locks.)
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "barewright", "bmc")


class BmcLock:
    """An exclusive lock on the BMC at ``address``, held while in the ``with`` block.

    The file also remembers when the last command was sent, by the monotonic clock, so that spacing
    holds between processes. Raises BMC_LOCKED when another task keeps the lock until the deadline,
    LOCK_DIR_UNUSABLE when the file cannot be made.
    """

    def __init__(self, directory: str | None, address: str, deadline: Deadline) -> None:
        self._path = Path(directory or default_lock_dir()) / f"{_file_name(address)}.lock"
        self._address = address
        self._deadline = deadline
        self._descriptor = -1

    def __enter__(self) -> BmcLock:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Fault(
                "LOCK_DIR_UNUSABLE", wanted=f"to write {self._path}", found=str(error)
            ) from error
        try:
            self._acquire()
        except BaseException:
            os.close(self._descriptor)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def wait_turn(self, spacing_seconds: float) -> None:
        """Return when ``spacing_seconds`` have passed since the last command, and note this one."""
        now = time.monotonic()
        ready = self._last_command() + spacing_seconds
        if now < ready:
            self._deadline.sleep(ready - now)
        os.pwrite(self._descriptor, f"{time.monotonic():020.6f}\n".encode(), 0)

    def _last_command(self) -> float:
        try:
            last = float(os.pread(self._descriptor, 64, 0))
        except ValueError:
            return 0.0
        # A value from before the last boot of this controller says nothing.
        return last if last <= time.monotonic() else 0.0

    def _acquire(self) -> None:
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if self._deadline.expired:
                    raise Fault(
                        "BMC_LOCKED",
                        wanted=f"to be the only task that talks to the BMC {self._address} "
                        f"within {self._deadline.seconds:g} s",
                        found=f"another task holds {self._path}",
                    ) from None
                self._deadline.sleep(_POLL_SECONDS)


def _file_name(address: str) -> str:
    """A readable file name; odd addresses get a digest so that no two share one."""
    readable = re.sub(r"[^a-z0-9.-]", "_", address.lower())
    if readable == address.lower():
        return readable
    return f"{readable}-{hashlib.sha256(address.encode()).hexdigest()[:8]}"
