# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The command journal of one BMC: what was asked, by whom, and what it did. Tests judge by it.

One JSON object a line:

    time      RFC 3339, UTC, when the answer was ready
    protocol  "redfish", "ipmi", or "machine" for what the machine did without being asked
    client    "address:port", None for "machine"
    session   the session's id (never its token), None outside a session
    user      the account that asked, None when nobody proved who he is
    request   redfish: {"method", "path", "body"}; ipmi: {"name", "netfn", "command", "data"};
              machine: {"event", "reason", "boot"}
    effect    what changed because of this request, None when nothing did, for example
              "power: off→on", "power: on→off→on", "power: reset", "power: button",
              "boot override: pxe once uefi", "session: opened", "session: closed";
              "boot: pxe uefi" where a machine starts a boot
    status    redfish: the HTTP status; ipmi: completion or RMCP+ status code; machine: None

Passwords, tokens and keys in bodies are written as "***".
"""

from __future__ import annotations

import json
import os
import re
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_SECRET = re.compile(r"password|passphrase|secret|token|credential|authkey", re.IGNORECASE)


def redacted(value: Any) -> Any:
    """The same JSON value with everything below a secret-sounding name replaced."""
    if isinstance(value, dict):
        return {
            name: "***" if _SECRET.search(str(name)) else redacted(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [redacted(inner) for inner in value]
    return value


@dataclass(frozen=True)
class Caller:
    """Who sent a request."""

    protocol: str
    client: str | None = None
    session: str | None = None
    user: str | None = None


class Journal:
    """Appends to a JSON lines file; safe to use from any thread.

    The file is opened anew for every line, so that hundreds of BMCs keep no file open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(
        self,
        caller: Caller,
        request: dict[str, Any],
        *,
        effect: str | None = None,
        status: int | None = None,
    ) -> None:
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "protocol": caller.protocol,
            "client": caller.client,
            "session": caller.session,
            "user": caller.user,
            "request": redacted(request),
            "effect": effect,
            "status": status,
        }
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            descriptor = os.open(
                self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All complete lines of a journal, oldest first; [] when the BMC was never asked anything."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    complete, _, _ = text.rpartition("\n")
    return [json.loads(line) for line in complete.splitlines()]
