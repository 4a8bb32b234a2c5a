# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Erasing all disks of a machine side by side, each by its plan, each read back."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..deadline import Deadline
from ..operation import utc_now
from .erasers import Job, Pace, erase
from .evidence import assemble, new_entry, note_failure, note_success
from .medium import CHUNK_BYTES, Medium
from .methods import METHODS, Method
from .plan import DiskPlan
from .reasons import DiskRefused
from .regions import (
    Region,
    full_regions,
    metadata_regions,
    read_signatures,
    sample_regions,
)
from .tools import Tools
from .verify import Verdict, plant_marks, read_back, require_passed, verified

_LOOK_SECONDS = 0.2

# Marks and metadata: a thousand places at most, on a slow disk that retries.
_SHORT_WORK_SECONDS = 1800.0

Json = dict[str, Any]

Report = Callable[[int, int, str], None]
"""Told from time to time: bytes done, bytes in all, a line of text."""


@dataclass(frozen=True)
class Request:
    """What is asked for. ``seed`` chooses the sampled places and the marks."""

    operation_id: str | None
    level: str
    verify: str  # sampled | full
    seed: str
    timeout_seconds: float


def plan_evidence(plans: Sequence[DiskPlan], request: Request, machine: Mapping[str, Any]) -> Json:
    """The evidence of a wipe that did not happen yet."""
    return assemble(
        operation_id=request.operation_id,
        level=request.level,
        verify=request.verify,
        machine=machine,
        entries=[new_entry(plan) for plan in plans],
        started_at=None,
        finished_at=None,
    )


def wipe(
    plans: Sequence[DiskPlan],
    request: Request,
    machine: Mapping[str, Any],
    tools: Tools,
    report: Report,
) -> Json:
    """Carry out the plans and return the evidence, however it ends and by its deadline.

    A disk that cannot be erased never keeps the others from it. What hangs is left hanging in a
    daemon thread and named TIMED_OUT.
    """
    started_at = utc_now()
    deadline = Deadline(request.timeout_seconds)
    tracks = [_Track(plan, deadline) for plan in plans]
    lanes: dict[str, list[_Track]] = {}
    for track in tracks:
        if not track.settled:
            lanes.setdefault(track.plan.lane, []).append(track)
    threads = [
        threading.Thread(target=_run_lane, args=(lane, request, tools), daemon=True)
        for lane in lanes.values()
    ]
    for thread in threads:
        thread.start()
    while not all(track.settled for track in tracks):
        for lane in lanes.values():
            _give_up_overdue(lane)
        _tell(tracks, report)
        time.sleep(_LOOK_SECONDS)
    tools.stop()
    _tell(tracks, report)
    return assemble(
        operation_id=request.operation_id,
        level=request.level,
        verify=request.verify,
        machine=machine,
        entries=[track.entry for track in tracks],
        started_at=started_at,
        finished_at=utc_now(),
    )


class _Track:
    """One disk on its way; also the watch of its erasers."""

    def __init__(self, plan: DiskPlan, deadline: Deadline) -> None:
        self.plan = plan
        self.entry = new_entry(plan)
        self.doing = "waiting"
        self._deadline = deadline
        self._limit_at: float | None = None
        self._done_bytes = 0
        self._settled = plan.refused is not None
        self._lock = threading.Lock()

    @property
    def settled(self) -> bool:
        """Whether the last word about the disk is spoken."""
        return self._settled

    @property
    def done_bytes(self) -> int:
        """How much of the disk is erased."""
        return self.plan.disk.size_bytes if self._settled else self._done_bytes

    @property
    def overdue(self) -> bool:
        """Whether the disk had its time and is still at it."""
        if self._settled:
            return False
        late = self._limit_at is not None and time.monotonic() > self._limit_at
        return late or self._deadline.expired

    def allow(self, seconds: float) -> float:
        """See ``erasers.Watch``. Every change of what is going on arms the limit anew."""
        granted = min(seconds, self._deadline.remaining())
        self._limit_at = time.monotonic() + granted
        return granted

    def advance(self, done_bytes: int) -> None:
        """See ``erasers.Watch``."""
        self._done_bytes = done_bytes

    def begin(self, doing: str) -> None:
        """Say what is going on."""
        self.doing = doing
        if self.entry["started_at"] is None:
            self.entry["started_at"] = utc_now()

    def change(self, edit: Callable[[Json], None], settle: bool) -> None:
        """Edit the row, unless the last word is spoken: a late answer changes nothing."""
        with self._lock:
            if not self._settled:
                # A new row takes the old one's place whole, so that readers need no lock.
                entry = {**self.entry, "attempts": list(self.entry["attempts"])}
                edit(entry)
                self.entry = entry
                self._settled = settle

    def fail(self, method: Method, refused: DiskRefused, settle: bool = False) -> None:
        """Note that ``method`` did not erase the disk."""
        self.change(lambda entry: note_failure(entry, method, refused), settle)


class _Unadvancing:
    """A watch for reading back, which is no progress of the erase."""

    def __init__(self, track: _Track) -> None:
        self.allow = track.allow

    def advance(self, done_bytes: int) -> None:
        """Nothing is erased by reading."""


def _run_lane(lane: Sequence[_Track], request: Request, tools: Tools) -> None:
    try:
        for method in METHODS:
            tracks = [track for track in lane if not track.settled and method in track.plan.methods]
            groups = [tracks] if method.scope == "controller" else [[one] for one in tracks]
            for group in groups:
                if group:
                    _attempt(group, method, request, tools)
        crash = None
    except Exception as error:
        # A thread that died silently would leave its disks waiting for the deadline.
        traceback.print_exc()
        crash = DiskRefused("METHOD_FAILED", f"{type(error).__name__}: {error}")
    for track in lane:
        # Without a crash, the reason is that of the last attempt.
        _settle_unerased(track, crash)


def _settle_unerased(track: _Track, refused: DiskRefused | None) -> None:
    def edit(entry: Json) -> None:
        entry["finished_at"] = utc_now()
        if refused:
            entry.update(reason_code=refused.code, reason=refused.text)

    track.change(edit, settle=True)


def _give_up_overdue(lane: Sequence[_Track]) -> None:
    late = next((track for track in lane if track.overdue), None)
    if late is None:
        return
    for track in lane:
        whose = "" if track is late else f" on {late.plan.disk.path}, which shares the medium"
        _settle_unerased(track, DiskRefused("TIMED_OUT", f"{late.doing}{whose}"))


def _tell(tracks: Sequence[_Track], report: Report) -> None:
    busy = [f"{track.plan.disk.name} {track.doing}" for track in tracks if not track.settled]
    settled = len(tracks) - len(busy)
    report(
        sum(track.done_bytes for track in tracks),
        sum(track.plan.disk.size_bytes for track in tracks),
        ", ".join([f"{settled} of {len(tracks)} disks done", *busy]),
    )


def _attempt(tracks: Sequence[_Track], method: Method, request: Request, tools: Tools) -> None:
    if method.name == "metadata":
        _each(tracks, method, lambda track: _wipe_metadata(track, method, tools))
        return
    ready = _each(tracks, method, lambda track: _prepare(track, request))
    if not ready:
        return
    for track in ready:
        track.begin(method.name)
    job = Job(ready[0].plan.disk, ready[0].plan.features, method, tools, ready[0])
    try:
        erase(job)
    except DiskRefused as refused:
        for track in ready:
            track.fail(method, refused)
        return
    _each(ready, method, lambda track: _confirm(track, method, request, tools))


def _each(tracks: Iterable[_Track], method: Method, act: Callable[[_Track], None]) -> list[_Track]:
    """``act`` on every track; returns those that did not refuse."""
    willing = []
    for track in tracks:
        try:
            act(track)
            willing.append(track)
        except DiskRefused as refused:
            track.fail(method, refused)
    return willing


def _regions(track: _Track, request: Request) -> list[Region]:
    disk = track.plan.disk
    return sample_regions(disk.size_bytes, disk.logical_sector_bytes, request.seed)


def _prepare(track: _Track, request: Request) -> None:
    track.begin("marking")
    track.allow(_SHORT_WORK_SECONDS)
    with Medium(track.plan.disk) as medium:
        sector = track.plan.disk.logical_sector_bytes
        plant_marks(medium, _regions(track, request), sector, request.seed)


def _confirm(track: _Track, method: Method, request: Request, tools: Tools) -> None:
    disk = track.plan.disk
    track.begin("reading back")
    sampled = _regions(track, request)
    with Medium(disk) as medium:
        verdict = _read(track, medium, sampled, method.leaves, request.seed)
        regions = sampled
        if request.verify == "full" and verdict.passed:
            regions = full_regions(disk.size_bytes, CHUNK_BYTES)
            verdict = _read(track, medium, regions, method.leaves, request.seed)
        medium.reread_partitions()
    row = verified(request.verify, request.seed, regions, verdict)
    track.change(lambda entry: entry.update(verified=row), settle=False)
    require_passed(verdict)
    track.change(lambda entry: note_success(entry, method, row, tools), settle=True)


def _wipe_metadata(track: _Track, method: Method, tools: Tools) -> None:
    disk = track.plan.disk
    track.begin("clearing metadata")
    track.allow(_SHORT_WORK_SECONDS)
    with Medium(disk) as medium:
        signatures = read_signatures(disk, tools)
        regions = metadata_regions(disk, medium, [offset for _kind, offset in signatures])
        for region in regions:
            medium.overwrite(region.offset, region.length)
        medium.flush()
        track.begin("reading back")
        verdict = _read(track, medium, regions, method.leaves)
        medium.reread_partitions()
    row = verified("metadata", None, regions, verdict)
    found = [{"type": kind, "offset": offset} for kind, offset in signatures]
    track.change(lambda entry: entry.update(verified=row, signatures=found), settle=False)
    require_passed(verdict)
    left = read_signatures(replace(disk, partitions=()), tools)
    if left:
        raise DiskRefused(
            "NOT_VERIFIED", f"signatures left: {', '.join(kind for kind, _offset in left)}"
        )
    track.change(lambda entry: note_success(entry, method, row, tools), settle=True)


def _read(
    track: _Track, medium: Medium, regions: Sequence[Region], leaves: str, seed: str | None = None
) -> Verdict:
    pace = Pace(_Unadvancing(track), sum(region.length for region in regions))
    sector = track.plan.disk.logical_sector_bytes
    return read_back(medium, regions, sector, leaves=leaves, seed=seed, advance=pace)
