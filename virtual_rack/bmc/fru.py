# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The records that IPMI tools read a machine's identity from.

FRU: "Platform Management FRU Information Storage Definition" 1.0 revision 1.3.
SDR: IPMI 2.0, chapter 43.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from virtual_rack.machine import Hardware

_ENGLISH = 25
_RACK_MOUNT_CHASSIS = 0x17
_END_OF_FIELDS = 0xC1
BMC_SLAVE_ADDRESS = 0x20
_ENTITY_SYSTEM_BOARD = 0x07


def checksum(data: bytes) -> int:
    """The byte that makes the sum of all bytes zero."""
    return -sum(data) & 0xFF


def _field(text: str) -> bytes:
    """A type/length byte and 8-bit text; at most 63 bytes fit."""
    encoded = text.encode("latin-1", "replace")[:63]
    if len(encoded) == 1:
        # Text of length one has the type/length byte that ends the list of fields.
        encoded += b" "
    return bytes([0xC0 | len(encoded)]) + encoded


def _area(head: Sequence[int], fields: Sequence[str]) -> bytes:
    """An area with its length in units of 8 bytes in byte 1 and the checksum at the end."""
    body = bytes(head) + b"".join(_field(text) for text in fields) + bytes([_END_OF_FIELDS])
    size = -(-(len(body) + 3) // 8) * 8
    area = bytes([1, size // 8]) + body
    area += bytes(size - 1 - len(area))
    return area + bytes([checksum(area)])


def fru_data(hardware: Hardware) -> bytes:
    """The inventory of FRU device 0: chassis, board and product of the machine."""
    chassis = _area([_RACK_MOUNT_CHASSIS], [hardware.sku, hardware.serial_number])
    board = _area(
        [_ENGLISH, 0, 0, 0],
        [hardware.manufacturer, hardware.model, hardware.serial_number, hardware.sku, ""],
    )
    product = _area(
        [_ENGLISH],
        [
            hardware.manufacturer,
            hardware.model,
            hardware.sku,
            "",
            hardware.serial_number,
            "",
            "",
        ],
    )
    starts = [1, 1 + len(chassis) // 8, 1 + (len(chassis) + len(board)) // 8]
    header = bytes([1, 0, *starts, 0, 0])
    return header + bytes([checksum(header)]) + chassis + board + product


def controller_locator(record_id: int, name: str, capabilities: int) -> bytes:
    """The SDR (type 12h) that says there is a management controller, with the functions it has."""
    text = name.encode("latin-1", "replace")[:16]
    body = bytes([BMC_SLAVE_ADDRESS, 0, 0, capabilities, 0, 0, 0, _ENTITY_SYSTEM_BOARD, 1, 0])
    body += bytes([0xC0 | len(text)]) + text
    return struct.pack("<HBBB", record_id, 0x51, 0x12, len(body)) + body
