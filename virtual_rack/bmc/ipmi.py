# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""IPMI 2.0 over LAN: RMCP+ with the cipher suites 3 and 17.

`IpmiServer.handle` takes one UDP packet and gives the answer; sockets are in
`virtual_rack.bmc.host`, commands in `virtual_rack.bmc.commands`. Numbers in parentheses are
sections and tables of the IPMI 2.0 specification, revision 1.1.
"""

from __future__ import annotations

import hmac
import itertools
import logging
import os
import secrets
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from virtual_rack.bmc.commands import (
    ADMINISTRATOR,
    COMMANDS,
    NODE_BUSY,
    NOT_IN_THIS_STATE,
    OK,
    UNSPECIFIED,
    USER,
    BootOptions,
    CommandContext,
    CommandError,
    run_command,
    system_guid,
)
from virtual_rack.bmc.fru import BMC_SLAVE_ADDRESS, checksum
from virtual_rack.bmc.journal import Caller
from virtual_rack.bmc.state import Account, Bmc, MachineIsOffError, PowerAction
from virtual_rack.machine import MachineError

LOG = logging.getLogger(__name__)

# RMCP (13.1.3): version, reserved, sequence number "no acknowledge", class
_RMCP_ASF = b"\x06\x00\xff\x06"
_RMCP_IPMI = b"\x06\x00\xff\x07"
_ASF_IANA = b"\x00\x00\x11\xbe"

_NO_AUTHENTICATION = 0x00
_RMCP_PLUS = 0x06

# Payload types (13.27.3) and the two bits beside them
_IPMI, _OPEN_REQUEST, _OPEN_RESPONSE = 0x00, 0x10, 0x11
_RAKP_1, _RAKP_2, _RAKP_3, _RAKP_4 = 0x12, 0x13, 0x14, 0x15
_ENCRYPTED, _AUTHENTICATED = 0x80, 0x40

# RMCP+ and RAKP status codes (table 13-15)
NO_RESOURCES = 0x01
INVALID_SESSION = 0x02
INVALID_AUTHENTICATION = 0x04
INVALID_INTEGRITY = 0x05
INVALID_ROLE = 0x09
UNAUTHORIZED_ROLE = 0x0A
INVALID_NAME_LENGTH = 0x0C
UNAUTHORIZED_NAME = 0x0D
INVALID_INTEGRITY_CHECK = 0x0F
INVALID_CONFIDENTIALITY = 0x10
NO_SUITE_MATCH = 0x11
ILLEGAL_PARAMETER = 0x12

# A sequence number is taken when it is at most this far above or below the highest one (6.12.13).
_WINDOW_ABOVE, _WINDOW_BELOW = 15, 16
# The same request, with the same number, within this time is the client asking again.
_RETRY_SECONDS = 5.0
# Clients ask again after about a second.
_ANSWER_WITHIN_SECONDS = 0.5


@dataclass(frozen=True)
class Suite:
    """A cipher suite (table 22-20); all of them encrypt with AES-CBC-128."""

    id: int
    authentication: int
    integrity: int
    digest: Literal["sha1", "sha256"]
    code_bytes: int
    confidentiality: int = 1

    def keyed_digest(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.digest)

    @property
    def record(self) -> bytes:
        """The record of Get Channel Cipher Suites (table 22-18)."""
        return bytes(
            [
                0xC0,
                self.id,
                self.authentication,
                0x40 | self.integrity,
                0x80 | self.confidentiality,
            ]
        )


SUITES = {3: Suite(3, 1, 1, "sha1", 12), 17: Suite(17, 3, 4, "sha256", 16)}


@dataclass
class IpmiSession:
    """One session, from Open Session on; it is active once RAKP 3 proved the password."""

    id: int
    console_id: int
    suite: Suite
    client: str
    last_used: float
    account: Account | None = None
    active: bool = False
    privilege: int = 0
    privilege_limit: int = 0
    role: bytes = b""
    console_random: bytes = b""
    bmc_random: bytes = b""
    integrity_key: bytes = b""
    encryption_key: bytes = b""
    highest_received: int = 0
    received: int = 0
    sent: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    # A message of the handshake that comes again gets the same answer again.
    handshake: dict[bytes, bytes] = field(default_factory=dict)
    last_request: bytes = b""
    last_answer: bytes = b""
    last_answered_at: float = 0.0

    def accept_sequence_number(self, number: int) -> bool:
        """Whether a number is new and inside the window; it then counts as received."""
        if number == 0:
            return False
        ahead = (number - self.highest_received) & 0xFFFFFFFF
        if 0 < ahead <= _WINDOW_ABOVE:
            self.received = (self.received << ahead | 1) & ((1 << (_WINDOW_BELOW + 1)) - 1)
            self.highest_received = number
            return True
        behind = (self.highest_received - number) & 0xFFFFFFFF
        if behind > _WINDOW_BELOW or self.received >> behind & 1:
            return False
        self.received |= 1 << behind
        return True

    def encrypt(self, payload: bytes) -> bytes:
        initial = os.urandom(16)
        padding = -(len(payload) + 1) % 16
        padded = payload + bytes(range(1, padding + 1)) + bytes([padding])
        encryptor = Cipher(algorithms.AES(self.encryption_key), modes.CBC(initial)).encryptor()
        return initial + encryptor.update(padded) + encryptor.finalize()

    def decrypt(self, data: bytes) -> bytes | None:
        if len(data) < 32 or len(data) % 16:
            return None
        decryptor = Cipher(algorithms.AES(self.encryption_key), modes.CBC(data[:16])).decryptor()
        padded = decryptor.update(data[16:]) + decryptor.finalize()
        padding = padded[-1]
        if padding > 15 or padded[-1 - padding : -1] != bytes(range(1, padding + 1)):
            return None
        return padded[: -1 - padding]


class _HandshakeError(Exception):
    """Answer a message of the handshake with this status code."""

    def __init__(self, status: int) -> None:
        super().__init__(f"RMCP+ status {status:#04x}")
        self.status = status


class IpmiServer:
    """Speaks IPMI for one BMC."""

    def __init__(self, bmc: Bmc) -> None:
        self._bmc = bmc
        self._sessions: dict[int, IpmiSession] = {}
        self._boot_options = BootOptions()
        self._lock = threading.Lock()
        self._power_idle = threading.Lock()

    def handle(self, packet: bytes, client: str) -> bytes | None:
        """The answer to a packet, None for what deserves none."""
        with self._lock:
            self._expire_sessions()
            try:
                return self._handle(packet, client)
            except (struct.error, IndexError):
                self._dropped(client, None, "too short")
                return None

    def session_count(self) -> int:
        """How many sessions are active."""
        with self._lock:
            self._expire_sessions()
            return sum(session.active for session in self._sessions.values())

    def _handle(self, packet: bytes, client: str) -> bytes | None:
        if packet[:4] == _RMCP_ASF:
            return _pong(packet)
        if packet[:4] != _RMCP_IPMI:
            return None
        if packet[4] == _NO_AUTHENTICATION:
            return self._ipmi_15(packet, client)
        if packet[4] == _RMCP_PLUS:
            return self._rmcp_plus(packet, client)
        return None

    def _ipmi_15(self, packet: bytes, client: str) -> bytes | None:
        """The format of IPMI 1.5, in which a client asks what the BMC can do (13.6)."""
        _, session_id, length = struct.unpack_from("<IIB", packet, 5)
        if session_id:
            return None
        answer = self._message(packet[14 : 14 + length], client, None)
        if answer is None:
            return None
        return _RMCP_IPMI + struct.pack("<BIIB", 0, 0, 0, len(answer)) + answer

    def _rmcp_plus(self, packet: bytes, client: str) -> bytes | None:
        kind, session_id, sequence, length = struct.unpack_from("<BIIH", packet, 5)
        payload = packet[16 : 16 + length]
        if len(payload) < length:
            return None
        kind_alone = kind & 0x3F
        if session_id:
            return self._in_session(packet, payload, session_id, sequence, client)
        if kind & (_ENCRYPTED | _AUTHENTICATED):
            return None
        if kind_alone == _IPMI:
            answer = self._message(payload, client, None)
            return None if answer is None else _plain(_IPMI, answer)
        steps = {
            _OPEN_REQUEST: (self._open_session, _OPEN_RESPONSE, "Open Session"),
            _RAKP_1: (self._rakp_1, _RAKP_2, "RAKP 1"),
            _RAKP_3: (self._rakp_3, _RAKP_4, "RAKP 3"),
        }
        if kind_alone not in steps:
            return None
        step, answer_kind, name = steps[kind_alone]
        request: dict[str, Any] = {"name": name}
        session = None
        status, effect = OK, None
        # The console's own number, by which it knows its session in error answers.
        console_id = payload[4:8] if kind_alone == _OPEN_REQUEST else bytes(4)
        try:
            if kind_alone != _OPEN_REQUEST:
                session = self._pending(payload)
                console_id = struct.pack("<I", session.console_id)
                if payload in session.handshake:
                    return session.handshake[payload]
            body, session, effect = step(payload, session, client, request)
        except _HandshakeError as error:
            status, body = error.status, console_id
        answer = _plain(answer_kind, bytes([payload[0], status, 0, 0]) + body)
        if kind_alone == _OPEN_REQUEST and status == OK:
            answer = _plain(answer_kind, bytes([payload[0], status, body[0], 0]) + body[1:])
        if session is not None and status == OK:
            session.handshake[payload] = answer
        self._bmc.journal.write(
            self._caller(client, session), request, effect=effect, status=status
        )
        return answer

    # The handshake (13.17 to 13.24, 13.28 to 13.31)

    def _pending(self, payload: bytes) -> IpmiSession:
        (session_id,) = struct.unpack_from("<I", payload, 4)
        session = self._sessions.get(session_id)
        if session is None or (session.active and payload not in session.handshake):
            raise _HandshakeError(INVALID_SESSION)
        return session

    def _open_session(
        self, payload: bytes, _session: IpmiSession | None, client: str, request: dict[str, Any]
    ) -> tuple[bytes, IpmiSession | None, str | None]:
        _, wanted, _, console_id = struct.unpack_from("<BBHI", payload)
        proposed = []
        for start in (8, 16, 24):
            length, algorithm = payload[start + 3], payload[start + 4] & 0x3F
            # Length 0 leaves the choice to the BMC.
            proposed.append(algorithm if length else None)
        suite = self._choose_suite(*proposed)
        request["suite"] = suite.id
        if len(self._sessions) >= self._bmc.options.max_sessions:
            raise _HandshakeError(NO_RESOURCES)
        session_id = 0
        while not session_id or session_id in self._sessions:
            session_id = secrets.randbits(32)
        session = IpmiSession(session_id, console_id, suite, client, time.monotonic())
        self._sessions[session_id] = session
        algorithms_chosen = b"".join(
            struct.pack("<BHBBBH", kind, 0, 8, algorithm, 0, 0)
            for kind, algorithm in enumerate(
                (suite.authentication, suite.integrity, suite.confidentiality)
            )
        )
        limit = wanted & 0x0F or ADMINISTRATOR
        numbers = struct.pack("<II", console_id, session_id)
        return bytes([limit]) + numbers + algorithms_chosen, session, None

    def _choose_suite(
        self, authentication: int | None, integrity: int | None, confidentiality: int | None
    ) -> Suite:
        """The strongest suite that is offered here and fits what the client proposes."""
        offered = sorted(self._offered_suites(), key=lambda suite: -suite.id)
        for wanted, known, status in (
            (authentication, {s.authentication for s in offered}, INVALID_AUTHENTICATION),
            (integrity, {s.integrity for s in offered}, INVALID_INTEGRITY),
            (confidentiality, {s.confidentiality for s in offered}, INVALID_CONFIDENTIALITY),
        ):
            if wanted is not None and wanted not in known:
                raise _HandshakeError(status)
        for suite in offered:
            if (
                authentication in (None, suite.authentication)
                and integrity in (None, suite.integrity)
                and confidentiality in (None, suite.confidentiality)
            ):
                return suite
        raise _HandshakeError(NO_SUITE_MATCH)

    def _offered_suites(self) -> list[Suite]:
        return [SUITES[number] for number in self._bmc.options.cipher_suites]

    def _rakp_1(
        self, payload: bytes, session: IpmiSession | None, _client: str, request: dict[str, Any]
    ) -> tuple[bytes, IpmiSession | None, str | None]:
        assert session is not None
        console_random = payload[8:24]
        privilege = payload[24] & 0x0F
        length = payload[27]
        name = payload[28 : 28 + length]
        request |= {"username": name.decode(errors="replace"), "privilege": privilege}
        if length > 16 or len(name) < length:
            raise _HandshakeError(INVALID_NAME_LENGTH)
        account = self._bmc.account_named(name.decode(errors="replace"))
        if account is None or not name:
            raise _HandshakeError(UNAUTHORIZED_NAME)
        if not 1 <= privilege <= ADMINISTRATOR:
            raise _HandshakeError(INVALID_ROLE)
        if privilege > account.role.ipmi_privilege:
            raise _HandshakeError(UNAUTHORIZED_ROLE)
        session.account = account
        session.privilege_limit = privilege
        session.role = bytes([payload[24], length]) + name
        session.console_random = console_random
        session.bmc_random = os.urandom(16)
        guid = system_guid(self._bmc)
        code = session.suite.keyed_digest(
            account.password.encode(),
            struct.pack("<II", session.console_id, session.id)
            + console_random
            + session.bmc_random
            + guid
            + session.role,
        )
        console_id = struct.pack("<I", session.console_id)
        return console_id + session.bmc_random + guid + code, session, None

    def _rakp_3(
        self, payload: bytes, session: IpmiSession | None, _client: str, request: dict[str, Any]
    ) -> tuple[bytes, IpmiSession | None, str | None]:
        assert session is not None
        account, suite = session.account, session.suite
        if account is None:
            raise _HandshakeError(INVALID_SESSION)
        request["console_status"] = payload[1]
        console_id = struct.pack("<I", session.console_id)
        expected = suite.keyed_digest(
            account.password.encode(), session.bmc_random + console_id + session.role
        )
        if payload[1] != OK or not hmac.compare_digest(payload[8:], expected):
            # A console that found our code wrong, or one whose own is: either has another password.
            del self._sessions[session.id]
            raise _HandshakeError(INVALID_INTEGRITY_CHECK)
        randoms = session.console_random + session.bmc_random
        integrity = suite.keyed_digest(account.password.encode(), randoms + session.role)
        session.integrity_key = suite.keyed_digest(integrity, b"\x01" * 20)
        session.encryption_key = suite.keyed_digest(integrity, b"\x02" * 20)[:16]
        session.active = True
        session.privilege = min(USER, session.privilege_limit)
        session.last_used = time.monotonic()
        code = suite.keyed_digest(
            integrity,
            session.console_random + struct.pack("<I", session.id) + system_guid(self._bmc),
        )
        return console_id + code[: suite.code_bytes], session, "session: opened"

    # Inside a session

    def _in_session(
        self, packet: bytes, payload: bytes, session_id: int, sequence: int, client: str
    ) -> bytes | None:
        session = self._sessions.get(session_id)
        if session is None or not session.active:
            self._dropped(client, None, "no such session")
            return None
        size = session.suite.code_bytes
        code = session.suite.keyed_digest(session.integrity_key, packet[4:-size])[:size]
        if packet[5] != (_ENCRYPTED | _AUTHENTICATED | _IPMI) or not hmac.compare_digest(
            packet[-size:], code
        ):
            self._dropped(client, session, "integrity check failed")
            return None
        if not session.accept_sequence_number(sequence):
            self._dropped(client, session, "sequence number used or outside the window")
            return None
        message = session.decrypt(payload)
        if message is None:
            self._dropped(client, session, "cannot be decrypted")
            return None
        session.last_used = now = time.monotonic()
        if message == session.last_request and now - session.last_answered_at < _RETRY_SECONDS:
            # The answer got lost: it is sent again, the command is not carried out again.
            answer: bytes | None = session.last_answer
        else:
            answer = self._message(message, client, session)
            if answer is not None:
                session.last_request, session.last_answer = message, answer
                session.last_answered_at = time.monotonic()
        return None if answer is None else _protected(session, answer)

    def _message(self, message: bytes, client: str, session: IpmiSession | None) -> bytes | None:
        """Carry out one IPMI message (13.8) and give the answer message."""
        if len(message) < 7 or checksum(message[:3]) or checksum(message[3:]):
            self._dropped(client, session, "wrong checksum")
            return None
        responder, netfn_lun, _, requester, number_lun, command = message[:6]
        netfn = netfn_lun >> 2
        if responder != BMC_SLAVE_ADDRESS or netfn & 1:
            return None
        data = message[6:-1]
        context = CommandContext(
            self._bmc,
            self._boot_options,
            tuple(suite.record for suite in self._offered_suites()),
            lambda number: self._sessions.pop(number, None) is not None,
            lambda action: self._power(action, self._caller(client, session)),
            session,
        )
        code, content = OK, b""
        try:
            content = run_command(context, netfn, command, data)
        except CommandError as error:
            code = error.code
        except MachineIsOffError:
            code = NOT_IN_THIS_STATE
        except MachineError as error:
            LOG.error("%s: %s", self._bmc.name, error)
            code = UNSPECIFIED
        known = COMMANDS.rows.get((netfn, command))
        request = {
            "name": known.name if known else "unknown",
            "netfn": netfn,
            "command": command,
            "data": data.hex(),
        }
        self._bmc.journal.write(
            self._caller(client, session), request, effect=context.effect, status=code
        )
        head = bytes([requester, (netfn | 1) << 2 | number_lun & 0x03])
        body = bytes([responder, number_lun & 0xFC | netfn_lun & 0x03, command, code]) + content
        return head + bytes([checksum(head)]) + body + bytes([checksum(body)])

    def _power(self, action: PowerAction, caller: Caller) -> str | None:
        """Carry out a power command, and give its effect.

        One that takes longer than a client waits for an answer goes on after the answer, as on real
        BMCs; its effect then is in a second line of the journal. Until it is through, no other is
        taken.
        """
        if not self._power_idle.acquire(blocking=False):
            raise CommandError(NODE_BUSY)
        done: Future[str | None] = Future()

        def work() -> None:
            try:
                done.set_result(self._bmc.power(action))
            except Exception as error:
                done.set_exception(error)
            finally:
                self._power_idle.release()

        threading.Thread(target=work, daemon=True).start()
        try:
            return done.result(_ANSWER_WITHIN_SECONDS)
        except TimeoutError:
            done.add_done_callback(lambda future: self._late_effect(future, caller))
            return None

    def _late_effect(self, done: Future[str | None], caller: Caller) -> None:
        request = {"name": "Chassis Control finished"}
        if error := done.exception():
            LOG.error("%s: %s", self._bmc.name, error)
            self._bmc.journal.write(caller, request, status=UNSPECIFIED)
        else:
            self._bmc.journal.write(caller, request, effect=done.result(), status=OK)

    def _expire_sessions(self) -> None:
        deadline = time.monotonic() - self._bmc.options.ipmi_session_timeout_seconds
        for session in list(self._sessions.values()):
            if session.last_used < deadline:
                del self._sessions[session.id]
                if session.active:
                    self._bmc.journal.write(
                        self._caller(session.client, session),
                        {"name": "session timed out"},
                        effect="session: closed",
                    )

    def _dropped(self, client: str, session: IpmiSession | None, reason: str) -> None:
        self._bmc.journal.write(
            self._caller(client, session), {"name": "dropped packet", "reason": reason}
        )

    def _caller(self, client: str, session: IpmiSession | None) -> Caller:
        proven = session is not None and session.active and session.account is not None
        return Caller(
            "ipmi",
            client,
            f"{session.id:#010x}" if session and proven else None,
            session.account.username if session and session.account and proven else None,
        )


def _pong(packet: bytes) -> bytes | None:
    """The answer to an RMCP presence ping (13.2.4)."""
    if packet[4:8] != _ASF_IANA or packet[8] != 0x80:
        return None
    supports_ipmi = 0x81
    body = _ASF_IANA + bytes(4) + bytes([supports_ipmi]) + bytes(7)
    return _RMCP_ASF + _ASF_IANA + bytes([0x40, packet[9], 0, len(body)]) + body


def _plain(kind: int, payload: bytes) -> bytes:
    """A packet outside any session."""
    return _RMCP_IPMI + struct.pack("<BBIIH", _RMCP_PLUS, kind, 0, 0, len(payload)) + payload


def _protected(session: IpmiSession, message: bytes) -> bytes:
    """A packet of a session (table 13-8): encrypted, then authenticated."""
    payload = session.encrypt(message)
    kind = _ENCRYPTED | _AUTHENTICATED | _IPMI
    head = struct.pack(
        "<BBIIH", _RMCP_PLUS, kind, session.console_id, next(session.sent), len(payload)
    )
    covered = head + payload
    padding = -(len(covered) + 2) % 4
    covered += b"\xff" * padding + bytes([padding, 0x07])
    code = session.suite.keyed_digest(session.integrity_key, covered)
    return _RMCP_IPMI + covered + code[: session.suite.code_bytes]
