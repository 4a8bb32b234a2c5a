# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work that outlives the connection that started it.

Each operation has a directory ``/run/barewright/operations/<operation_id>`` on the machine:

- ``lock``: held (flock) by the daemon for as long as it lives, so death needs no heartbeat;
- ``request.json``: ``{operation_id, label, digest, started_at}``, written before the daemon starts;
- ``status.json``: ``{operation_id, label, state: running|finished|failed, pid, started_at,
  updated_at, phase, done_bytes, total_bytes, bytes_per_second, eta_seconds, text, details}``;
- ``result.json``: what the module would have returned, written once, atomically, at the end;
- ``log``: what the daemon and its tools wrote.

``/run`` is a tmpfs: a machine that rebooted knows no operation of before, and says so.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import signal
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from ansible.module_utils.common.parameters import remove_values

from .fault import Fault

OPERATIONS_ROOT = "/run/barewright/operations"

# One path component, and safe in a URL, a shell word and a log line.
_OPERATION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_STATUS_INTERVAL_SECONDS = 1.0
_NOTICE_TIMEOUT_SECONDS = 5.0
_START_SECONDS = 5.0

Json = dict[str, Any]


def argument_spec() -> dict[str, Json]:
    """The options of every detached module (doc fragment ``barewright.metal.operation``)."""
    return {
        "operation_id": {"type": "str"},
        "timeout_seconds": {"type": "int", "default": 3600},
        "unreachable_seconds": {"type": "int", "default": 60},
        "work_ended": {
            "type": "dict",
            "options": {
                "url": {"type": "str", "required": True},
                "node": {"type": "str", "required": True},
            },
        },
    }


def new_id(label: str) -> str:
    """A fresh operation id for work that nobody named."""
    return f"{label}-{uuid.uuid4()}"


def utc_now() -> str:
    """Now, as RFC 3339 in UTC with whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Progress:
    """What the daemon tells about itself; calls are cheap, the file is written once a second."""

    def __init__(self, directory: str, operation_id: str, label: str) -> None:
        self._path = os.path.join(directory, "status.json")
        self._written = 0.0
        self._phase_began = time.monotonic()
        self._status: Json = {
            "operation_id": operation_id,
            "label": label,
            "state": "running",
            "pid": os.getpid(),
            "started_at": utc_now(),
            "phase": "starting",
            "done_bytes": None,
            "total_bytes": None,
            "bytes_per_second": None,
            "eta_seconds": None,
            "text": "",
            "details": {},
        }
        self._write()

    def update(
        self,
        *,
        phase: str | None = None,
        done_bytes: int | None = None,
        total_bytes: int | None = None,
        text: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Change what is given; a new ``phase`` forgets the byte counts and is written at once."""
        status = self._status
        new_phase = phase is not None and phase != status["phase"]
        if new_phase:
            self._phase_began = time.monotonic()
            status["phase"] = phase
            for name in ("done_bytes", "total_bytes", "bytes_per_second", "eta_seconds"):
                status[name] = None
        if total_bytes is not None:
            status["total_bytes"] = total_bytes
        if done_bytes is not None:
            status["done_bytes"] = done_bytes
            self._estimate(done_bytes)
        if text is not None:
            status["text"] = text
        if details is not None:
            status["details"] = dict(details)
        if new_phase or time.monotonic() - self._written >= _STATUS_INTERVAL_SECONDS:
            self._write()

    def _estimate(self, done_bytes: int) -> None:
        elapsed = time.monotonic() - self._phase_began
        if elapsed < 0.5 or done_bytes <= 0:
            return
        rate = done_bytes / elapsed
        self._status["bytes_per_second"] = int(rate)
        total = self._status["total_bytes"]
        if total:
            self._status["eta_seconds"] = int(max(0, total - done_bytes) / rate)

    def end(self, state: str) -> None:
        """The last word: ``finished`` or ``failed``."""
        self._status["state"] = state
        self._status["eta_seconds"] = None
        self._write()

    def _write(self) -> None:
        self._status["updated_at"] = utc_now()
        _write_json(self._path, self._status)
        self._written = time.monotonic()


Work = Callable[[Progress], Json]


def parameters_digest(parameters: Mapping[str, Any]) -> str:
    """SHA-256 of ``parameters`` in one spelling: what makes two starts the same operation."""
    text = json.dumps(parameters, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def start(
    operation_id: str,
    parameters: Mapping[str, Any],
    work: Work,
    *,
    label: str,
    root: str = OPERATIONS_ROOT,
    prepare: Callable[[], None] = lambda: None,
    work_ended: Mapping[str, str] | None = None,
    no_log_values: Iterable[str] = (),
) -> Json:
    """Start ``work`` as a daemon, or find the one that this id already names.

    Returns ``{"operation": {id, label, directory, pid, state: running|finished, attached}}`` and,
    when finished, ``"result"``: the stored module result. ``attached`` is false for the one call
    that started the work. ``parameters`` holds what must be equal for the id to mean the same
    work (no deadlines, no credentials). ``work`` runs in the daemon with everything it needs from
    this collection imported beforehand, because the archive that Ansible unpacked is gone by then;
    it returns the module's result or raises Fault. ``prepare`` is called right before the work is
    started, and only then; a Fault of it is raised here and leaves the id unused. ``work_ended``
    is ``{url, node}``; a notice is posted to ``{url}/v1/work-ended`` at the end, and its failure
    changes nothing.

    Faults: INVALID_INPUT, OPERATION_ID_REUSED (same id, other parameters), OPERATION_LOST
    (its daemon died without a result), OPERATION_CRASHED (as stored result).
    """
    directory = operation_directory(operation_id, root)
    digest = parameters_digest(parameters)
    os.makedirs(root, mode=0o755, exist_ok=True)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    lock = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        locked = _try_lock(lock)
        # Whoever holds the lock may be about to write what is read here.
        patience = 0.0 if locked else _START_SECONDS
        request = _await_json(os.path.join(directory, "request.json"), patience)
        if request is not None and request["digest"] != digest:
            raise Fault(
                "OPERATION_ID_REUSED",
                wanted=f"{label} as operation {operation_id}",
                found=f"the id already names {request['label']} with other parameters, "
                f"started at {request['started_at']}",
                cure="choose a new operation_id for other work",
            )
        result = _read_json(os.path.join(directory, "result.json"))
        if result is not None:
            return _describe(directory, operation_id, label, "finished", True, result)
        if not locked:
            _await_json(os.path.join(directory, "status.json"), patience)
            return _describe(directory, operation_id, label, "running", True)
        if request is not None and os.path.exists(os.path.join(directory, "status.json")):
            raise Fault(
                "OPERATION_LOST",
                wanted=f"the result of {label} {operation_id}",
                found="its process ended without leaving one",
                details={"log_tail": _log_tail(directory)},
            )
        prepare()
        _write_json(
            os.path.join(directory, "request.json"),
            {
                "operation_id": operation_id,
                "label": label,
                "digest": digest,
                "started_at": utc_now(),
            },
        )
        _launch(directory, operation_id, label, work, lock, work_ended, tuple(no_log_values))
        return _describe(directory, operation_id, label, "running", False)
    finally:
        os.close(lock)


def operation_directory(operation_id: str, root: str = OPERATIONS_ROOT) -> str:
    """Where the operation keeps its files. Fault: INVALID_INPUT."""
    if not _OPERATION_ID.fullmatch(operation_id):
        raise Fault(
            "INVALID_INPUT",
            wanted="an operation_id of at most 128 letters, digits, '.', '_' and '-'",
            found=repr(operation_id),
        )
    return os.path.join(root, operation_id)


def _describe(
    directory: str,
    operation_id: str,
    label: str,
    state: str,
    attached: bool,
    result: Json | None = None,
) -> Json:
    status = _read_json(os.path.join(directory, "status.json")) or {}
    described: Json = {
        "operation": {
            "id": operation_id,
            "label": label,
            "directory": directory,
            "pid": status.get("pid"),
            "state": state,
            "attached": attached,
        }
    }
    if result is not None:
        described["result"] = result
    return described


def _launch(
    directory: str,
    operation_id: str,
    label: str,
    work: Work,
    lock: int,
    work_ended: Mapping[str, str] | None,
    no_log_values: tuple[str, ...],
) -> None:
    """Fork twice and return once the daemon has written its first status."""
    ready, report = os.pipe()
    child = os.fork()
    if child == 0:
        # A new session, and not its leader: no terminal and no hang-up can reach the daemon.
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        _become_daemon(directory, keep=(lock, report))
        _run(directory, operation_id, label, work, report, work_ended, no_log_values)
    os.close(report)
    os.waitpid(child, 0)
    with os.fdopen(ready, "rb") as stream:
        if stream.read() != b"ready":
            raise Fault(
                "OPERATION_LOST",
                wanted=f"{label} {operation_id} to start",
                found="its process ended at once",
                details={"log_tail": _log_tail(directory)},
            )


def _become_daemon(directory: str, keep: tuple[int, ...]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.chdir("/")
    os.umask(0o077)
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(
        os.path.join(directory, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode=0o600
    )
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in keep:
            try:
                os.close(descriptor)
            except OSError as error:
                if error.errno != errno.EBADF:  # the listing's own descriptor is gone already
                    raise


def _run(
    directory: str,
    operation_id: str,
    label: str,
    work: Work,
    report: int,
    work_ended: Mapping[str, str] | None,
    no_log_values: tuple[str, ...],
) -> NoReturn:
    """The daemon's life. It never returns: the caller's clean-up handlers are not its own."""
    exit_code = 1
    try:
        progress = Progress(directory, operation_id, label)
        os.write(report, b"ready")
        os.close(report)
        result = _work_to_result(work, progress)
        _write_json(
            os.path.join(directory, "result.json"), remove_values(result, set(no_log_values))
        )
        progress.end("failed" if result.get("failed") else "finished")
        if work_ended:
            _post_work_ended(work_ended["url"], work_ended["node"], operation_id)
        exit_code = 0
    except BaseException:
        _log_traceback()
    os._exit(exit_code)


def _work_to_result(work: Work, progress: Progress) -> Json:
    try:
        return work(progress)
    except Fault as fault:
        return {"changed": True, **fault.to_result()}
    except Exception as error:
        _log_traceback()
        crash = Fault(
            "OPERATION_CRASHED",
            wanted="the work to end with a result or a fault",
            found=f"{type(error).__name__}: {error}",
        )
        return {"changed": True, **crash.to_result()}


def _log_traceback() -> None:
    os.write(2, traceback.format_exc().encode("utf-8", "replace"))


def _post_work_ended(url: str, node: str, operation_id: str) -> None:
    # Imported here, in the daemon: it costs a second on a slow machine and belongs to the
    # standard library, which stays where it is.
    import urllib.request

    body = json.dumps({"node": node, "operation_id": operation_id}).encode()
    request = urllib.request.Request(
        f"{url.rstrip('/')}/v1/work-ended",
        data=body,
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    # The boot server is on the provisioning network, where no proxy is asked for.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_NOTICE_TIMEOUT_SECONDS):
            pass
    except (OSError, ValueError) as error:
        os.write(2, f"work-ended notice not delivered: {error}\n".encode())


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _await_json(path: str, patience_seconds: float) -> Json | None:
    """The file's content, awaited for a moment when somebody else is writing it."""
    end = time.monotonic() + patience_seconds
    while True:
        content = _read_json(path)
        if content is not None or time.monotonic() >= end:
            return content
        time.sleep(0.05)


def _read_json(path: str) -> Json | None:
    try:
        with open(path, encoding="utf-8") as stream:
            content = json.load(stream)
    except FileNotFoundError:
        return None
    return content if isinstance(content, dict) else None


def _write_json(path: str, content: Mapping[str, Any]) -> None:
    """Readers see the old file or the new one, never half of it."""
    temporary = f"{path}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(content, stream)
    os.replace(temporary, path)


def _log_tail(directory: str, size_bytes: int = 2000) -> str:
    try:
        with open(os.path.join(directory, "log"), "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - size_bytes))
            return stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
