# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Vendor differences as data: the first matching rows, merged, are how a BMC wants to be treated.

A row matches when every pattern it names is found (case is ignored) in what the BMC says of
itself; later rows override earlier ones. ``seen`` is the public report of the behaviour.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from .interfaces import Identity


@dataclass(frozen=True)
class Behaviour:
    """How to treat one BMC. The defaults are what the standards promise, plus some patience."""

    settle_seconds: float = 1.0
    """Pause after an observed change of power before the next command."""

    spacing_seconds: float = 0.5
    """Least time between two commands that change something."""

    minimal_boot_payload: bool = False
    """Send target and enabled without the mode first; the complete form only on demand."""

    ipmi_uefi_disk_selector: int | None = None
    """Boot device selector for "disk" together with UEFI, where it is not the standard 2."""


@dataclass(frozen=True)
class Quirk:
    """One row: patterns (empty matches all) and what they change in :class:`Behaviour`."""

    change: dict[str, Any]
    seen: str
    manufacturer: str = ""
    model: str = ""
    firmware: str = ""

    def matches(self, identity: Identity) -> bool:
        """Whether every named pattern is found."""
        return all(
            re.search(pattern, value, re.IGNORECASE) is not None
            for pattern, value in (
                (self.manufacturer, identity.manufacturer),
                (self.model, identity.model),
                (self.firmware, identity.firmware),
            )
            if pattern
        )


QUIRKS: tuple[Quirk, ...] = (
    Quirk(
        manufacturer=r"^(HPE|Hewlett)",
        change={"minimal_boot_payload": True},
        seen="400 when BootSourceOverrideMode is sent too: community.general 3509, 3690",
    ),
    Quirk(
        manufacturer=r"^(Dell|DellEMC)",
        change={"settle_seconds": 10.0},
        seen="409 to On for a while after a power-off: launchpad ironic 2162995",
    ),
    Quirk(
        manufacturer=r"OpenBMC|^IBM$",
        change={"settle_seconds": 5.0},
        seen="off and on sent too close together is swallowed: xcat-core 4150",
    ),
    Quirk(
        manufacturer=r"Super\s?micro",
        change={"ipmi_uefi_disk_selector": 0x9, "spacing_seconds": 1.0},
        seen="wants selector byte 0x24 for a UEFI disk: storyboard 2008241",
    ),
)


@dataclass(frozen=True)
class BusyMessage:
    """Part of a Redfish message id (or its text) that means "not now", whatever the HTTP status."""

    fragment: str
    seen: str
    status: frozenset[int] = field(default_factory=lambda: frozenset({400, 403, 405, 500}))


BUSY_MESSAGES: tuple[BusyMessage, ...] = (
    BusyMessage("UnableToModifyDuringSystemPOST", "iLO in POST: launchpad ironic 2136275"),
    BusyMessage("InvalidOperationForSystemState", "iLO after an operation: sushy"),
    BusyMessage("SYS518", "iDRAC not ready after an operation: sushy"),
    BusyMessage("RAC0218", "iDRAC out of sessions: smart-proxy 895"),
    BusyMessage("ResourceInUse", "Base registry: the resource is in use, retry"),
    BusyMessage("ServiceTemporarilyUnavailable", "Base registry: retry"),
)


def behaviour_of(identity: Identity, quirks: tuple[Quirk, ...] = QUIRKS) -> Behaviour:
    """The behaviour for a BMC, from all rows that match it."""
    changes: dict[str, Any] = {}
    for quirk in quirks:
        if quirk.matches(identity):
            changes.update(quirk.change)
    return Behaviour(**changes)


def busy_message(status: int, words: list[str]) -> BusyMessage | None:
    """The row that makes an error answer with ``words`` (message ids and texts) a "not now"."""
    for row in BUSY_MESSAGES:
        if status in row.status and any(row.fragment in word for word in words):
            return row
    return None
