# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of erase methods.

Within a level the strongest method stands first: what reaches every cell of the medium before
what reaches the addressable sectors, and what leaves a known pattern, so that reading back can
prove it, before what does not. The levels follow NIST SP 800-88 Rev. 2, the commands IEEE 2883.
``quick`` is no level of either, and is never called Clear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..fault import Fault
from .features import Features

LEVELS = ("quick", "clear", "purge")

SANITIZATION = {"quick": None, "clear": "Clear", "purge": "Purge"}
"""What a certificate calls a level."""


@dataclass(frozen=True)
class Method:
    """One row. ``scope``: what one command erases. ``leaves``: what can be read afterwards."""

    name: str
    level: str
    buses: tuple[str, ...]  # () is every bus
    technique: str
    tool: str
    scope: str  # disk | controller
    leaves: str  # zeroes | constant | unknown
    advertised: Callable[[Features], bool]


_NVME, _ATA, _SCSI = ("nvme",), ("sata",), ("scsi", "sas")


def _of(part: str, *flags: str) -> Callable[[Features], bool]:
    """Whether that part of the features is known and all its flags are set."""

    def advertised(features: Features) -> bool:
        known = getattr(features, part)
        return bool(known) and all(getattr(known, flag) for flag in flags)

    return advertised


def _always(_features: Features) -> bool:
    return True


# fmt: off
METHODS: tuple[Method, ...] = (
    # name, level, buses, technique, tool, scope, leaves, advertised by
    Method("nvme_sanitize_block", "purge", _NVME, "block erase", "nvme",
           "controller", "constant", _of("nvme", "sanitize_block")),
    Method("nvme_sanitize_overwrite", "purge", _NVME, "overwrite by the device", "nvme",
           "controller", "constant", _of("nvme", "sanitize_overwrite")),
    Method("nvme_sanitize_crypto", "purge", _NVME, "cryptographic erase", "nvme",
           "controller", "unknown", _of("nvme", "sanitize_crypto")),
    Method("nvme_format_user_data", "purge", _NVME, "user data erase by format", "nvme",
           "disk", "constant", _of("nvme", "format")),
    Method("nvme_format_crypto", "purge", _NVME, "cryptographic erase by format", "nvme",
           "disk", "unknown", _of("nvme", "format_crypto")),
    Method("ata_sanitize_block", "purge", _ATA, "block erase", "hdparm",
           "disk", "constant", _of("ata", "sanitize_block")),
    Method("ata_sanitize_overwrite", "purge", _ATA, "overwrite by the device", "hdparm",
           "disk", "constant", _of("ata", "sanitize_overwrite")),
    Method("ata_sanitize_crypto", "purge", _ATA, "cryptographic erase", "hdparm",
           "disk", "unknown", _of("ata", "sanitize_crypto")),
    Method("ata_secure_erase_enhanced", "purge", _ATA, "enhanced secure erase", "hdparm",
           "disk", "unknown", _of("ata", "enhanced")),
    Method("scsi_sanitize_block", "purge", _SCSI, "block erase", "sg_sanitize",
           "disk", "constant", _of("scsi", "sanitize_block")),
    Method("scsi_sanitize_overwrite", "purge", _SCSI, "overwrite by the device", "sg_sanitize",
           "disk", "constant", _of("scsi", "sanitize_overwrite")),
    Method("scsi_sanitize_crypto", "purge", _SCSI, "cryptographic erase", "sg_sanitize",
           "disk", "unknown", _of("scsi", "sanitize_crypto")),
    Method("write_zeroes", "clear", (), "overwrite with zeroes by the device", "kernel",
           "disk", "zeroes", _of("write_zeroes")),
    Method("overwrite", "clear", (), "overwrite with zeroes", "kernel",
           "disk", "zeroes", _always),
    Method("ata_secure_erase", "clear", _ATA, "secure erase", "hdparm",
           "disk", "constant", _of("ata", "security")),
    Method("metadata", "quick", (), "overwrite of both ends, partition borders and signatures",
           "kernel", "disk", "zeroes", _always),
)
# fmt: on

BY_NAME = {method.name: method for method in METHODS}


def advertised_methods(bus: str | None, features: Features) -> list[Method]:
    """The rows that a disk on ``bus`` with ``features`` offers, strongest first."""
    return [
        method
        for method in METHODS
        if (not method.buses or bus in method.buses) and method.advertised(features)
    ]


def named_method(name: str, level: str) -> Method:
    """The row called ``name``. Raises ``WIPE_METHOD_UNSUITABLE`` unless it is fit for ``level``."""
    method = BY_NAME.get(name)
    if method is None:
        raise Fault(
            "WIPE_METHOD_UNSUITABLE",
            wanted=f"one of the methods {', '.join(BY_NAME)}",
            found=name,
        )
    if LEVELS.index(method.level) < LEVELS.index(level):
        raise Fault(
            "WIPE_METHOD_UNSUITABLE",
            wanted=f"a method of level {level}",
            found=f"{name}, which is of level {method.level}",
        )
    return method
