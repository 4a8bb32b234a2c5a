# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choosing an erase method for every disk, before the first one is touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..disks import Disk
from ..fault import Fault
from .features import Features, read_features
from .medium import Medium
from .methods import Method, advertised_methods, named_method
from .reasons import DiskRefused
from .tools import Tools


@dataclass(frozen=True)
class DiskPlan:
    """What is going to happen to one disk: ``methods`` in turn, or nothing for a reason."""

    disk: Disk
    features: Features
    methods: tuple[Method, ...] = ()
    refused: DiskRefused | None = None

    @property
    def lane(self) -> str:
        """Disks of one lane are erased one after another, because they share the medium.

        The namespaces of a controller do, and so do two paths to one disk.
        """
        if self.disk.controllers:
            return " ".join(self.disk.controllers)
        return self.disk.wwn or self.disk.name


def make_plan(
    disks: Sequence[Disk],
    hidden: Sequence[Disk],
    level: str,
    method: str | None,
    tools: Tools,
) -> list[DiskPlan]:
    """A plan for each of ``disks`` and of the ``hidden`` namespaces, which are only named.

    Without ``method``, the methods of exactly ``level`` that a disk advertises, strongest first.
    With it, that method on every disk, whatever it advertises. Raises ``PURGE_NOT_SUPPORTED``
    with every disk that advertises none, and ``WIPE_METHOD_UNSUITABLE``.
    """
    named = named_method(method, level) if method else None
    plans = [_plan_disk(disk, level, named, tools) for disk in disks]
    lacking = [plan for plan in plans if plan.refused and plan.refused.code == "NO_METHOD"]
    if lacking:
        raise Fault(
            "PURGE_NOT_SUPPORTED",
            wanted=f"a command of level {level} on every disk",
            found="none advertised by "
            + "; ".join(
                f"{plan.disk.path} ({plan.disk.model}, {plan.disk.serial_number}, {plan.disk.bus})"
                for plan in lacking
            ),
            cure="wipe at the level clear, or take these disks out and destroy them; "
            "no disk was touched",
            details={"disks": [plan.disk.identity() for plan in lacking]},
        )
    return plans + [DiskPlan(disk, Features(), refused=_hidden_reason(disk)) for disk in hidden]


def _plan_disk(disk: Disk, level: str, named: Method | None, tools: Tools) -> DiskPlan:
    try:
        _require_erasable(disk)
    except DiskRefused as reason:
        return DiskPlan(disk, Features(), refused=reason)
    # Asking a disk takes a process or two, and below purge nothing of the answer is needed.
    if named is None and level != "purge":
        features = Features(write_zeroes=disk.write_zeroes)
    else:
        features = read_features(disk, tools)
    if named:
        return DiskPlan(disk, features, (named,))
    methods = tuple(
        method for method in advertised_methods(disk.bus, features) if method.level == level
    )
    refused = None if methods else DiskRefused("NO_METHOD")
    return DiskPlan(disk, features, methods, refused)


def _hidden_reason(namespace: Disk) -> DiskRefused:
    if namespace.namespace_id is None:
        return DiskRefused("UNREADABLE", "the controller does not list its namespaces")
    return DiskRefused("NOT_ATTACHED")


def _require_erasable(disk: Disk) -> None:
    if disk.read_only:
        raise DiskRefused("READ_ONLY")
    if not disk.size_bytes:
        raise DiskRefused("NO_CAPACITY")
    with Medium(disk, writable=False):
        pass
