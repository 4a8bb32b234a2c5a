# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bytes of the IPMI commands that the driver sends (IPMI 2.0, chapters 20, 22, 28, 34)."""

from __future__ import annotations

import struct
import uuid as uuids
from collections.abc import Sequence

from ..fault import Fault
from .interfaces import BootOverride, FirmwareMode

# (netfn, command)
GET_CHASSIS_STATUS = (0x00, 0x01)
CHASSIS_CONTROL = (0x00, 0x02)
SET_BOOT_OPTIONS = (0x00, 0x08)
GET_BOOT_OPTIONS = (0x00, 0x09)
GET_DEVICE_ID = (0x06, 0x01)
GET_SYSTEM_GUID = (0x06, 0x37)
CLOSE_SESSION = (0x06, 0x3C)

BOOT_FLAGS_PARAMETER = 0x05
# Table 28-14, parameter 3: keep the flags valid although no chassis command follows in 60 s.
KEEP_FLAGS = (0x03, 0x08)

# Table 28-14, parameter 5, data 2, bits 5:2.
SELECTORS = {"none": 0x0, "pxe": 0x1, "disk": 0x2, "cd": 0x5, "bios_setup": 0x6, "usb": 0xF}
_DEVICES = {selector: device for device, selector in SELECTORS.items()}

_VALID = 0x80
_PERSISTENT = 0x40
_EFI = 0x20


def encode_boot_flags(override: BootOverride, uefi_disk_selector: int | None = None) -> bytes:
    """Parameter 5 with its five data bytes. ``mode`` None is sent as BIOS, IPMI knows no third."""
    if override.enabled == "disabled":
        return bytes((BOOT_FLAGS_PARAMETER, 0, 0, 0, 0, 0))
    flags = _VALID
    if override.enabled == "continuous":
        flags |= _PERSISTENT
    selector = SELECTORS[override.device]
    if override.mode == "uefi":
        flags |= _EFI
        if override.device == "disk" and uefi_disk_selector is not None:
            selector = uefi_disk_selector
    return bytes((BOOT_FLAGS_PARAMETER, flags, selector << 2, 0, 0, 0))


def decode_boot_flags(data: Sequence[int], uefi_disk_selector: int | None = None) -> BootOverride:
    """The answer to Get System Boot Options for parameter 5: version, parameter, five bytes."""
    if len(data) < 4 or data[1] & 0x7F != BOOT_FLAGS_PARAMETER:
        raise Fault(
            "BMC_ANSWER_MALFORMED", wanted="the boot flags (parameter 5)", found=bytes(data).hex()
        )
    locked, flags, selector = data[1] & 0x80, data[2], data[3] >> 2 & 0x0F
    if locked or not flags & _VALID:
        return BootOverride("none", "disabled", None)
    mode: FirmwareMode = "uefi" if flags & _EFI else "bios"
    if selector == SELECTORS["none"]:
        return BootOverride("none", "disabled", mode)
    device = _DEVICES.get(selector, f"selector_{selector}")
    if mode == "uefi" and selector == uefi_disk_selector:
        device = "disk"
    return BootOverride(device, "continuous" if flags & _PERSISTENT else "once", mode)


def decode_guid(data: Sequence[int]) -> str | None:
    """A GUID as dmidecode would print it: the first three fields little endian (SMBIOS)."""
    if len(data) < 16:
        return None
    return str(uuids.UUID(bytes_le=bytes(data[:16])))


def decode_device_id(data: Sequence[int]) -> tuple[int, str]:
    """IANA number of the manufacturer and firmware version, from Get Device ID."""
    if len(data) < 9:
        return 0, ""
    manufacturer = struct.unpack("<I", bytes((*data[6:9], 0)))[0] & 0xFFFFF
    # The minor version is BCD.
    return manufacturer, f"{data[2] & 0x7F}.{data[3] >> 4:x}{data[3] & 0x0F:x}"
