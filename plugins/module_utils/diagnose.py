# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a machine is sound and has what its pool asks for."""

from __future__ import annotations

import re
from typing import Any

from .fault import Fault

# What a kernel prints when hardware failed; an I/O error of a disk is one of them, a missing
# firmware file is none.
_HARDWARE_ERROR = re.compile(
    r"Machine Check|Hardware Error|Uncorrect(ed|able)|I/O error|medium error",
    re.IGNORECASE,
)
# Level and facility, sequence, microseconds, flags; then the message.
# https://docs.kernel.org/admin-guide/abi-testing.html, /dev/kmsg
_KMSG_RECORD = re.compile(r"(\d+),\d+,\d+,[^;]*;(.*)")
_WORST_UNREMARKABLE_LEVEL = 4  # warning; error and worse have lower numbers


def shortages(inventory: dict[str, Any], minimum: dict[str, int | None]) -> list[str]:
    """A sentence for each key of ``minimum`` of which ``inventory`` has less.

    The keys are ``memory_bytes``, ``threads``, ``disks`` and ``links``; None is not checked. What
    the machine does not know of itself counts as nothing.
    """
    has = {
        "memory_bytes": (inventory.get("memory") or {}).get("size_bytes") or 0,
        "threads": (inventory.get("cpu") or {}).get("threads") or 0,
        "disks": len(inventory.get("disks") or []),
        "links": sum(1 for nic in inventory.get("nics") or [] if nic.get("link_up")),
    }
    return [
        f"{key} is {has[key]}, wanted at least {least}"
        for key, least in minimum.items()
        if least is not None and has[key] < least
    ]


def hardware_errors(records: list[str]) -> list[str]:
    """The messages among the records of ``/dev/kmsg`` that tell of failed hardware."""
    found = []
    for record in records:
        matched = _KMSG_RECORD.match(record)
        if not matched:
            continue
        level = int(matched.group(1)) & 7
        if level < _WORST_UNREMARKABLE_LEVEL and _HARDWARE_ERROR.search(matched.group(2)):
            found.append(matched.group(2))
    return found


def judge(lacking: list[str], errors: list[str]) -> None:
    """Raise ``DIAGNOSTICS_FAILED`` when anything is lacking or broken."""
    if lacking or errors:
        raise Fault(
            "DIAGNOSTICS_FAILED",
            wanted="a sound machine with what its pool asks for",
            found="; ".join(lacking + errors),
            details={"shortages": lacking, "hardware_errors": errors},
        )
