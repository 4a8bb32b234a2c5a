# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choosing the root disk by hints: exactly one disk fits all of them, or nothing is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .disks import Disk, normal_wwn
from .fault import Fault

Json = dict[str, Any]


def _text(value: Any) -> str:
    return " ".join(str(value).split()).casefold()


def _fits_path(disk: Disk, wanted: Any, folder: str) -> bool:
    names = {str(wanted), f"{folder}/{wanted}"}
    return bool(names & {disk.path, *disk.links})


def _fits_text(known: str | None, wanted: Any) -> bool:
    return known is not None and _text(known) == _text(wanted)


def _fits_wwn(disk: Disk, wanted: Any) -> bool:
    return disk.wwn is not None and normal_wwn(disk.wwn) == normal_wwn(str(wanted))


# What a hint is made of, and when a disk fits it. Texts are compared whole, without regard to
# case and runs of white space, because vendors pad them. What a disk does not tell fits nothing.
_HINTS: dict[str, tuple[str, Callable[[Disk, Any], bool]]] = {
    "serial_number": ("text", lambda disk, wanted: _fits_text(disk.serial_number, wanted)),
    "wwn": ("text", _fits_wwn),
    "model": ("text", lambda disk, wanted: _fits_text(disk.model, wanted)),
    "size_bytes": ("size", lambda disk, wanted: disk.size_bytes == wanted),
    "min_size_bytes": ("size", lambda disk, wanted: disk.size_bytes >= wanted),
    "max_size_bytes": ("size", lambda disk, wanted: disk.size_bytes <= wanted),
    "rotational": ("flag", lambda disk, wanted: disk.rotational is wanted),
    "by_path": ("text", lambda disk, wanted: _fits_path(disk, wanted, "/dev/disk/by-path")),
    "name": ("text", lambda disk, wanted: _fits_path(disk, wanted, "/dev")),
}

_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def check_hints(hints: Mapping[str, Any]) -> Json:
    """The hints with sizes as numbers and flags as booleans; null hints are left out.

    Raises ``HINTS_INVALID`` for an unknown key, a value of the wrong kind, or hints that no disk
    could ever fit together.
    """
    unknown = sorted(set(map(str, hints)) - set(_HINTS))
    if unknown:
        raise _invalid(f"hints out of {', '.join(_HINTS)}", f"{', '.join(unknown)}", hints)
    checked = {
        name: _checked(name, value, hints) for name, value in hints.items() if value is not None
    }
    lowest = checked.get("min_size_bytes", 0)
    highest = checked.get("max_size_bytes", float("inf"))
    if lowest > highest:
        raise _invalid("min_size_bytes of at most max_size_bytes", f"{lowest} and {highest}", hints)
    exact = checked.get("size_bytes")
    if exact is not None and not lowest <= exact <= highest:
        raise _invalid(
            "size_bytes between min_size_bytes and max_size_bytes",
            f"{exact} outside {lowest} to {highest}",
            hints,
        )
    return checked


def find_root_disk(disks: Sequence[Disk], hints: Mapping[str, Any]) -> Disk:
    """The one disk that fits all hints; without hints, the machine's only disk.

    Raises ``HINTS_INVALID``, ``ROOT_DISK_NO_MATCH`` or ``ROOT_DISK_AMBIGUOUS``; the details of
    the latter two list the disks.
    """
    checked = check_hints(hints)
    fitting = [
        disk
        for disk in disks
        if all(_HINTS[name][1](disk, wanted) for name, wanted in checked.items())
    ]
    if len(fitting) == 1:
        return fitting[0]
    wanted = f"exactly one disk with {_words(checked)}" if checked else "exactly one disk"
    if not fitting:
        raise Fault(
            "ROOT_DISK_NO_MATCH",
            wanted=wanted,
            found=f"none among {_list(disks)}",
            cure="correct root_disk in the inventory, or look for the disk in the machine",
            details={"hints": checked, "disks": [disk.identity() for disk in disks]},
        )
    raise Fault(
        "ROOT_DISK_AMBIGUOUS",
        wanted=wanted,
        found=f"{len(fitting)}: {_list(fitting)}",
        cure="add a hint that only one of them fits, such as serial_number",
        details={"hints": checked, "disks": [disk.identity() for disk in fitting]},
    )


def _checked(name: str, value: Any, hints: Mapping[str, Any]) -> Any:
    kind = _HINTS[name][0]
    if kind == "flag":
        flag = _FLAGS.get(str(value).lower())
        if flag is None:
            raise _invalid(f"{name} of true or false", repr(value), hints)
        return flag
    if kind == "size":
        # Templates turn numbers into text; a boolean is a number to Python, but not to a reader.
        if isinstance(value, bool) or not str(value).isdecimal():
            raise _invalid(f"{name} as a whole number of bytes", repr(value), hints)
        return int(value)
    if isinstance(value, (bool, float, dict, list)) or not str(value).strip():
        raise _invalid(f"{name} as text", repr(value), hints)
    return str(value)


def _invalid(wanted: str, found: str, hints: Mapping[str, Any]) -> Fault:
    return Fault("HINTS_INVALID", wanted=wanted, found=found, details={"hints": dict(hints)})


def _words(hints: Json) -> str:
    return ", ".join(f"{name} {value}" for name, value in hints.items())


def _list(disks: Sequence[Disk]) -> str:
    return (
        "; ".join(
            f"{disk.path} (model {disk.model}, serial_number {disk.serial_number}, wwn {disk.wwn}, "
            f"{disk.size_bytes} bytes, {disk.bus})"
            for disk in disks
        )
        or "no disks at all"
    )
