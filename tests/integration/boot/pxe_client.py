# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A network card that asks for an address and a boot file, as firmware and loaders do.

Run as a program inside a network namespace; prints JSON. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import struct
import time
from typing import Any

BROADCAST = b"\xff" * 6
COOKIE = b"\x63\x82\x53\x63"
DISCOVER, OFFER, REQUEST, ACK, NAK = 1, 2, 3, 5, 6
RAW_IP = 0x0800


def checksum(data: bytes) -> int:
    """Of an IP header (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def option(code: int, value: bytes) -> bytes:
    """A DHCP option."""
    return bytes([code, len(value)]) + value


def frame(mac: bytes, transaction: int, options: bytes) -> bytes:
    """An Ethernet frame with a broadcast DHCP message from a card without an address."""
    message = struct.pack(
        "!BBBBIHH4s4s4s4s16s64s128s",
        *(1, 1, 6, 0, transaction, 0, 0x8000),
        *(b"\0" * 4, b"\0" * 4, b"\0" * 4, b"\0" * 4, mac, b"", b""),
    )
    payload = message + COOKIE + options + b"\xff"
    datagram = struct.pack("!HHHH", 68, 67, 8 + len(payload), 0) + payload
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(datagram), 0, 0, 64, 17, 0, b"\0" * 4, b"\xff" * 4
    )
    header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    return BROADCAST + mac + struct.pack("!H", RAW_IP) + header + datagram


def parse(data: bytes, transaction: int) -> dict[str, Any] | None:
    """The DHCP answer in a frame: type, address, header's file name and options by number."""
    if len(data) < 282 or data[23] != 17 or struct.unpack("!H", data[36:38])[0] != 68:
        return None
    message = data[42:]
    if message[0] != 2 or struct.unpack("!I", message[4:8])[0] != transaction:
        return None
    options: dict[int, bytes] = {}
    position = 240
    while position < len(message) and message[position] != 255:
        if message[position] == 0:
            position += 1
            continue
        code, length = message[position], message[position + 1]
        options[code] = message[position + 2 : position + 2 + length]
        position += 2 + length
    return {
        "type": options[53][0],
        "address": socket.inet_ntoa(message[16:20]),
        "file": message[108:236].split(b"\0")[0].decode(),
        "options": options,
    }


def exchange(link: socket.socket, data: bytes, transaction: int, seconds: float) -> Any:
    """Send a message and wait for its answer; None when there is none."""
    link.send(data)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([link], [], [], left)[0]:
            answer = parse(link.recv(2048), transaction)
            if answer:
                return answer
    return None


def boot(interface: str, mac_text: str, arch: int, ipxe: bool, seconds: float) -> dict[str, Any]:
    """DISCOVER and REQUEST as a loader of this architecture; what the server granted."""
    mac = bytes.fromhex(mac_text.replace(":", ""))
    transaction = struct.unpack("!I", os.urandom(4))[0]
    vendor = b"HTTPClient:Arch:00016" if arch == 16 else b"PXEClient:Arch:%05d" % arch
    common = option(60, vendor) + option(93, struct.pack("!H", arch))
    # Each program that a machine runs one after the other calls itself something else.
    common += option(61, b"\xff" + os.urandom(8))
    common += option(55, bytes([1, 3, 6, 43, 54, 60, 66, 67, 175]))
    if ipxe:
        common += option(77, b"iPXE")
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(RAW_IP))
    link.bind((interface, 0))
    offer = exchange(
        link, frame(mac, transaction, option(53, bytes([DISCOVER])) + common), transaction, seconds
    )
    if offer is None:
        return {"answered": False}
    wanted = option(50, socket.inet_aton(offer["address"])) + option(54, offer["options"][54])
    granted = exchange(
        link,
        frame(mac, transaction, option(53, bytes([REQUEST])) + wanted + common),
        transaction,
        seconds,
    )
    if granted is None or granted["type"] != ACK:
        return {"answered": True, "granted": False}
    options = granted["options"]
    return {
        "answered": True,
        "granted": True,
        "address": granted["address"],
        "boot_file": granted["file"] or options.get(67, b"").rstrip(b"\0").decode(),
        "vendor_class": options.get(60, b"").decode(),
        "ipxe_options": options.get(175, b"").hex(),
        "router": 3 in options,
    }


def fetch(server: str, name: str, own: str, seconds: float) -> dict[str, Any]:
    """Read a file by TFTP (RFC 1350); its size, or the server's error."""
    link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    link.bind((own, 0))
    link.settimeout(seconds)
    link.sendto(b"\0\1" + name.encode() + b"\0octet\0", (server, 69))
    size = 0
    while True:
        try:
            data, peer = link.recvfrom(2048)
        except TimeoutError:
            return {"error": "no answer"}
        if data[:2] == b"\0\5":
            return {"error": data[4:-1].decode()}
        link.sendto(b"\0\4" + data[2:4], peer)
        size += len(data) - 4
        if len(data) < 516:
            return {"size_bytes": size}


def main() -> None:
    """``boot`` or ``fetch``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    verbs = parser.add_subparsers(dest="verb", required=True)
    booting = verbs.add_parser("boot")
    booting.add_argument("interface")
    booting.add_argument("mac")
    booting.add_argument("--arch", type=int, default=0)
    booting.add_argument("--ipxe", action="store_true")
    fetching = verbs.add_parser("fetch")
    fetching.add_argument("server")
    fetching.add_argument("name")
    fetching.add_argument("own_address")
    options = parser.parse_args()
    if options.verb == "boot":
        result = boot(options.interface, options.mac, options.arch, options.ipxe, options.seconds)
    else:
        result = fetch(options.server, options.name, options.own_address, options.seconds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
