# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The client side of RMCP+, written from the specification alone, able to break its rules."""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from virtual_rack.bmc.ipmi import IpmiServer

RMCP = b"\x06\x00\xff\x07"
# Suite: authentication, integrity and confidentiality algorithm, digest, bytes of a code
ALGORITHMS: dict[int, tuple[int, int, int, Any, int]] = {
    3: (1, 1, 1, hashlib.sha1, 12),
    17: (3, 4, 1, hashlib.sha256, 16),
}


def checksum(data: bytes) -> int:
    return (256 - sum(data) % 256) % 256


def message(netfn: int, command: int, data: bytes = b"", number: int = 1) -> bytes:
    head = bytes([0x20, netfn << 2])
    body = bytes([0x81, number << 2, command]) + data
    return head + bytes([checksum(head)]) + body + bytes([checksum(body)])


def plain(kind: int, payload: bytes) -> bytes:
    return RMCP + struct.pack("<BBIIH", 6, kind, 0, 0, len(payload)) + payload


@dataclass
class Answer:
    code: int
    data: bytes
    session_sequence: int


class Console:
    """One client of one server; every step can be taken alone."""

    def __init__(self, server: IpmiServer, username: str, password: str, suite: int = 17) -> None:
        self.server = server
        self.username, self.password = username.encode(), password.encode()
        self.suite = suite
        self.digest, self.code_bytes = ALGORITHMS[suite][3:]
        self.id = 0xA0A1A2A3
        self.session_id = 0
        self.random = os.urandom(16)
        self.role = b""
        self.sequence = 0
        self.number = 0

    def send(self, packet: bytes) -> bytes | None:
        return self.server.handle(packet, "127.0.0.1:7")

    def handshake(self, kind: int, payload: bytes) -> bytes:
        """The payload of the answer to a handshake message."""
        answer = self.send(plain(kind, payload))
        assert answer is not None
        assert answer[4:6] == bytes([6, kind + 1])
        assert answer[6:14] == bytes(8)
        (length,) = struct.unpack_from("<H", answer, 14)
        assert len(answer) == 16 + length
        assert answer[16] == payload[0]
        return answer[16:]

    def open(self, algorithms_proposed: tuple[int | None, ...] | None = None) -> int:
        proposed = algorithms_proposed or ALGORITHMS[self.suite][:3]
        payload = struct.pack("<BBHI", 1, 0, 0, self.id)
        for kind, number in enumerate(proposed):
            payload += struct.pack("<BHBBBH", kind, 0, 8 if number else 0, number or 0, 0, 0)
        answer = self.handshake(0x10, payload)
        assert struct.unpack_from("<I", answer, 4) == (self.id,)
        if answer[1] == 0:
            (self.session_id,) = struct.unpack_from("<I", answer, 8)
            self.chosen = tuple(answer[12 + 8 * kind + 4] for kind in range(3))
        return answer[1]

    def rakp_1(self, privilege: int = 4) -> int:
        self.role = bytes([0x10 | privilege, len(self.username)]) + self.username
        payload = struct.pack("<BBHI", 2, 0, 0, self.session_id) + self.random
        payload += bytes([self.role[0], 0, 0]) + self.role[1:]
        answer = self.handshake(0x12, payload)
        if answer[1] == 0:
            assert struct.unpack_from("<I", answer, 4) == (self.id,)
            self.bmc_random, self.guid, self.bmc_code = answer[8:24], answer[24:40], answer[40:]
        return answer[1]

    def keyed(self, key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, self.digest).digest()

    def expected_bmc_code(self) -> bytes:
        numbers = struct.pack("<II", self.id, self.session_id)
        return self.keyed(
            self.password, numbers + self.random + self.bmc_random + self.guid + self.role
        )

    def rakp_3(self, status: int = 0) -> int:
        code = self.keyed(self.password, self.bmc_random + struct.pack("<I", self.id) + self.role)
        payload = struct.pack("<BBHI", 3, status, 0, self.session_id) + code
        answer = self.handshake(0x14, payload)
        if answer[1] == 0:
            integrity = self.keyed(self.password, self.random + self.bmc_random + self.role)
            proof = self.keyed(
                integrity, self.random + struct.pack("<I", self.session_id) + self.guid
            )
            assert answer[8:] == proof[: self.code_bytes]
            self.integrity_key = self.keyed(integrity, b"\x01" * 20)
            self.encryption_key = self.keyed(integrity, b"\x02" * 20)[:16]
        return answer[1]

    def log_in(self, privilege: int = 4) -> None:
        assert (self.open(), self.rakp_1(privilege), self.rakp_3()) == (0, 0, 0)
        assert self.bmc_code == self.expected_bmc_code()
        assert self.ask(0x06, 0x3B, bytes([privilege])).data == bytes([privilege])

    def packet(
        self,
        inner: bytes,
        sequence: int | None = None,
        encrypted: bool = True,
        tag: int = 0,
        padded: bytes = b"",
    ) -> bytes:
        """A packet of the session, as it must be unless something else is given."""
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        initial = os.urandom(16)
        fill = -(len(inner) + 1) % 16
        padded = padded or inner + bytes(range(1, fill + 1)) + bytes([fill])
        cipher = Cipher(algorithms.AES(self.encryption_key), modes.CBC(initial)).encryptor()
        payload = initial + cipher.update(padded) + cipher.finalize() if encrypted else inner
        kind = 0xC0 if encrypted else 0x40
        covered = struct.pack("<BBIIH", 6, kind, self.session_id, sequence, len(payload)) + payload
        fill = -(len(covered) + 2) % 4
        covered += b"\xff" * fill + bytes([fill, 7])
        code = self.keyed(self.integrity_key, covered)[: self.code_bytes]
        return RMCP + covered + bytes([code[0] ^ tag]) + code[1:]

    def unpack(self, packet: bytes) -> Answer:
        code = self.keyed(self.integrity_key, packet[4 : -self.code_bytes])
        assert packet[-self.code_bytes :] == code[: self.code_bytes]
        kind, session_id, sequence, length = struct.unpack_from("<BIIH", packet, 5)
        assert (kind, session_id) == (0xC0, self.id)
        content = packet[16 : 16 + length]
        cipher = Cipher(algorithms.AES(self.encryption_key), modes.CBC(content[:16])).decryptor()
        padded = cipher.update(content[16:]) + cipher.finalize()
        inner = padded[: -1 - padded[-1]]
        assert sum(inner[:3]) % 256 == 0
        assert sum(inner[3:]) % 256 == 0
        return Answer(inner[6], inner[7:-1], sequence)

    def ask(self, netfn: int, command: int, data: bytes = b"") -> Answer:
        self.number = (self.number + 1) % 64
        answer = self.send(self.packet(message(netfn, command, data, self.number)))
        assert answer is not None
        return self.unpack(answer)
