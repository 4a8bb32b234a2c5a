# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""What one BMC knows and does: accounts, sessions, boot override, power. No protocol in here."""

from __future__ import annotations

import enum
import hmac
import itertools
import secrets
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from virtual_rack.bmc.journal import Caller, Journal
from virtual_rack.machine import (
    BootDevice,
    BootOverride,
    FirmwareMode,
    Machine,
    MachineError,
    MachineEvent,
    PowerState,
)
from virtual_rack.spec import ServerSpec

Persistence = Literal["disabled", "once", "continuous"]

MANUFACTURER = "Barewright"
MODEL = "Virtual BMC"
FIRMWARE_VERSION = "1.0"
MAX_SESSIONS = 16


class Role(enum.Enum):
    """The predefined roles of DSP0266; the value is the Redfish RoleId."""

    ADMINISTRATOR = "Administrator"
    OPERATOR = "Operator"
    READ_ONLY = "ReadOnly"

    @property
    def privileges(self) -> frozenset[str]:
        return _PRIVILEGES[self]

    @property
    def ipmi_privilege(self) -> int:
        """The highest IPMI privilege level (IPMI 2.0, table 22-18) of an account with this role."""
        return _IPMI_PRIVILEGES[self]


_PRIVILEGES = {
    Role.ADMINISTRATOR: frozenset(
        {"Login", "ConfigureManager", "ConfigureUsers", "ConfigureSelf", "ConfigureComponents"}
    ),
    Role.OPERATOR: frozenset({"Login", "ConfigureSelf", "ConfigureComponents"}),
    Role.READ_ONLY: frozenset({"Login", "ConfigureSelf"}),
}
_IPMI_PRIVILEGES = {Role.ADMINISTRATOR: 4, Role.OPERATOR: 3, Role.READ_ONLY: 2}


@dataclass(frozen=True)
class Account:
    """One account, for Redfish and IPMI alike. `id` is the Redfish Id and the IPMI user number."""

    id: int
    username: str
    password: str
    role: Role


@dataclass
class Session:
    """One Redfish session."""

    id: str
    token: str
    account: Account
    client: str
    created_at: datetime
    last_used: float


@dataclass(frozen=True)
class BootSettings:
    """The boot override as an operator sees it. `expires_at` is monotonic time, None for never."""

    device: BootDevice | None
    persistence: Persistence
    mode: FirmwareMode
    expires_at: float | None = None

    def __str__(self) -> str:
        if self.persistence == "disabled":
            return "none"
        return f"{self.device or 'none'} {self.persistence} {self.mode}"


class PowerAction(enum.Enum):
    """What can be asked of the power of a machine."""

    ON = "on"
    FORCE_OFF = "force_off"
    GRACEFUL_OFF = "graceful_off"
    GRACEFUL_RESTART = "graceful_restart"
    RESET = "reset"
    CYCLE = "cycle"
    PUSH_BUTTON = "push_button"


class MachineIsOffError(Exception):
    """The action makes sense on a machine that is on only."""


class SessionLimitError(Exception):
    """No further session can be opened."""


@dataclass(frozen=True)
class Endpoint:
    """Where a BMC is reached; a port is None when that protocol is not offered."""

    address: str = "127.0.0.1"
    netmask: str = "255.0.0.0"
    redfish_port: int | None = None
    ipmi_port: int | None = None


@dataclass
class Options:
    """How a BMC behaves where real ones differ."""

    session_timeout_seconds: float = 1800.0
    ipmi_session_timeout_seconds: float = 60.0
    require_if_match: bool = False
    max_sessions: int = MAX_SESSIONS
    cipher_suites: tuple[int, ...] = (3, 17)


@dataclass
class _Sessions:
    by_id: dict[str, Session] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


class Bmc:
    """One BMC in front of one machine. Every method may be called from any thread."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        journal: Journal,
        accounts: Iterable[tuple[str, str, Role]],
        options: Options | None = None,
    ) -> None:
        self.name = name
        self.machine = machine
        self.journal = journal
        self.options = options or Options()
        self.hardware = machine.hardware()
        self.system_id = "1"
        self.manager_id = "bmc"
        self.chassis_id = "1"
        self.uuid = str(uuid.uuid5(uuid.UUID(self.hardware.uuid), "bmc"))
        # Locally administered, and the same whenever the rack is started.
        self.mac = ":".join(["02", *(f"{octet:02x}" for octet in uuid.UUID(self.uuid).bytes[:5])])
        self.endpoint = Endpoint()
        # Number 1 is the null user of IPMI (6.9), which nobody has.
        self.accounts = [
            Account(number, username, password, role)
            for number, (username, password, role) in enumerate(accounts, start=2)
        ]
        self._sessions = _Sessions()
        self._settings = self._no_override()
        self._lock = threading.Lock()
        self._power_lock = threading.Lock()
        self._start_after_shutdown = False
        machine.on_boot(self._choose_boot)
        machine.on_event(self._machine_event)

    # Accounts and sessions

    def authenticate(self, username: str, password: str) -> Account | None:
        """The account that name and password belong to, None when they belong to none."""
        found = None
        for account in self.accounts:
            same_name = hmac.compare_digest(account.username.encode(), username.encode())
            same_password = hmac.compare_digest(account.password.encode(), password.encode())
            if same_name and same_password:
                found = account
        return found

    def account_named(self, username: str) -> Account | None:
        return next((entry for entry in self.accounts if entry.username == username), None)

    def open_session(self, account: Account, client: str) -> Session:
        """Raises SessionLimitError when too many are open."""
        self._expire_sessions()
        with self._lock:
            if len(self._sessions.by_id) >= self.options.max_sessions:
                raise SessionLimitError
            session = Session(
                id=str(next(self._sessions.numbers)),
                token=secrets.token_urlsafe(24),
                account=account,
                client=client,
                created_at=datetime.now(UTC),
                last_used=time.monotonic(),
            )
            self._sessions.by_id[session.id] = session
            return session

    def session_with_token(self, token: str) -> Session | None:
        """The live session of a token, which counts as used now."""
        self._expire_sessions()
        with self._lock:
            for session in self._sessions.by_id.values():
                if hmac.compare_digest(session.token.encode(), token.encode()):
                    session.last_used = time.monotonic()
                    return session
        return None

    def sessions(self) -> list[Session]:
        self._expire_sessions()
        with self._lock:
            return list(self._sessions.by_id.values())

    def close_session(self, session_id: str) -> bool:
        """False when there is no such session."""
        with self._lock:
            return self._sessions.by_id.pop(session_id, None) is not None

    def _expire_sessions(self) -> None:
        deadline = time.monotonic() - self.options.session_timeout_seconds
        with self._lock:
            expired = [s for s in self._sessions.by_id.values() if s.last_used < deadline]
            for session in expired:
                del self._sessions.by_id[session.id]
        for session in expired:
            self.journal.write(
                Caller("redfish", session.client, session.id, session.account.username),
                {"event": "session timed out"},
                effect="session: closed",
            )

    # Boot override

    def boot_settings(self) -> BootSettings:
        with self._lock:
            return self._unexpired_settings()

    def _no_override(self) -> BootSettings:
        """What stays when an override is over: the mode was part of it."""
        return BootSettings(None, "disabled", self.hardware.firmware.mode)

    def set_boot(
        self,
        device: BootDevice | None,
        persistence: Persistence,
        mode: FirmwareMode,
        lifetime_seconds: float | None = None,
    ) -> str | None:
        """Set the override, and return the effect for the journal.

        `lifetime_seconds` lets it lapse when no boot comes in that time, as IPMI's boot flags do.
        """
        expires_at = None if lifetime_seconds is None else time.monotonic() + lifetime_seconds
        wanted = BootSettings(device, persistence, mode, expires_at)
        with self._lock:
            before = replace(self._unexpired_settings(), expires_at=None)
            self._settings = wanted
        return f"boot override: {wanted}" if replace(wanted, expires_at=None) != before else None

    def _unexpired_settings(self) -> BootSettings:
        expires_at = self._settings.expires_at
        if expires_at is not None and time.monotonic() >= expires_at:
            self._settings = self._no_override()
        return self._settings

    def _choose_boot(self) -> BootOverride | None:
        """What this boot starts from; the machine calls it at the start of every boot."""
        with self._lock:
            settings = self._unexpired_settings()
            if settings.persistence == "once":
                self._settings = self._no_override()
            elif settings.expires_at is not None:
                self._settings = replace(settings, expires_at=None)
            if settings.persistence == "disabled" or settings.device is None:
                return None
            return BootOverride(settings.device, settings.mode)

    # Power

    def power_state(self) -> PowerState:
        return self.machine.power_state()

    def power(self, action: PowerAction) -> str | None:
        """Do it and return the effect for the journal, None when there was nothing to do.

        Raises MachineIsOffError where the action needs a machine that is on, MachineError when
        the machine could not do it.
        """
        with self._power_lock:
            is_on = self.machine.power_state() == "on"
            if not is_on and action in _NEEDS_POWER:
                raise MachineIsOffError
            # Whatever was asked for last counts: it calls off a graceful restart under way.
            self._start_after_shutdown = False
            if action is PowerAction.ON or (action is PowerAction.PUSH_BUTTON and not is_on):
                if is_on:
                    return None
                self.machine.power_on()
                return "power: off→on"
            if action is PowerAction.FORCE_OFF:
                if not is_on:
                    return None
                self.machine.power_off()
                return "power: on→off"
            if action is PowerAction.CYCLE:
                self.machine.power_off()
                self.machine.power_on()
                return "power: on→off→on"
            if action is PowerAction.RESET:
                self.machine.reset()
                return "power: reset"
            if not is_on:
                return None
            self._start_after_shutdown = action is PowerAction.GRACEFUL_RESTART
            self.machine.press_power_button()
            return "power: button"

    def _machine_event(self, event: MachineEvent) -> None:
        request: dict[str, object] = {"event": event.kind, "reason": event.reason}
        effect = None
        if event.kind == "boot_started":
            mode = event.boot.mode if event.boot else None
            mode = mode or self.hardware.firmware.mode
            device = event.boot.device if event.boot else None
            request["boot"] = {"device": device, "mode": mode}
            effect = f"boot: {device or 'configured order'} {mode}"
        elif event.kind == "powered_off" and event.reason in ("guest_shutdown", "machine_died"):
            effect = "power: on→off"
        self.journal.write(Caller("machine"), request, effect=effect)
        if event.kind == "powered_off" and event.reason == "guest_shutdown":
            # An event callback must not block, and starting a machine takes time.
            threading.Thread(target=self._restart_after_shutdown, daemon=True).start()

    def _restart_after_shutdown(self) -> None:
        with self._power_lock:
            if not self._start_after_shutdown or self.machine.power_state() == "on":
                return
            self._start_after_shutdown = False
            effect: str | None = "power: off→on"
            reason = "graceful restart"
            try:
                self.machine.power_on()
            except MachineError as error:
                effect, reason = None, f"graceful restart: {error}"
        self.journal.write(Caller("machine"), {"event": "restart", "reason": reason}, effect=effect)


def make_bmc(
    server: ServerSpec, machine: Machine, journal: Path, options: Options | None = None
) -> Bmc:
    """The BMC of a server as its spec describes it."""
    accounts = [(entry.username, entry.password, Role(entry.role)) for entry in server.bmc.accounts]
    return Bmc(server.name, machine, Journal(journal), accounts, options)


_NEEDS_POWER = (PowerAction.GRACEFUL_RESTART, PowerAction.RESET, PowerAction.CYCLE)
