# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running the erase tools: every call has a time limit, and no exit status is taken for proof."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass

SEARCH_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"

# How a tool is asked for its version.
_VERSION_OPTIONS = {"nvme": "version", "hdparm": "-V", "sg_sanitize": "-V"}

# A process that waits for a dead disk cannot even be killed; after this it is left behind.
_REAP_SECONDS = 5.0


@dataclass(frozen=True)
class Outcome:
    """How a tool ended. ``status`` is None when it had to be stopped or could not be started."""

    status: int | None
    output: bytes
    errors: str

    @property
    def succeeded(self) -> bool:
        """Whether the tool says so."""
        return self.status == 0

    def __str__(self) -> str:
        text = " ".join((self.errors or self.output.decode("utf-8", "replace")).split())[-400:]
        ended = "no exit status" if self.status is None else f"exit status {self.status}"
        return f"{ended}, {text}" if text else ended


class Tools:
    """The tools in ``search_path``, used from several threads."""

    def __init__(self, search_path: str = SEARCH_PATH) -> None:
        self._search_path = search_path
        self._versions: dict[str, str | None] = {}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def run(self, arguments: Sequence[str], timeout_seconds: float) -> Outcome:
        """Run ``arguments`` without input. It returns in time, whatever the tool does."""
        program = shutil.which(arguments[0], path=self._search_path)
        if program is None:
            return Outcome(None, b"", f"{arguments[0]} is not installed")
        process = subprocess.Popen(
            [program, *arguments[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C", "PATH": self._search_path},
        )
        self._running.add(process)
        try:
            output, errors = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            _kill(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_REAP_SECONDS)
            return Outcome(None, b"", f"stopped after {timeout_seconds:.0f} s")
        finally:
            self._running.discard(process)
        return Outcome(process.returncode, output, errors.decode("utf-8", "replace"))

    def stop(self) -> None:
        """Stop what is still running, because nobody waits for it any longer."""
        for process in tuple(self._running):
            _kill(process)

    def version(self, tool: str) -> str | None:
        """The version that ``tool`` states, None when it states none."""
        with self._lock:
            if tool not in self._versions:
                outcome = self.run([tool, _VERSION_OPTIONS.get(tool, "--version")], 30.0)
                text = outcome.output.decode("utf-8", "replace") + outcome.errors
                found = re.search(r"\d+(?:\.\d+)+", text)
                self._versions[tool] = found[0] if found else None
            return self._versions[tool]


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
