# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder of a boot server, from the side of whoever opens boot windows and awaits machines.

``docs/boot-protocol.md`` describes the files. Entries are written here and read by the receiver;
the gate report and the spool are written by the receiver and read here. An entry::

    {version: 1, node, macs: [aa:bb:cc:dd:ee:ff], address: str|null,
     rejoin_token_sha256: hex|null,
     window: null | {window_id, opened_at, expires_at, closed_at: null|time,
                     kernel, initrd, command_line, authorized_keys: [str]}}

Paths of kernel and initrd are below ``files/`` of the boot server, or http(s) addresses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import ipaddress
import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from .deadline import Deadline
from .fault import Fault

Json = dict[str, Any]

ENTRY_VERSION = 1
WINDOW_MAX_SECONDS = 600
EVENT_KINDS = ("checkin", "rejoin", "work_ended")

_NODE = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
    r"(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*",
    re.IGNORECASE,
)
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"(?:[A-Za-z0-9_+-][A-Za-z0-9._+-]*/)*[A-Za-z0-9_+-][A-Za-z0-9._+-]*")
_ADDRESS_OF_FILE = re.compile(r"https?://[!-~]+")
_PUBLIC_KEY = re.compile(r"(?:ssh|sk|ecdsa)-[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,3}(?: [ -~]*)?")
# iPXE takes these words for its own operators, and ${…} for a setting.
_NOT_FOR_IPXE = re.compile(r"\$\{|(?:^|\s)(?:\|\||&&)(?:\s|$)")
_GATE_POLL_SECONDS = 0.05
_EVENT_POLL_SECONDS = 0.5


def timestamp(moment: datetime) -> str:
    """``2026-01-31T12:00:00Z``, with a fraction only where there is one."""
    text = moment.astimezone(UTC).replace(tzinfo=None).isoformat()
    return f"{text}Z"


def parse_timestamp(text: str) -> datetime:
    """RFC 3339 with a time zone. Raises ``INVALID_INPUT``."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise Fault(
            "INVALID_INPUT", wanted="a time like 2026-01-31T12:00:00Z", found=repr(text)
        ) from None
    return moment


def normal_mac(text: str) -> str:
    """``aa:bb:cc:dd:ee:ff`` of any usual spelling. Raises ``INVALID_INPUT`` for others."""
    mac = text.strip().lower().replace("-", ":")
    if not _MAC.fullmatch(mac) or mac in ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"):
        raise Fault("INVALID_INPUT", wanted="the MAC address of a network card", found=repr(text))
    return mac


@dataclasses.dataclass(frozen=True)
class WindowRequest:
    """What a boot window shall offer; ``duration_seconds`` is at most WINDOW_MAX_SECONDS."""

    duration_seconds: int
    kernel: str
    initrd: str
    command_line: str
    authorized_keys: tuple[str, ...]

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> WindowRequest:
        """From the module option ``window``. Raises ``INVALID_INPUT``."""
        request = cls(
            duration_seconds=int(options["duration_seconds"]),
            kernel=str(options["kernel"]),
            initrd=str(options["initrd"]),
            command_line=str(options.get("command_line") or "").strip(),
            authorized_keys=tuple(str(key).strip() for key in options["authorized_keys"]),
        )
        request._check()
        return request

    def _check(self) -> None:
        def refuse(what: str, found: str) -> Fault:
            return Fault("INVALID_INPUT", wanted=what, found=found)

        if not 1 <= self.duration_seconds <= WINDOW_MAX_SECONDS:
            raise refuse(
                f"a boot window of 1 to {WINDOW_MAX_SECONDS} s", f"{self.duration_seconds} s"
            )
        for name, value in (("kernel", self.kernel), ("initrd", self.initrd)):
            if not (_FILE.fullmatch(value) or _ADDRESS_OF_FILE.fullmatch(value)):
                raise refuse(
                    f"{name} as a path below the boot server's files, or an http address",
                    repr(value),
                )
        line = self.command_line
        if not line.isprintable() or not line.isascii() or _NOT_FOR_IPXE.search(line):
            raise refuse("a command_line of printable ASCII without ${, || and &&", repr(line))
        if re.search(r"(?:^|\s)(?:barewright\.\S+|BOOTIF|initrd)=", line):
            raise refuse("a command_line without the words that the receiver sets", repr(line))
        if not self.authorized_keys:
            raise refuse("an SSH public key to log in to the ramdisk with", "authorized_keys: []")
        for key in self.authorized_keys:
            if not _PUBLIC_KEY.fullmatch(key):
                raise refuse("OpenSSH public keys in authorized_keys", repr(key[:40]))

    def offers(self, window: Json) -> bool:
        """Whether an entry's window offers the same for as long."""
        lasts = parse_timestamp(window["expires_at"]) - parse_timestamp(window["opened_at"])
        return bool(
            lasts == timedelta(seconds=self.duration_seconds)
            and window["kernel"] == self.kernel
            and window["initrd"] == self.initrd
            and window["command_line"] == self.command_line
            and window["authorized_keys"] == list(self.authorized_keys)
        )

    def open(self, now: datetime) -> Json:
        """The ``window`` of an entry that opens now."""
        opened = now.replace(microsecond=0)
        return {
            "window_id": secrets.token_hex(16),
            "opened_at": timestamp(opened),
            "expires_at": timestamp(opened + timedelta(seconds=self.duration_seconds)),
            "closed_at": None,
            "kernel": self.kernel,
            "initrd": self.initrd,
            "command_line": self.command_line,
            "authorized_keys": list(self.authorized_keys),
        }


@dataclasses.dataclass(frozen=True)
class EntryRequest:
    """What an entry shall be; None leaves a value as it is, an empty one removes it.

    ``window_state``: ``open`` keeps an open window that offers the same, ``renewed`` opens a new
    one whatever is there, ``closed`` closes it, None leaves it.
    """

    node: str
    present: bool = True
    macs: tuple[str, ...] | None = None
    address: str | None = None
    rejoin_token_sha256: str | None = None
    window: WindowRequest | None = None
    window_state: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> EntryRequest:
        """From the options of module ``boot_entry``. Raises ``INVALID_INPUT``."""
        node = check_node(options["node"])
        macs = options.get("macs")
        address = options.get("address")
        if address:
            try:
                address = str(ipaddress.ip_address(address))
            except ValueError as error:
                raise Fault("INVALID_INPUT", wanted="an IP address", found=str(error)) from error
        rejoin = options.get("rejoin_token_sha256")
        if rejoin and not _SHA256.fullmatch(rejoin):
            raise Fault(
                "INVALID_INPUT",
                wanted="rejoin_token_sha256 as 64 lower-case hex digits",
                found="another text",
            )
        state = options.get("window_state")
        window = options.get("window")
        if state in ("open", "renewed") and not window:
            raise Fault(
                "INVALID_INPUT",
                wanted="what the boot window offers",
                found=f"window_state {state} without window",
            )
        return cls(
            node=node,
            present=options.get("state", "present") == "present",
            macs=tuple(dict.fromkeys(normal_mac(mac) for mac in macs)) if macs else None,
            address=address,
            rejoin_token_sha256=rejoin,
            window=WindowRequest.of(window) if window else None,
            window_state=state,
        )

    @property
    def opens(self) -> bool:
        """Whether a window shall be open afterwards."""
        return self.present and self.window_state in ("open", "renewed")


def check_node(node: str) -> str:
    """The name itself, when an entry may have it. Raises ``INVALID_INPUT``."""
    if not _NODE.fullmatch(node):
        raise Fault("INVALID_INPUT", wanted="a node name (RFC 1123)", found=repr(node))
    return node


def is_open(entry: Json | None, now: datetime) -> bool:
    """Whether the entry's window is open by its own word and the clock."""
    window = (entry or {}).get("window")
    if not window or window["closed_at"] is not None:
        return False
    return parse_timestamp(window["expires_at"]) > now


def plan(
    current: Json | None, request: EntryRequest, others: Mapping[str, Json], now: datetime
) -> Json | None:
    """The entry as it shall be, None for no entry. Writes nothing.

    Raises ``BOOT_MAC_CONFLICT`` and ``BOOT_ADDRESS_CONFLICT`` when another entry has the same,
    and ``INVALID_INPUT`` for a new entry without a MAC address or a window without an address.
    """
    if not request.present:
        return None
    entry = dict(current) if current else None
    if entry is None:
        if request.macs is None:
            if request.window_state == "closed" and not request.rejoin_token_sha256:
                return None
            raise Fault(
                "INVALID_INPUT",
                wanted=f"macs for the new boot entry of {request.node}",
                found="none; an empty MAC address matches no machine",
            )
        entry = {
            "version": ENTRY_VERSION,
            "node": request.node,
            "macs": [],
            "address": None,
            "rejoin_token_sha256": None,
            "window": None,
        }
    if request.macs is not None:
        entry["macs"] = list(request.macs)
    if request.address is not None:
        entry["address"] = request.address or None
    if request.rejoin_token_sha256 is not None:
        entry["rejoin_token_sha256"] = request.rejoin_token_sha256 or None
    _refuse_conflicts(entry, others)
    window = entry["window"]
    if request.window_state == "closed":
        if is_open(entry, now):
            entry["window"] = {**window, "closed_at": timestamp(now.replace(microsecond=0))}
    elif request.window_state is not None and request.window is not None:
        if not entry["address"]:
            raise Fault(
                "INVALID_INPUT",
                wanted=f"an address for {request.node}: DHCP gives it to the machine that boots,"
                " TFTP knows the machine by it",
                found="none in the boot entry",
            )
        kept = (
            request.window_state == "open" and is_open(entry, now) and request.window.offers(window)
        )
        if not kept:
            entry["window"] = request.window.open(now)
    return entry


def _refuse_conflicts(entry: Json, others: Mapping[str, Json]) -> None:
    for node, other in sorted(others.items()):
        shared = sorted(set(entry["macs"]) & set(other["macs"]))
        if shared:
            raise Fault(
                "BOOT_MAC_CONFLICT",
                wanted=f"{', '.join(shared)} for {entry['node']} alone",
                found=f"the boot entry of {node} has it too",
                details={"macs": shared, "node": node},
            )
        if entry["address"] and entry["address"] == other["address"]:
            raise Fault(
                "BOOT_ADDRESS_CONFLICT",
                wanted=f"{entry['address']} for {entry['node']} alone",
                found=f"the boot entry of {node} has it too",
                details={"address": entry["address"], "node": node},
            )


class BootFolder:
    """The folder of a boot server on this very host."""

    def __init__(self, root: str | Path) -> None:
        """Raises ``BOOT_SERVER_DOWN`` when no boot server was ever set up there."""
        self.root = Path(root)
        if not (self.root / "entries").is_dir():
            raise Fault(
                "BOOT_SERVER_DOWN",
                wanted=f"the folder of a boot server at {self.root}",
                found="no folder entries there",
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold every other writer of entries off: conflicts are judged by all entries together."""
        path = self.root / "entries" / ".lock"
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def entries(self) -> dict[str, Json]:
        """All usable entries by node; one that cannot be read matches nothing, here and there."""
        found = {}
        for path in sorted((self.root / "entries").glob("[!.]*.json")):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(path.read_bytes())
                if entry["version"] == ENTRY_VERSION and entry["node"] == path.stem:
                    found[path.stem] = {"macs": [], "address": None, "window": None, **entry}
        return found

    def write(self, entry: Json) -> None:
        """Replace the entry's file, atomically and durably."""
        folder = self.root / "entries"
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{entry['node']}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(_to_bytes(entry))
                stream.flush()
                # The receiver is another user; nothing in an entry is secret.
                os.fchmod(stream.fileno(), 0o644)
                os.fsync(stream.fileno())
            os.replace(temporary, folder / f"{entry['node']}.json")
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise

    def remove(self, node: str) -> None:
        """Remove the entry's file, if it is there."""
        (self.root / "entries" / f"{node}.json").unlink(missing_ok=True)

    def await_gate(self, node: str, entry: Json | None, opened: bool, deadline: Deadline) -> None:
        """Wait until the receiver's gate stands for ``entry``, open if it shall be.

        Raises ``BOOT_SERVER_DOWN`` when it does not within the deadline, or when the gate is open
        while dnsmasq, which it steers, does not run.
        """
        while True:
            report = self._gate_report()
            found = self._gate_difference(report, node, entry, opened)
            if not found:
                return
            if deadline.expired:
                raise Fault(
                    "BOOT_SERVER_DOWN",
                    wanted=f"the receiver at {self.root} to take over the entry of {node}"
                    f" within {deadline.seconds:g} s",
                    found=found,
                )
            deadline.sleep(_GATE_POLL_SECONDS)

    def _gate_report(self) -> Json | None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            report = json.loads((self.root / "run" / "gate.json").read_bytes())
            if isinstance(report, dict):
                return report
        return None

    @staticmethod
    def _gate_difference(report: Json | None, node: str, entry: Json | None, opened: bool) -> str:
        if report is None:
            return "it has not said anything yet"
        reported = report["entries"].get(node)
        if entry is None:
            return "it still has the entry" if reported else ""
        digest = hashlib.sha256(_to_bytes(entry)).hexdigest()
        if not reported or reported["sha256"] != digest:
            return "it stands for another entry, so it does not run"
        if opened and not reported["open"]:
            return "it has the entry and keeps the window shut; its log says why"
        if opened and report["dhcp"] not in ("running", "unmanaged"):
            return f"the receiver has opened the gate, but dnsmasq is {report['dhcp']}"
        return ""

    def events(self, kind: str, node: str) -> list[Json]:
        """What the receiver spooled of a kind (``token_reused`` too), oldest first."""
        folder = self.root / "spool" / kind / node
        found = []
        for path in sorted(folder.glob("[!.]*.json")):
            # The receiver removes the oldest ones meanwhile.
            with contextlib.suppress(FileNotFoundError):
                found.append(json.loads(path.read_bytes()))
        return found


def _to_bytes(entry: Json) -> bytes:
    return (json.dumps(entry, indent=2, sort_keys=True) + "\n").encode()


@dataclasses.dataclass(frozen=True)
class EventFilter:
    """Which event is awaited; what is None does not matter."""

    node: str
    kind: str
    window_id: str | None = None
    operation_id: str | None = None
    deploy_id: str | None = None
    after: datetime | None = None

    def newest(self, folder: BootFolder) -> Json | None:
        """The newest event that fits.

        Raises ``BOOT_TOKEN_REUSED`` when a check-in is awaited and the receiver saw the window's
        token come with a second key.
        """
        if self.kind == "checkin":
            reused = [
                event for event in folder.events("token_reused", self.node) if self.fits(event)
            ]
            if reused:
                raise Fault(
                    "BOOT_TOKEN_REUSED",
                    wanted=f"one machine to check in as {self.node}",
                    found=f"the token of its boot script came with a second key, from"
                    f" {reused[-1]['remote_address']} at {reused[-1]['received_at']}",
                    details={
                        key: reused[-1][key] for key in ("window_id", "remote_address", "macs")
                    },
                )
        fitting = [event for event in folder.events(self.kind, self.node) if self.fits(event)]
        return fitting[-1] if fitting else None

    def fits(self, event: Json) -> bool:
        """Whether every value that matters is the event's."""
        for key in ("window_id", "operation_id", "deploy_id"):
            wanted = getattr(self, key)
            if wanted is not None and event.get(key) != wanted:
                return False
        return self.after is None or parse_timestamp(event["received_at"]) > self.after


def await_event(folder: BootFolder, wanted: EventFilter, timeout_seconds: float) -> Json | None:
    """The newest event that fits, as soon as there is one; None when asked to look once only.

    ``timeout_seconds`` 0 looks once. Raises ``BOOT_TIMEOUT`` when the time is up.
    """
    deadline = Deadline(timeout_seconds)
    while True:
        event = wanted.newest(folder)
        if event is not None or timeout_seconds <= 0:
            return event
        if deadline.expired:
            raise Fault(
                "BOOT_TIMEOUT",
                wanted=f"{wanted.kind} of {wanted.node} within {timeout_seconds:g} s",
                found="nothing that fits in the spool of the boot server",
            )
        deadline.sleep(_EVENT_POLL_SECONDS)
