# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: Barewright contributors
"""What a build needs of the host: its tools, and ids of its own when it does not run as root."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from .errors import BuildFault

DEBIAN_PACKAGE_OF = {
    "apt-config": "apt",
    "cpio": "cpio",
    "mcopy": "mtools",
    "mke2fs": "e2fsprogs",
    "mkfs.vfat": "dosfstools",
    "mksquashfs": "squashfs-tools",
    "mmdebstrap": "mmdebstrap",
    "newuidmap": "uidmap",
    "syslinux": "syslinux",
    "tar": "tar",
    "unshare": "util-linux",
    "xz": "xz-utils",
    "zstd": "zstd",
}


def require_tools(tools: Iterable[str]) -> None:
    """Fault BUILD_TOOLS_MISSING that names the Debian packages to install."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    # An ordinary user's PATH on Debian leaves out where mke2fs and mkfs.vfat are.
    os.environ["PATH"] = path
    missing = sorted({tool for tool in tools if shutil.which(tool, path=path) is None})
    if missing:
        packages = " ".join(sorted({DEBIAN_PACKAGE_OF[tool] for tool in missing}))
        raise BuildFault(
            "BUILD_TOOLS_MISSING",
            wanted="the tools that build images",
            found=f"no {', '.join(missing)}",
            cure=f"apt-get install {packages}",
        )


def require_subordinate_ids() -> None:
    """Fault BUILD_USER_NAMESPACE_REFUSED where a user cannot own a tree of many owners."""
    if os.geteuid() == 0:
        return
    require_tools(["newuidmap", "unshare"])
    probe = subprocess.run(
        ["unshare", "--map-root-user", "--map-auto", "true"],
        capture_output=True,
        check=False,
        text=True,
    )
    if probe.returncode:
        raise BuildFault(
            "BUILD_USER_NAMESPACE_REFUSED",
            wanted="a user namespace with a range of subordinate ids",
            found=probe.stderr.strip() or "a refusal without a reason",
            cure="give the user lines in /etc/subuid and /etc/subgid (usermod --add-subuids"
            " 100000-165535 --add-subgids 100000-165535 USER) and allow unprivileged user"
            " namespaces, or build as root",
        )


def in_user_namespace(command: list[str]) -> list[str]:
    """``command`` such that it may own files as root and as any other user of the tree."""
    if os.geteuid() == 0:
        return command
    require_subordinate_ids()
    return ["unshare", "--map-root-user", "--map-auto", "--", *command]


def run(command: list[str], *, data: bytes | None = None) -> str:
    """Run a tool; its output, or fault BUILD_FAILED with the last lines that it wrote."""
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    if done.returncode:
        raise tool_failed(command[0], done.returncode, done.stderr or done.stdout)
    return done.stdout.decode(errors="replace")


def run_again_as_root(arguments: list[str]) -> None:
    """Run this script once more as root, or root of a namespace; its fault becomes ours."""
    command = in_user_namespace([sys.executable, *arguments])
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode == 0:
        return
    try:
        fault = json.loads(done.stdout)["fault"]
    except (ValueError, KeyError):
        raise tool_failed(Path(arguments[0]).name, done.returncode, done.stderr) from None
    raise BuildFault(**fault)


def remove_tree(path: Path) -> None:
    """Remove a folder, also files of subordinate ids that the user alone could not remove."""
    if not path.is_dir():
        return
    for parent, _folders, _files in os.walk(path):
        with contextlib.suppress(OSError):
            Path(parent).chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)
    if path.is_dir() and os.geteuid():
        run(in_user_namespace(["rm", "-rf", "--", str(path)]))


def tool_failed(tool: str, status: int, output: bytes) -> BuildFault:
    """Fault BUILD_FAILED with the last lines that the tool wrote."""
    lines = output.decode(errors="replace").strip().splitlines()
    return BuildFault(
        "BUILD_FAILED",
        wanted=f"{tool} to succeed",
        found=f"status {status}, and at its end: " + " | ".join(lines[-12:]),
        cure="mend what it names and build again; nothing was published",
    )
