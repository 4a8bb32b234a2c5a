# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""What the rack needs of the operating system, and which Debian package brings it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

# An ordinary user's PATH on Debian lacks the first ones, where ip lives.
_SYSTEM_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")

QEMU = "qemu-system-x86_64"
OVMF_DIRECTORY = Path("/usr/share/OVMF")
TUN_DEVICE = Path("/dev/net/tun")

_PACKAGE_OF_PROGRAM = {
    QEMU: "qemu-system-x86",
    "ip": "iproute2",
    "mount": "mount",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
# SeaBIOS and the ROMs of the network cards come with QEMU by themselves.
_PACKAGE_OF_FILE = {
    OVMF_DIRECTORY / "OVMF_CODE_4M.fd": "ovmf",
    OVMF_DIRECTORY / "OVMF_VARS_4M.fd": "ovmf",
    OVMF_DIRECTORY / "OVMF_CODE_4M.ms.fd": "ovmf",
    OVMF_DIRECTORY / "OVMF_VARS_4M.ms.fd": "ovmf",
}


class MissingProgramError(Exception):
    """Something that the operating system should hold is not there."""


def find(program: str) -> str:
    """The path of a program, in PATH or where Debian keeps the administrator's.

    Raises:
        MissingProgramError: it is not installed; the message names the package.
    """
    path = os.pathsep.join((os.environ.get("PATH", ""), *_SYSTEM_DIRECTORIES))
    found = shutil.which(program, path=path)
    if found is None:
        raise MissingProgramError(
            f"{program} is not installed: sudo apt-get install {_PACKAGE_OF_PROGRAM[program]}"
        )
    return found


def missing(*, machines: bool) -> list[str]:
    """One sentence for each thing that a rack needs and does not find; `machines`: with QEMU."""
    programs = [name for name in _PACKAGE_OF_PROGRAM if machines or name != QEMU]
    sentences = []
    for program in programs:
        try:
            find(program)
        except MissingProgramError as error:
            sentences.append(str(error))
    if machines:
        sentences += [
            f"{file} does not exist: sudo apt-get install {package}"
            for file, package in _PACKAGE_OF_FILE.items()
            if not file.exists()
        ]
    return sentences
