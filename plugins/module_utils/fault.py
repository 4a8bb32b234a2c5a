# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One shape for everything that goes wrong: a code of the fault table and three sentences."""

from __future__ import annotations

from typing import Any


class Fault(Exception):  # noqa: N818  "fault" is the word of the house, not "error"
    """An error that an operator can act on.

    ``code`` is a row of ``faults.yml``; ``wanted`` says what was asked for, ``found`` what was
    there instead, ``cure`` what to do next (empty: the cure of the table applies). ``details``
    holds plain JSON data and never a secret.
    """

    def __init__(
        self,
        code: str,
        *,
        wanted: str = "",
        found: str = "",
        cure: str = "",
        details: dict[str, Any] | None = None,
    ) -> None:
        self.code = code
        self.wanted = wanted
        self.found = found
        self.cure = cure
        self.details = details or {}
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """``CODE: wanted …; found …; to do: …`` with the empty parts left out."""
        parts = []
        if self.wanted:
            parts.append(f"wanted {self.wanted}")
        if self.found:
            parts.append(f"found {self.found}")
        if self.cure:
            parts.append(f"to do: {self.cure}")
        return f"{self.code}: " + "; ".join(parts) if parts else self.code

    def to_result(self) -> dict[str, Any]:
        """``{failed, msg, fault: {code, wanted, found, cure, details}}``: a task's result."""
        return {
            "failed": True,
            "msg": self.message,
            "fault": {
                "code": self.code,
                "wanted": self.wanted,
                "found": self.found,
                "cure": self.cure,
                "details": self.details,
            },
        }

    @classmethod
    def from_result(cls, fault: dict[str, Any]) -> Fault:
        """The inverse of :meth:`to_result`, from its ``fault`` part."""
        return cls(
            str(fault["code"]),
            wanted=str(fault.get("wanted", "")),
            found=str(fault.get("found", "")),
            cure=str(fault.get("cure", "")),
            details=dict(fault.get("details") or {}),
        )
