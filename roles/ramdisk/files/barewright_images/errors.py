# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: Barewright contributors
"""Why a build stopped, in the words of the fault table.

The builders run as plain scripts beside Ansible, so they print the fault as JSON instead of
raising the collection's class; the shape is the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


class BuildFault(Exception):  # noqa: N818  "fault" is the word of the house, not "error"
    """A build cannot go on. ``code`` is a row of ``faults.yml``."""

    def __init__(self, code: str, *, wanted: str, found: str, cure: str) -> None:
        self.code = code
        self.wanted = wanted
        self.found = found
        self.cure = cure
        super().__init__(f"{code}: wanted {wanted}; found {found}; to do: {cure}")

    def to_result(self) -> dict[str, Any]:
        """``{msg, fault: {code, wanted, found, cure}}``."""
        return {
            "msg": str(self),
            "fault": {
                "code": self.code,
                "wanted": self.wanted,
                "found": self.found,
                "cure": self.cure,
            },
        }


def run_as_script(main: Callable[[], dict[str, Any]]) -> None:
    """Print what ``main`` returns as one JSON line; a fault likewise, with exit status 1."""
    try:
        result = main()
    except BuildFault as fault:
        print(json.dumps(fault.to_result()))
        sys.exit(1)
    print(json.dumps(result))


def say(text: str) -> None:
    """Progress for whoever watches standard error."""
    print(text, file=sys.stderr, flush=True)
