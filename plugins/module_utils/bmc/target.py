# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which BMC a task is about, and how to talk to it: the options that all BMC modules share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..fault import Fault
from .interfaces import CONCERNS

DEFAULT_PORTS = {"redfish": 443, "ipmi": 623}


def bmc_argument_spec() -> dict[str, dict[str, Any]]:
    """The argument specification that doc fragment ``barewright.metal.bmc`` describes."""
    return {
        "address": {"type": "str", "required": True},
        "port": {"type": "int"},
        "ports": {"type": "dict", "default": {}},
        "username": {"type": "str", "required": True},
        "password": {"type": "str", "required": True, "no_log": True},
        "driver": {"type": "str", "default": "redfish"},
        "drivers": {"type": "dict", "default": {}},
        "system_id": {"type": "str"},
        "validate_certs": {"type": "bool", "default": True},
        "ca_path": {"type": "path"},
        "tls_fingerprint": {"type": "str"},
        "privilege_level": {"type": "str", "choices": ["administrator", "operator", "user"]},
        "timeout_seconds": {"type": "int", "default": 300},
        "lock_dir": {"type": "path"},
    }


@dataclass(frozen=True)
class Target:
    """One BMC. ``password`` is kept out of the representation."""

    address: str
    username: str
    password: str = field(repr=False)
    ports: dict[str, int]
    drivers: dict[str, str]
    system_id: str | None = None
    validate_certs: bool = True
    ca_path: str | None = None
    tls_fingerprint: str | None = None
    privilege_level: str | None = None
    timeout_seconds: float = 300
    lock_dir: str | None = None

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> Target:
        """From options that :func:`bmc_argument_spec` has validated. Raises INVALID_INPUT."""
        main = params["driver"]
        strangers = sorted(set(params["drivers"]) - set(CONCERNS))
        if strangers:
            raise Fault(
                "INVALID_INPUT",
                wanted=f"drivers for the concerns {', '.join(CONCERNS)}",
                found=", ".join(strangers),
            )
        if params["timeout_seconds"] <= 0:
            raise Fault(
                "INVALID_INPUT",
                wanted="timeout_seconds above 0",
                found=str(params["timeout_seconds"]),
            )
        ports = {**DEFAULT_PORTS, **_ports(params["ports"])}
        if params["port"] is not None:
            ports[main] = params["port"]
        return cls(
            address=params["address"].strip().strip("[]").lower(),
            username=params["username"],
            password=params["password"],
            ports=ports,
            drivers={concern: str(params["drivers"].get(concern, main)) for concern in CONCERNS},
            system_id=params["system_id"] or None,
            validate_certs=params["validate_certs"],
            ca_path=params["ca_path"] or None,
            tls_fingerprint=_fingerprint(params["tls_fingerprint"]),
            privilege_level=params["privilege_level"],
            timeout_seconds=params["timeout_seconds"],
            lock_dir=params["lock_dir"] or None,
        )


def _ports(raw: dict[str, Any]) -> dict[str, int]:
    try:
        return {name: int(port) for name, port in raw.items()}
    except (TypeError, ValueError) as error:
        raise Fault("INVALID_INPUT", wanted="a number for every port", found=str(raw)) from error


def _fingerprint(text: str | None) -> str | None:
    """64 hexadecimal digits in lower case, from any of the usual spellings."""
    if not text:
        return None
    digits = text.lower().removeprefix("sha256:").removeprefix("sha256=").replace(":", "")
    if len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise Fault(
            "INVALID_INPUT",
            wanted="tls_fingerprint as the SHA-256 of the certificate, 64 hexadecimal digits",
            found=f"{text!r}",
        )
    return digits
