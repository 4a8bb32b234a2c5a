# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A user of this machine, made for these tests, with a clone and no right to become root."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SUBORDINATE_IDS = "500000-565535"


@dataclass(frozen=True)
class OrdinaryUser:
    """An account with a clone of this repository in its home."""

    name: str
    home: Path
    tun: Path

    @property
    def clone(self) -> Path:
        return self.home / "barewright"

    def run(self, command: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell command in the clone as this user, output and errors together.

        The built virtual environment is lent read-only, and /dev/net/tun is open to everybody, as
        on any Debian machine; a container's may be root's alone. Both only in a mount namespace
        that ends with the command.
        """
        variables = {
            "HOME": str(self.home),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            **{key: os.environ[key] for key in ("ANSIBLE_CORE",) if key in os.environ},
        }
        as_user = shlex.join(
            [
                *("runuser", "--user", self.name, "--", "env", "-i"),
                *(f"{key}={value}" for key, value in variables.items()),
                *("bash", "-c", f"cd {shlex.quote(str(self.clone))} && {command}"),
            ]
        )
        script = "\n".join(
            [
                "set -e",
                shlex.join(["mount", "--bind", sys.prefix, f"{self.clone}/.cache/venv"]),
                shlex.join(["mount", "-o", "remount,bind,ro", f"{self.clone}/.cache/venv"]),
                shlex.join(["mount", "--bind", str(self.tun), "/dev/net/tun"]),
                f"exec {as_user}",
            ]
        )
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        if check:
            assert done.returncode == 0, done.stdout
        return done

    def processes(self) -> list[str]:
        """The command lines of everything that runs as this user or under its subordinate ids.

        What has ended and waits to be reaped by the machine's init has none any more.
        """
        first, last = map(int, SUBORDINATE_IDS.split("-"))
        own = pwd.getpwnam(self.name).pw_uid
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                uid = entry.stat().st_uid
                if uid == own or first <= uid <= last:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    if any(words):
                        found.append(b" ".join(words).decode(errors="replace"))
            except OSError:
                continue  # it ended while we looked
        return found


@pytest.fixture(scope="module")
def ordinary_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OrdinaryUser]:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user; here everything runs as an ordinary one")
    name = f"barewright-{os.getpid()}"
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", name], check=True)
    try:
        # A range of our own: useradd gives one only where login.defs says so.
        ids = ["--add-subuids", SUBORDINATE_IDS, "--add-subgids", SUBORDINATE_IDS]
        subprocess.run(["usermod", *ids, name], check=True)
        tun = tmp_path_factory.mktemp("dev") / "tun"
        os.mknod(tun, 0o666 | stat.S_IFCHR, os.makedev(10, 200))
        tun.chmod(0o666)
        user = OrdinaryUser(name, Path(pwd.getpwnam(name).pw_dir), tun)
        subprocess.run(["git", "clone", "--quiet", ROOT, user.clone], check=True)
        _copy_what_is_not_committed(user.clone)
        (user.clone / ".cache/venv").mkdir(parents=True)
        subprocess.run(["chown", "--recursive", f"{name}:", user.home], check=True)
        yield user
        assert user.processes() == []
    finally:
        subprocess.run(["userdel", "--remove", "--force", name], check=True, capture_output=True)


def _copy_what_is_not_committed(clone: Path) -> None:
    """What is tested is this working tree, as in every other test."""
    changed = subprocess.run(
        ["git", "ls-files", "-z", "--modified", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, changed.split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            subprocess.run(["cp", "--preserve=mode", ROOT / name, clone / name], check=True)
        else:
            (clone / name).unlink(missing_ok=True)
