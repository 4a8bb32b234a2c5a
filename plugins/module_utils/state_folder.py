# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record that plain playbook runs keep of a node: one YAML file a host in a state folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .fault import Fault

try:
    import yaml

    HAS_YAML = True
except ImportError:  # only a module on a far interpreter can lack it; Ansible itself needs it
    HAS_YAML = False

Record = dict[str, Any]
RECORD_VERSION = 1


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: objects merge key by key, null deletes, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def record_path(state_dir: str | Path, host: str) -> Path:
    """Where the record of ``host`` lies. Raises ``STATE_UNUSABLE`` for a name no file can have."""
    if not host or "/" in host or host.startswith("."):
        raise Fault(
            "STATE_UNUSABLE",
            wanted="a node name that can name a file (RFC 1123)",
            found=repr(host),
        )
    return Path(state_dir) / f"{host}.yml"


def read_record(state_dir: str | Path, host: str) -> Record:
    """The record of ``host``; ``{version, node}`` where none was written yet.

    Raises ``STATE_UNUSABLE`` when the file is there and is not a record: a damaged record is
    never taken for "nothing known", since the next step could then destroy what it describes.
    """
    path = record_path(state_dir, host)
    _need_yaml()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {"version": RECORD_VERSION, "node": host}
    except OSError as error:
        raise Fault("STATE_UNUSABLE", wanted=f"to read {path}", found=str(error)) from error
    try:
        record = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Fault("STATE_UNUSABLE", wanted=f"YAML in {path}", found=str(error)) from error
    if not isinstance(record, dict) or record.get("version") != RECORD_VERSION:
        raise Fault(
            "STATE_UNUSABLE",
            wanted=f"a record of version {RECORD_VERSION} in {path}",
            found=f"version {record.get('version')!r}"
            if isinstance(record, dict)
            else "no mapping",
        )
    return record


def update_record(state_dir: str | Path, host: str, patch: Record) -> tuple[Record, Record]:
    """Merge ``patch`` into the record; return it before and after.

    The write is atomic (a new file, synced, renamed) and serialised between processes by a lock
    file, so that a crash leaves the old record or the new one, never half of one.
    """
    path = record_path(state_dir, host)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(path.with_name(f".{host}.lock")):
            before = read_record(state_dir, host)
            after = merge_patch(before, patch)
            if after != before:
                _write(path, after)
    except OSError as error:
        raise Fault("STATE_UNUSABLE", wanted=f"to write {path}", found=str(error)) from error
    return before, after


def _need_yaml() -> None:
    if not HAS_YAML:
        raise Fault(
            "LIBRARY_MISSING",
            wanted="the Python library PyYAML",
            found="it is not installed for this interpreter",
        )


@contextlib.contextmanager
def folder_lock(state_dir: str | Path) -> Iterator[None]:
    """Keep every other process that takes it out, while records are compared with each other.

    Raises ``STATE_UNUSABLE`` when the folder cannot be made or written.
    """
    path = Path(state_dir) / ".folder.lock"
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            stack.enter_context(_locked(path))
        except OSError as error:
            raise Fault("STATE_UNUSABLE", wanted=f"to lock {path}", found=str(error)) from error
        yield


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, record: Record) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            # Ansible's strings are of classes of its own, which YAML's safe writer refuses
            plain = json.loads(json.dumps(record))
            yaml.safe_dump(plain, stream, sort_keys=False, allow_unicode=True)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
