# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What plugins ask of whoever runs them, and the answer when nobody but Ansible does.

Under the runner service a socket answers these calls; without it (plain ``ansible-playbook``)
the local channel does: every operation is permitted, progress is printed, and the memory of
operations that must not be repeated lies in the record of the state folder.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from .fault import Fault
from .state_folder import read_record, update_record


class RunChannel(Protocol):
    """The calls of the run channel that plugins use."""

    def permit(self, operation: str) -> None:
        """Return when ``operation`` may change the world now; raise ``PERMIT_REFUSED`` if not."""

    def intend(self, operation: str, key: str) -> None:
        """Store that a non-repeatable ``operation`` is about to be sent.

        Raises ``OUTCOME_UNKNOWN`` when the same ``operation`` and ``key`` was sent before and
        nobody learned what came of it.
        """

    def outcome(self, operation: str, key: str, result: str) -> None:
        """Store what came of an intended operation."""

    def progress(self, text: str) -> None:
        """Tell the operator how far the work is."""


def utc_now() -> str:
    """The time as RFC 3339 in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class LocalChannel:
    """The run channel of a plain playbook run. See :class:`RunChannel` for the calls."""

    def __init__(
        self,
        state_dir: str | None,
        host: str,
        show: Callable[[str], None] | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._host = host
        self._show = show
        self._intents: dict[str, Any] = {}

    def permit(self, operation: str) -> None:
        """Nobody but the operator owns the node here, and the operator started this run."""

    def intend(self, operation: str, key: str) -> None:
        name = f"{operation}:{key}"
        earlier = self._remembered().get(name)
        if earlier is not None and earlier.get("outcome") is None:
            raise Fault(
                "OUTCOME_UNKNOWN",
                wanted=f"to send {operation} once",
                found=f"it was sent at {earlier.get('intended_at')} and its outcome was never seen",
                cure=f"look at the node, then remove intents.{name} from its record",
            )
        self._remember(name, {"intended_at": utc_now(), "outcome": None})

    def outcome(self, operation: str, key: str, result: str) -> None:
        self._remember(
            f"{operation}:{key}",
            {"outcome": result, "outcome_at": utc_now()},
        )

    def progress(self, text: str) -> None:
        if self._show is not None:
            self._show(f"[{self._host}] {text}")

    def _remembered(self) -> dict[str, Any]:
        if self._state_dir is None:
            return self._intents
        return dict(read_record(self._state_dir, self._host).get("intents") or {})

    def _remember(self, name: str, entry: dict[str, Any]) -> None:
        if self._state_dir is None:
            self._intents[name] = {**self._intents.get(name, {}), **entry}
            return
        if entry.get("outcome") is None:
            # a merge patch cannot store null, and an intent is exactly "no outcome yet"
            update_record(self._state_dir, self._host, {"intents": {name: None}})
            entry = {"intended_at": entry["intended_at"]}
        update_record(self._state_dir, self._host, {"intents": {name: entry}})


def local_channel(
    state_dir: str | None,
    host: str,
    show: Callable[[str], None] | None = None,
) -> RunChannel:
    """The channel of a plain run; ``state_dir`` None keeps intents in this process only."""
    return LocalChannel(state_dir, host, show)
