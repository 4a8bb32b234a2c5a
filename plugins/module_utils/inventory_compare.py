# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where what a BMC says of a machine and what was read on the machine disagree."""

from __future__ import annotations

from typing import Any

Inventory = dict[str, Any]
Difference = dict[str, Any]

# BMCs round memory to GiB and firmware keeps some of it from the system.
MEMORY_TOLERANCE = 0.06

PLAIN_FIELDS = ("system.serial_number", "cpu.sockets", "cpu.cores", "cpu.threads")


def differences(out_of_band: Inventory, in_band: Inventory) -> list[Difference]:
    """``[{field, out_of_band, in_band, text}]``, empty where the two agree.

    Both arguments have the shape that ``bmc_info`` and ``node_inventory`` return. Null is
    "unknown" and agrees with everything. Network cards and disks that only the machine sees are
    no disagreement (a BMC does not see every add-in card); those that only the BMC sees are.
    """
    found: list[Difference] = []
    for field in PLAIN_FIELDS:
        there, here = _at(out_of_band, field), _at(in_band, field)
        if there is not None and here is not None and there != here:
            found.append(_difference(field, there, here))
    found += _uuid(_at(out_of_band, "system.uuid"), _at(in_band, "system.uuid"))
    found += _memory(_at(out_of_band, "memory.size_bytes"), _at(in_band, "memory.size_bytes"))
    found += _missing("nics", "mac", out_of_band, in_band)
    found += _missing("disks", "serial_number", out_of_band, in_band)
    found += _disk_sizes(out_of_band, in_band)
    return found


def _at(inventory: Inventory, path: str) -> Any:
    value: Any = inventory
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _difference(field: str, there: Any, here: Any) -> Difference:
    return {
        "field": field,
        "out_of_band": there,
        "in_band": here,
        "text": f"{field}: the BMC says {there}, the machine says {here}",
    }


def _uuid(there: str | None, here: str | None) -> list[Difference]:
    if there is None or here is None:
        return []
    # SMBIOS before 2.6 left the byte order of the first three fields open (DSP0134 7.2.1), so
    # one of the two may show them reversed
    if here.lower() in (there.lower(), _reversed_fields(there.lower())):
        return []
    return [_difference("system.uuid", there, here)]


def _reversed_fields(uuid: str) -> str:
    fields = uuid.split("-")
    turned = [
        "".join(reversed([field[i : i + 2] for i in range(0, len(field), 2)]))
        for field in fields[:3]
    ]
    return "-".join(turned + fields[3:])


def _memory(there: int | None, here: int | None) -> list[Difference]:
    if there is None or here is None:
        return []
    if abs(there - here) <= MEMORY_TOLERANCE * there:
        return []
    return [_difference("memory.size_bytes", there, here)]


def _missing(kind: str, key: str, out_of_band: Inventory, in_band: Inventory) -> list[Difference]:
    there, here = out_of_band.get(kind), in_band.get(kind)
    if there is None or here is None:
        return []
    known = {str(item[key]).lower() for item in here if item.get(key)}
    gone = [str(item[key]) for item in there if item.get(key)]
    return [
        {
            "field": f"{kind}.{key}",
            "out_of_band": value,
            "in_band": None,
            "text": f"{kind}: the BMC lists {value}, the machine does not have it",
        }
        for value in gone
        if value.lower() not in known
    ]


def _disk_sizes(out_of_band: Inventory, in_band: Inventory) -> list[Difference]:
    here = {
        disk["serial_number"]: disk.get("size_bytes")
        for disk in in_band.get("disks") or []
        if disk.get("serial_number")
    }
    found = []
    for disk in out_of_band.get("disks") or []:
        serial, size = disk.get("serial_number"), disk.get("size_bytes")
        seen = here.get(serial)
        if size is not None and seen is not None and size != seen:
            found.append(_difference(f"disks[{serial}].size_bytes", size, seen))
    return found
