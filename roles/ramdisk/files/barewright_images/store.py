# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: Barewright contributors
"""A folder of finished builds, each under the digest of what went into it.

``<folder>/<key>/`` appears whole or not at all (rename), ``<folder>/current`` is a link to the one
that was asked for last. Inputs of a build are folders of files, packages and options; not the clock
and not what the mirror happens to offer, so the same input costs nothing the second time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .host import remove_tree

KEPT_BUILDS = 2


def digest_of(options: Any, trees: Iterable[Path]) -> str:
    """16 hex digits over JSON-able ``options`` and the names, modes and contents of ``trees``."""
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for tree in trees:
        for path in sorted(tree.rglob("*")):
            if not path.is_file() or path.suffix == ".pyc":
                continue
            executable = bool(path.stat().st_mode & 0o100)
            digest.update(f"\0{path.relative_to(tree)}\0{int(executable)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One builder at a time; the lock ends with the process, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def build_once(
    folder: Path, key: str, build: Callable[[Path], None], *, again: bool, plan_only: bool
) -> tuple[Path, bool]:
    """Have ``<folder>/<key>`` made by ``build(work_folder)`` unless it is there.

    Returns the folder and whether something changed (with ``plan_only``: would change). ``again``
    builds although it is there, which is how newer packages are taken in.
    """
    target = folder / key
    current = folder / "current"
    if not plan_only:
        folder.mkdir(parents=True, exist_ok=True)
    ready = target.is_dir() and not again
    points_here = current.is_symlink() and os.readlink(current) == key
    if plan_only or (ready and points_here):
        return target, not (ready and points_here)
    with locked(folder / ".lock"):
        _sweep(folder)
        if not target.is_dir() or again:
            work = Path(tempfile.mkdtemp(prefix=".work-", dir=folder))
            try:
                build(work)
                work.chmod(0o755)
                if target.is_dir():
                    target.rename(folder / f".work-replaced-{os.getpid()}")
                work.rename(target)
            finally:
                remove_tree(work)
        link = folder / ".current"
        link.unlink(missing_ok=True)
        link.symlink_to(key)
        link.replace(current)
        os.utime(target)
        _sweep(folder)
    return target, True


def _sweep(folder: Path) -> None:
    """Remove what killed builders left, and all but the newest builds."""
    for left in folder.glob(".work-*"):
        remove_tree(left)
    builds = [p for p in folder.iterdir() if p.is_dir() and not p.is_symlink()]
    builds.sort(key=lambda p: p.stat().st_mtime, reverse=True)
    for old in builds[KEPT_BUILDS:]:
        remove_tree(old)
