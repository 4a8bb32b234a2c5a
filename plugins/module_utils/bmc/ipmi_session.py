# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One IPMI session, on pyghmi's own, with the retries in our hands.

pyghmi's synchronous calls (1.6) send a command again when the answer is late, chassis control
included, over a new session if need be, and wait for a dead BMC as long as they like. So commands
go out by its callback interface, once each, and this module does the waiting. It uses the session
class itself, because only there a cipher suite can be chosen.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from ..deadline import Deadline
from ..fault import Fault
from .interfaces import NotYet
from .ipmi_words import CLOSE_SESSION
from .termination import shielded

LIBRARY_ERROR: str | None = None
try:
    from pyghmi.exceptions import PyghmiException
    from pyghmi.ipmi.private.session import Session as PyghmiSession
except ImportError as error:
    LIBRARY_ERROR = str(error)
    PyghmiSession = object
    PyghmiException = Exception

PRIVILEGES = {"administrator": 4, "operator": 3, "user": 2}

_LOGIN_SECONDS = 20.0
_ANSWER_SECONDS = 2.0
_CLOSE_SECONDS = 1.0

# Status codes of RMCP+ (table 13-15) as pyghmi words them.
_CIPHER_SIGNS = (
    "algorithm",
    "integrity payload",
    "No Cipher suite match",
    "Invalid integrity check value",
    "Invalid RAKP4 integrity code",
)
_PRIVILEGE_SIGNS = ("Invalid role", "privilege level", "privelege level")
# Cisco refuses a too high level with the words for an unknown name (ipmitool 376).
_NAME_SIGN = "Unauthorized name"
_CROWDED_SIGN = "Insufficient resources"
_PASSWORD_SIGN = "Incorrect password"


class Suite17(PyghmiSession):
    """RAKP-HMAC-SHA256, falling back to SHA-1 when the BMC's answer says so."""

    first_hash = 256

    def _initsession(self) -> None:
        super()._initsession()
        self.attemptedhash = self.first_hash

    def _got_rmcp_response(self, data: Any) -> Any:
        # A BMC may answer a proposal of SHA-256 with SHA-1 and status 0; pyghmi then computes
        # with the wrong hash and dies of the length of RAKP 2. Algorithm: table 13-10, byte 17.
        if len(data) > 16 and data[1] == 0 and data[16] == 1:
            self.attemptedhash = 1
            self.currhashlib = hashlib.sha1
            self.currhashlen = 12
        return super()._got_rmcp_response(data)


class Suite3(Suite17):
    """RAKP-HMAC-SHA1 from the start, for BMCs that stay silent on a proposal of suite 17."""

    first_hash = 1


class IpmiSession:
    """A logged-in session. ``open`` may be called again after ``close``."""

    def __init__(
        self,
        address: str,
        port: int,
        username: str,
        password: str,
        privilege_level: str | None,
        deadline: Deadline,
    ) -> None:
        self._where = f"{address} port {port}"
        self._arguments = {
            "bmc": address,
            "port": port,
            # As bytes: pyghmi looks for a session by what it was given, and forgets it by what it
            # encoded; with text the next session would be the dead one.
            "userid": username.encode(),
            "password": password.encode(),
        }
        self._username = username
        self._levels = [privilege_level] if privilege_level else ["administrator", "operator"]
        self._suites = [Suite17, Suite3]
        self._deadline = deadline
        self._session: Any = None

    def open(self) -> None:
        """Log in with the first suite and privilege that the BMC takes.

        A refused password ends it at the first attempt. Raises BMC_AUTH_FAILED, BMC_UNREACHABLE,
        BMC_PRIVILEGE_TOO_LOW, BMC_REFUSED; ``NotYet`` when the BMC has no room for a session.
        """
        trouble = "timeout"
        for suite in list(self._suites):
            for level in list(self._levels):
                with shielded():
                    trouble = self._log_in(suite, PRIVILEGES[level])
                if not trouble:
                    # What worked is what a second login of this task starts with.
                    self._suites, self._levels = [suite], [level]
                    return
                if not _is_about_privilege(trouble):
                    break
            if not self._may_be_the_suite(trouble):
                break
        raise self._refusal(trouble)

    def exchange(
        self,
        command: tuple[int, int],
        data: Sequence[int] = b"",
        *,
        tries: int = 1,
        seconds: float = _ANSWER_SECONDS,
    ) -> tuple[int, bytes] | None:
        """Completion code and data of the answer; None when none came.

        ``tries`` is how often the command may be sent: more than 1 for commands that only read.
        """
        for _attempt in range(tries):
            answer = self._send_once(command, data, seconds)
            if answer is not None or self._deadline.expired:
                return answer
        return None

    def close(self) -> None:
        """End the session on the BMC; never raises, takes two seconds at most."""
        session, self._session = self._session, None
        if session is None:
            return
        with contextlib.suppress(Exception):
            if session.logged:
                self._session = session
                number = struct.pack("<I", session.sessionid)
                if self._send_once(CLOSE_SESSION, number, _CLOSE_SECONDS) is None:
                    self._send_once(CLOSE_SESSION, number, _CLOSE_SECONDS)
        self._session = None
        with contextlib.suppress(Exception):
            # pyghmi would send the same once more and not wait for the answer.
            session.logged = 0
            session.logout(False)

    def _log_in(self, suite: type[Any], privilege: int) -> str:
        """Empty when it worked, else what went wrong."""
        outcome: list[dict[str, Any]] = []
        session: Any = None
        until = time.monotonic() + min(_LOGIN_SECONDS, self._deadline.remaining())
        try:
            session = suite(**self._arguments, onlogon=outcome.append, privlevel=privilege)
            self._session = session
            while not outcome and time.monotonic() < until:
                suite.wait_for_rsp(timeout=min(0.5, max(0.0, until - time.monotonic())))
        except socket.gaierror as error:
            return f"unreachable: {error}"
        except (PyghmiException, struct.error, IndexError, TypeError, ValueError) as error:
            # A BMC that speaks another algorithm than it was asked for looks like this.
            outcome = [{"error": f"algorithm? {type(error).__name__}: {error}"}]
        trouble = str(outcome[0].get("error") or "") if outcome else "timeout"
        if trouble:
            self._session = None
            spoke = session is not None and session.ipmiversion == 2.0
            with contextlib.suppress(Exception):
                session.logout(False)
            if spoke and "timeout" in trouble:
                return "timeout while opening the session"
        return trouble

    def _may_be_the_suite(self, trouble: str) -> bool:
        silent = trouble == "timeout while opening the session"
        return silent or any(sign in trouble for sign in _CIPHER_SIGNS)

    def _refusal(self, trouble: str) -> Exception:
        wanted = f"an IPMI session with {self._where} as {self._username!r}"
        details = {"address": self._arguments["bmc"]}
        if _CROWDED_SIGN in trouble:
            return NotYet(trouble)
        if _PASSWORD_SIGN in trouble or _NAME_SIGN in trouble:
            code = "BMC_AUTH_FAILED"
        elif _is_about_privilege(trouble):
            code = "BMC_PRIVILEGE_TOO_LOW"
        elif "timeout" in trouble or trouble.startswith("unreachable"):
            code = "BMC_UNREACHABLE"
        else:
            code = "BMC_REFUSED"
        return Fault(code, wanted=wanted, found=trouble, details=details)

    def _send_once(
        self, command: tuple[int, int], data: Sequence[int], seconds: float
    ) -> tuple[int, bytes] | None:
        netfn, number = command
        session = self._session
        answers: list[dict[str, Any]] = []
        until = time.monotonic() + seconds
        try:
            session.raw_command(
                netfn=netfn, command=number, data=bytes(data), retry=False, callback=answers.append
            )
            while time.monotonic() < until:
                for answer in answers:
                    if (answer.get("netfn"), answer.get("command")) == (netfn + 1, number):
                        return int(answer["code"]), bytes(answer["data"])
                # An answer that came too late for an earlier command.
                answers.clear()
                session.wait_for_rsp(timeout=min(0.5, max(0.0, until - time.monotonic())))
        except PyghmiException:
            # "Session no longer connected"
            return None
        finally:
            # With a callback, pyghmi leaves it to the caller to end the command.
            session.incommand = False
            while session.evq:
                session.evq.popleft().set()
        return None


def _is_about_privilege(trouble: str) -> bool:
    return _NAME_SIGN in trouble or any(sign in trouble for sign in _PRIVILEGE_SIGNS)
