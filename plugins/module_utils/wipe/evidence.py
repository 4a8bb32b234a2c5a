# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a wipe leaves in writing: one record of the whole machine.

Shape (unknown is null)::

    evidence_version: 1
    operation_id, level: quick|clear|purge, sanitization: Clear|Purge|null, verify: sampled|full
    started_at, finished_at                        # RFC 3339, UTC; null while only planned
    tool: {name, version}
    machine: {uuid, serial_number, manufacturer, model, sku}
    disks_seen: [path], disks_erased: [path]
    disks_not_erased: [{path, serial_number, reason_code, reason}]
    complete: bool                                 # every disk that was seen is erased
    disks:
      - identity of the disk as in an inventory, manufacturer, firmware_version, media_type,
        namespace_id
        method, technique, tool: {name, version}
        started_at, finished_at
        verified: {mode, seed, regions: [[offset, length]], regions_count, bytes_read, found,
          result: passed|failed}
        signatures: [{type, offset}]               # found before a quick wipe
        attempts: [{method, reason_code, reason}]  # those that failed
        erased: bool, reason_code, reason

It has what the certificate of NIST SP 800-88 Rev. 2 asks of the machine; operator and place are
added by whoever stores it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..fault import Fault
from ..operation import operation_directory, utc_now
from .methods import SANITIZATION, Method
from .plan import DiskPlan
from .reasons import DiskRefused
from .tools import Tools

EVIDENCE_VERSION = 1
TOOL_NAME = "barewright.metal.disk_wipe"
TOOL_VERSION = "0.1.0"

Json = dict[str, Any]


def new_entry(plan: DiskPlan) -> Json:
    """The row of a disk before anything happened to it."""
    disk = plan.disk
    first = plan.methods[0] if plan.methods else None
    return {
        **disk.identity(),
        "manufacturer": disk.manufacturer,
        "firmware_version": disk.firmware_version,
        "media_type": disk.media_type,
        "namespace_id": disk.namespace_id,
        "method": first.name if first else None,
        "technique": first.technique if first else None,
        "tool": None,
        "started_at": None,
        "finished_at": None,
        "verified": None,
        "signatures": [],
        "attempts": [],
        "erased": False,
        "reason_code": plan.refused.code if plan.refused else None,
        "reason": plan.refused.text if plan.refused else None,
    }


def note_failure(entry: Json, method: Method, refused: DiskRefused) -> None:
    """Add a failed attempt; it is the disk's reason until another one succeeds."""
    entry["attempts"].append(
        {"method": method.name, "reason_code": refused.code, "reason": refused.text}
    )
    entry.update(
        method=method.name,
        technique=method.technique,
        reason_code=refused.code,
        reason=refused.text,
        finished_at=utc_now(),
    )


def note_success(entry: Json, method: Method, verified: Mapping[str, Any], tools: Tools) -> None:
    """The disk is erased, and reading it back proved it."""
    entry.update(
        method=method.name,
        technique=method.technique,
        tool=_tool(method, tools),
        verified=dict(verified),
        finished_at=utc_now(),
        erased=True,
        reason_code=None,
        reason=None,
    )


def assemble(
    *,
    operation_id: str | None,
    level: str,
    verify: str,
    machine: Mapping[str, Any],
    entries: Sequence[Json],
    started_at: str | None,
    finished_at: str | None,
) -> Json:
    """The record made of the rows of all disks."""
    ordered = [dict(entry) for entry in entries]
    missed = [entry for entry in ordered if not entry["erased"]]
    return {
        "evidence_version": EVIDENCE_VERSION,
        "operation_id": operation_id,
        "level": level,
        "sanitization": SANITIZATION[level],
        "verify": verify,
        "started_at": started_at,
        "finished_at": finished_at,
        "tool": {"name": TOOL_NAME, "version": TOOL_VERSION},
        "machine": dict(machine),
        "disks": ordered,
        "disks_seen": [_label(entry) for entry in ordered],
        "disks_erased": [_label(entry) for entry in ordered if entry["erased"]],
        "disks_not_erased": [
            {
                "path": _label(entry),
                "serial_number": entry["serial_number"],
                "reason_code": entry["reason_code"],
                "reason": entry["reason"],
            }
            for entry in missed
        ],
        "complete": bool(ordered) and not missed,
    }


def fault_of(evidence: Mapping[str, Any]) -> Fault | None:
    """``WIPE_INCOMPLETE`` or ``WIPE_NOT_VERIFIED`` for evidence that is not complete.

    The latter when nothing but the read-back is to blame. A machine without any disk is
    incomplete too: more likely a driver is missing than the disks are.
    """
    if evidence["complete"]:
        return None
    missed = evidence["disks_not_erased"]
    only_unverified = bool(missed) and all(row["reason_code"] == "NOT_VERIFIED" for row in missed)
    return Fault(
        "WIPE_NOT_VERIFIED" if only_unverified else "WIPE_INCOMPLETE",
        wanted=f"every disk erased at level {evidence['level']}",
        found=describe_refusals(missed) or "no disk at all",
        details={
            "disks_seen": evidence["disks_seen"],
            "disks_erased": evidence["disks_erased"],
            "disks_not_erased": missed,
        },
    )


def describe_refusals(rows: Sequence[Mapping[str, Any]]) -> str:
    """The disks that were not erased, with their reasons, in one line."""
    return "; ".join(
        f"{row['path']} (serial {row['serial_number']}) is not erased, "
        f"{row['reason_code']}: {row['reason']}"
        for row in rows
    )


def store(evidence: Mapping[str, Any], operation_id: str) -> str:
    """Write the evidence beside the operation's other files; returns where."""
    path = os.path.join(operation_directory(operation_id), "evidence.json")
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(evidence, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(f"{path}.new", path)
    return path


def _label(entry: Mapping[str, Any]) -> str:
    """The path, or for a namespace without a device its name."""
    return str(entry["path"] if entry["path"].endswith(entry["name"]) else entry["name"])


def _tool(method: Method, tools: Tools) -> Json:
    if method.tool == "kernel":
        return {"name": "Linux", "version": os.uname().release}
    return {"name": method.tool, "version": tools.version(method.tool)}
