# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory shape that ``bmc_info`` and ``node_inventory`` share, and how its values look.

Unknown is None, none is an empty list; a placeholder that a vendor left in is unknown.
"""

from __future__ import annotations

import re
from typing import Any

_PLACEHOLDERS = frozenset(
    {
        "",
        "0",
        "0123456789",
        "123456789",
        "1234567890",
        "chassis serial number",
        "default string",
        "empty",
        "n/a",
        "na",
        "none",
        "not applicable",
        "not available",
        "not specified",
        "null",
        "system manufacturer",
        "system product name",
        "system serial number",
        "to be filled by o.e.m.",
        "unknown",
    }
)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def empty_inventory(source: str) -> dict[str, Any]:
    """The whole shape with nothing known."""
    return {
        "source": source,
        "system": dict.fromkeys(("uuid", "serial_number", "manufacturer", "model", "sku")),
        "firmware": {
            "vendor": None,
            "version": None,
            "boot_mode": None,
            "secure_boot": {"supported": None, "enabled": None},
        },
        "bmc": None,
        "cpu": dict.fromkeys(("sockets", "cores", "threads", "model", "architecture")),
        "memory": {"size_bytes": None},
        "nics": None,
        "disks": None,
        "gpus": None,
    }


def text(value: Any) -> str | None:
    """The trimmed text, or None for what is missing or a placeholder."""
    if not isinstance(value, str):
        return None
    trimmed = " ".join(value.split())
    lowered = trimmed.lower()
    if lowered in _PLACEHOLDERS or not trimmed.strip("0-. ") or not lowered.strip("f-. "):
        return None
    return trimmed


def uuid(value: Any) -> str | None:
    """A UUID in lower case, or None. All zeros or all F is what vendors write for none."""
    lowered = value.strip().lower() if isinstance(value, str) else ""
    if _UUID.fullmatch(lowered) is None or len(set(lowered.replace("-", ""))) == 1:
        return None
    return lowered


def mac(value: Any) -> str | None:
    """A MAC in lower case with colons, or None (also for all zeros and broadcast)."""
    if not isinstance(value, str):
        return None
    digits = re.sub(r"[:.\-\s]", "", value.lower())
    if re.fullmatch(r"[0-9a-f]{12}", digits) is None or digits in ("0" * 12, "f" * 12):
        return None
    return ":".join(digits[start : start + 2] for start in range(0, 12, 2))


def wwn(value: Any) -> str | None:
    """A World Wide Name as Linux writes it: ``0x`` and hexadecimal digits, or ``eui.…``."""
    if not isinstance(value, str):
        return None
    lowered = value.strip().lower().replace(":", "")
    if lowered.startswith("eui."):
        return lowered
    digits = re.sub(r"^(naa\.|wwn-|0x)+", "", lowered)
    if re.fullmatch(r"[0-9a-f]{16}([0-9a-f]{16})?", digits) is None or not digits.strip("0"):
        return None
    return f"0x{digits}"


def whole(value: Any) -> int | None:
    """A non-negative whole number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return None
    return int(value)
