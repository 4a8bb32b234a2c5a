# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fault table of the collection, as controller plugins read it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

CLASSES = ("permanent", "retryable", "needs_operator")
UNEXPECTED = "UNEXPECTED"


@cache
def fault_table() -> dict[str, dict[str, Any]]:
    """``{code: {code, class, cause, cure}}``, from the collection's ``faults.yml``."""
    path = Path(__file__).resolve().parents[2] / "faults.yml"
    rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {row["code"]: row for row in rows}


def classify(code: str) -> dict[str, Any]:
    """The row of ``code``; the row of ``UNEXPECTED`` for a code the table does not know."""
    table = fault_table()
    return table.get(code, table[UNEXPECTED])
