# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: Barewright contributors
"""The receiver of a boot server: what a machine talks to while it boots from the network.

It serves the boot script of a machine whose boot window is open, takes check-in, rejoin and
"work ended" into a spool, serves files, and keeps dnsmasq's DHCP and TFTP behind the same gate.
The protocol is described in ``docs/boot-protocol.md``. The folder given by ``--root``:

- ``entries/<node>.json``   who may boot; written by module ``boot_entry``, only read here
- ``files/``                what ``/files/`` serves
- ``loaders/``              the network boot loaders that TFTP and UEFI HTTP boot may hand out
- ``state/<node>.json``     the hashed token that is valid now and the check-in it was used for
- ``spool/<kind>/<node>/``  one JSON file an event; read by module ``boot_wait``
- ``dhcp/hosts, dhcp/options, tftp/<address>``  the gate as dnsmasq sees it
- ``run/gate.json``         which entries the gate stands for; module ``boot_entry`` waits for it

Standard library only: it runs on a bare boot server with nothing but Python 3.11.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import contextlib
import dataclasses
import hashlib
import hmac
import ipaddress
import json
import mimetypes
import os
import re
import secrets
import signal
import socket
import socketserver
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

Json = dict[str, Any]

WINDOW_MAX_SECONDS = 600
BODY_MAX_BYTES = 64 * 1024
LIST_MAX_ITEMS = 64
EVENTS_KEPT = 20
CONNECTIONS_MAX = 1024
IDLE_SECONDS = 30
SCAN_SECONDS = 0.1
# A second rename within one tick of the file system's clock leaves the folder's time as it was.
SCAN_AGAIN_SECONDS = 1.0
RESTART_PATIENCE_SECONDS = 5.0

_LINK_ADDRESS = re.compile(r"[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){0,31}")
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
_NODE = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
                   r"(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*", re.IGNORECASE)  # fmt: skip
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,256}")
_SECRET = re.compile(r"(barewright\.token=|\"token\":\s*\")[^\s\"&]+|bwt_[A-Za-z0-9_-]+")
# SubjectPublicKeyInfo of an uncompressed point on P-256 (RFC 5480), all but the point's 64 bytes.
_P256_SPKI_PREFIX = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")


class Refused(Exception):  # noqa: N818  an answer, not an error
    """An answer other than the one asked for: HTTP status, fault code, what to tell, headers."""

    def __init__(
        self, status: HTTPStatus, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


def invalid(message: str) -> Refused:
    """A request that does not follow the protocol."""
    return Refused(HTTPStatus.BAD_REQUEST, "REQUEST_INVALID", message)


def redact(text: str) -> str:
    """``text`` with whatever looks like a token of this receiver taken out."""
    return _SECRET.sub(lambda match: f"{match[1] or ''}REDACTED", text)


def sha256(text: str) -> str:
    """Hex digest; tokens are stored and looked up by it only."""
    return hashlib.sha256(text.encode()).hexdigest()


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC; microseconds, since events are ordered and compared by it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_timestamp(text: str) -> datetime:
    """The inverse of :func:`timestamp`, seconds without fraction included."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    return moment


def normal_mac(text: str) -> str | None:
    """``aa:bb:cc:dd:ee:ff`` of any usual spelling; None for anything else, so for an empty one."""
    mac = text.strip().lower().replace("-", ":")
    if not _MAC.fullmatch(mac) or mac in ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"):
        return None
    return mac


def write_atomic(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace ``path`` by a new file: a reader sees the old content or the new, never half."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            if durable:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def to_json(value: Any) -> bytes:
    """Stable bytes of a JSON value, ending in a newline."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


# --- what a machine may say ---------------------------------------------------------------------


def _text(body: Json, key: str, pattern: re.Pattern[str], shape: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise invalid(f"{key} must be {shape}")
    return value


def _strings(body: Json, key: str) -> list[str]:
    value = body.get(key)
    if not isinstance(value, list) or len(value) > LIST_MAX_ITEMS:
        raise invalid(f"{key} must be a list of at most {LIST_MAX_ITEMS} strings")
    if not all(isinstance(item, str) for item in value):
        raise invalid(f"{key} must be a list of at most {LIST_MAX_ITEMS} strings")
    return list(value)


def ssh_ed25519_key(text: str) -> str:
    """``ssh-ed25519 AAAA…`` without a comment, or REQUEST_INVALID."""
    words = text.split()
    if len(words) >= 2 and words[0] == "ssh-ed25519":
        with contextlib.suppress(binascii.Error, ValueError):
            blob = base64.b64decode(words[1], validate=True)
            if len(blob) == 51 and blob[:19] == b"\0\0\0\x0bssh-ed25519\0\0\0\x20":
                return f"ssh-ed25519 {words[1]}"
    raise invalid("ssh_host_key must be an OpenSSH public key of type ssh-ed25519")


def p256_key(text: str) -> str:
    """The PEM text of an ECDSA P-256 public key, or REQUEST_INVALID."""
    lines = [line.strip() for line in text.strip().splitlines()]
    if lines[:1] == ["-----BEGIN PUBLIC KEY-----"] and lines[-1:] == ["-----END PUBLIC KEY-----"]:
        with contextlib.suppress(binascii.Error, ValueError):
            der = base64.b64decode("".join(lines[1:-1]), validate=True)
            if len(der) == len(_P256_SPKI_PREFIX) + 64 and der.startswith(_P256_SPKI_PREFIX):
                return "\n".join(lines) + "\n"
    raise invalid("identity_key must be a public key in PEM: SubjectPublicKeyInfo, ECDSA P-256")


@dataclasses.dataclass(frozen=True)
class CheckIn:
    """A check-in as it is spooled, the token apart."""

    token: str
    macs: tuple[str, ...]
    product_uuid: str | None
    ssh_host_key: str
    identity_key: str
    boot_mode: str
    addresses: tuple[str, ...]

    @classmethod
    def parse(cls, body: Json) -> CheckIn:
        """From the body of a request; raises REQUEST_INVALID, and ignores keys it does not know."""
        token = _text(body, "token", _TOKEN, "the token of the kernel command line")
        macs = []
        for item in _strings(body, "macs"):
            if not _LINK_ADDRESS.fullmatch(item):
                raise invalid(f"macs holds {item[:40]!r}, which is no MAC address")
            mac = normal_mac(item)
            # InfiniBand has longer ones, and some ports have none: they are no cards to boot from.
            if mac is not None:
                macs.append(mac)
        if not macs:
            raise invalid("macs names no card: a machine that booted from the network has one")
        uuid = body.get("product_uuid")
        if not isinstance(uuid, str | None):
            raise invalid("product_uuid must be a string or null")
        # Firmware says "Not Settable" and worse; a machine must not fail for its vendor's table.
        uuid = (uuid or "").strip().lower()
        boot_mode = body.get("boot_mode")
        if boot_mode not in ("uefi", "bios"):
            raise invalid("boot_mode must be uefi or bios")
        addresses = []
        for item in _strings(body, "addresses"):
            try:
                addresses.append(str(ipaddress.ip_interface(item).ip))
            except ValueError as error:
                raise invalid(f"addresses holds {item[:60]!r}, which is no address") from error
        keys = {}
        for key in ("ssh_host_key", "identity_key"):
            value = body.get(key)
            if not isinstance(value, str):
                raise invalid(f"{key} must be a string")
            keys[key] = value
        return cls(
            token=token,
            macs=tuple(macs),
            product_uuid=uuid if _UUID.fullmatch(uuid) else None,
            ssh_host_key=ssh_ed25519_key(keys["ssh_host_key"]),
            identity_key=p256_key(keys["identity_key"]),
            boot_mode=boot_mode,
            addresses=tuple(addresses),
        )

    def keys_sha256(self) -> str:
        """What "the same keys" are compared by."""
        return sha256(self.ssh_host_key + "\n" + self.identity_key)

    def event(self) -> Json:
        """What is spooled: everything but the token."""
        event = dataclasses.asdict(self)
        del event["token"]
        return event


# --- entries and windows ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Window:
    """A time in which a machine may boot from the network."""

    window_id: str
    opened_at: datetime
    expires_at: datetime
    closed: bool
    kernel: str
    initrd: str
    command_line: str
    authorized_keys: tuple[str, ...]

    @classmethod
    def parse(cls, data: Json) -> Window:
        """From the ``window`` of an entry file. Raises ValueError, KeyError or TypeError."""
        window = cls(
            window_id=str(data["window_id"]),
            opened_at=parse_timestamp(data["opened_at"]),
            expires_at=parse_timestamp(data["expires_at"]),
            closed=data.get("closed_at") is not None,
            kernel=str(data["kernel"]),
            initrd=str(data["initrd"]),
            command_line=str(data["command_line"]),
            authorized_keys=tuple(str(key) for key in data["authorized_keys"]),
        )
        if not _IDENTIFIER.fullmatch(window.window_id):
            raise ValueError("window_id is no identifier")
        if window.expires_at - window.opened_at > timedelta(seconds=WINDOW_MAX_SECONDS):
            raise ValueError(f"the window is longer than {WINDOW_MAX_SECONDS} s")
        for text in (window.kernel, window.initrd, window.command_line):
            if not text.isprintable():
                raise ValueError("control characters in what the boot script would say")
        return window


@dataclasses.dataclass(frozen=True)
class Entry:
    """A node that the boot server knows, as its entry file says."""

    node: str
    macs: tuple[str, ...]
    address: str | None
    rejoin_token_sha256: str | None
    window: Window | None
    digest: str

    @classmethod
    def parse(cls, node: str, content: bytes) -> Entry:
        """From the bytes of ``entries/<node>.json``. Raises ValueError, KeyError or TypeError."""
        data = json.loads(content)
        if data["node"] != node:
            raise ValueError(f"it is the entry of {data['node']!r}")
        macs = []
        for item in data["macs"]:
            mac = normal_mac(item)
            if mac is None:
                raise ValueError(f"{item!r} is no MAC address")
            macs.append(mac)
        address = data.get("address")
        rejoin = data.get("rejoin_token_sha256")
        if rejoin is not None and not _SHA256.fullmatch(rejoin):
            raise ValueError("rejoin_token_sha256 is no SHA-256")
        window = data.get("window")
        return cls(
            node=node,
            macs=tuple(macs),
            address=str(ipaddress.ip_address(address)) if address else None,
            rejoin_token_sha256=rejoin,
            window=Window.parse(window) if window else None,
            digest=hashlib.sha256(content).hexdigest(),
        )


@dataclasses.dataclass
class BootState:
    """What happened in the newest window of a node, on disk so that a restart forgets nothing."""

    window_id: str
    token_sha256: str | None = None
    mac: str | None = None
    keys_sha256: str | None = None
    answer: Json | None = None
    reused: bool = False


class Entries:
    """The entry files, read again whenever their folder changes, and the indexes over them."""

    def __init__(self, folder: Path, log: Callable[[str], None]) -> None:
        self._folder = folder
        self._log = log
        self._seen: dict[str, tuple[tuple[int, int, int], Entry | None, str]] = {}
        self._folder_time = -1
        self.by_node: dict[str, Entry] = {}
        self.by_mac: dict[str, Entry] = {}
        self.digests: dict[str, str] = {}
        self._complained: set[str] = set()

    def scan(self) -> bool:
        """Read what changed; whether anything did."""
        folder_time = self._folder.stat().st_mtime_ns
        settled = time.time_ns() - folder_time > SCAN_AGAIN_SECONDS * 1e9
        if folder_time == self._folder_time and settled:
            return False
        seen = {}
        with os.scandir(self._folder) as found:
            for item in found:
                node = item.name.removesuffix(".json")
                if node == item.name or not _NODE.fullmatch(node):
                    continue
                # A file removed since the folder was listed is as good as never there.
                with contextlib.suppress(FileNotFoundError):
                    status = item.stat()
                    mark = (status.st_mtime_ns, status.st_size, status.st_ino)
                    known = self._seen.get(node)
                    seen[node] = (
                        known if known and known[0] == mark else self._read(node, item.path, mark)
                    )
        self._folder_time = folder_time
        changed = seen != self._seen
        if changed:
            self._seen = seen
            self._index()
        return changed

    def _read(
        self, node: str, path: str, mark: tuple[int, int, int]
    ) -> tuple[tuple[int, int, int], Entry | None, str]:
        content = Path(path).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        try:
            return mark, Entry.parse(node, content), digest
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._log(f"entry {node} is unusable and matches nothing: {error!r}")
            return mark, None, digest

    def _index(self) -> None:
        self.by_node = {
            node: entry for node, (_mark, entry, _digest) in self._seen.items() if entry
        }
        self.digests = {node: digest for node, (_mark, _entry, digest) in self._seen.items()}
        owners: dict[str, list[Entry]] = {}
        for entry in self.by_node.values():
            for mac in set(entry.macs):
                owners.setdefault(mac, []).append(entry)
        self.by_mac = {mac: found[0] for mac, found in owners.items() if len(found) == 1}
        twice = {mac for mac, found in owners.items() if len(found) > 1}
        for mac in twice - self._complained:
            nodes = ", ".join(sorted(entry.node for entry in owners[mac]))
            self._log(f"{mac} stands in the entries of {nodes}, so it matches none of them")
        self._complained = twice


# --- the gate -----------------------------------------------------------------------------------


class Gate:
    """dnsmasq's side of the windows: who is offered a boot file, and who may fetch it by TFTP.

    dnsmasq is ended, and started again by whoever keeps it running (systemd, keep_process.py), to
    read the gate again. Told to do so by SIGHUP it crashes (2.86 to 2.90: freed tags of
    ``dhcp-hostsfile`` point into its stack). TFTP is another process, so no transfer is cut.
    """

    def __init__(
        self,
        root: Path,
        *,
        base_url: str,
        http_loader: str,
        dnsmasq_pid_file: Path | None,
        log: Callable[[str], None],
    ) -> None:
        self._hosts = root / "dhcp" / "hosts"
        self._options = root / "dhcp" / "options"
        self._tftp = root / "tftp"
        self._report_file = root / "run" / "gate.json"
        self._base_url = base_url
        self._http_loader = http_loader
        self._dnsmasq = Dnsmasq(dnsmasq_pid_file, log) if dnsmasq_pid_file else None
        self._applied: tuple[bytes, bytes] | None = None
        self._report_content: Json = {}
        self._entries: Json = {}

    def apply(self, entries: Entries, open_nodes: frozenset[str]) -> bool:
        """Make the gate stand for the entries as they are now; False: not yet, ask again."""
        hosts, options, addresses, nodes = [], [], set(), {}
        for node, entry in sorted(entries.by_node.items()):
            opened = node in open_nodes
            # A MAC of two entries belongs to none; dnsmasq would refuse the whole file for it.
            own = [mac for mac in dict.fromkeys(entry.macs) if entries.by_mac.get(mac) is entry]
            if own:
                # id:* ignores the client identifier: loader, ramdisk and system each send another
                # one, and the address must stay the same.
                fields = [*own, "id:*"]
                if opened:
                    fields += ["set:open", f"set:node-{node}"]
                    url = f"{self._base_url}/v1/loader/{node}/{self._http_loader}"
                    options.append(f"tag:node-{node},tag:http,tag:!ipxe,option:bootfile-name,{url}")
                    addresses.update([entry.address] if entry.address else [])
                hosts.append(",".join([*fields, *([entry.address] if entry.address else [])]))
            nodes[node] = {
                "window_id": entry.window.window_id if entry.window else None,
                "open": opened,
            }
        self._link(addresses)
        wanted = (
            "".join(f"{line}\n" for line in hosts).encode(),
            "".join(f"{line}\n" for line in options).encode(),
        )
        if wanted != self._applied:
            if self._dnsmasq and not self._dnsmasq.may_restart():
                return False
            write_atomic(self._hosts, wanted[0], durable=False)
            write_atomic(self._options, wanted[1], durable=False)
            if self._dnsmasq:
                self._dnsmasq.restart()
            self._applied = wanted
        closed = {"window_id": None, "open": False}
        self._entries = {
            node: {"sha256": digest, **nodes.get(node, closed)}
            for node, digest in sorted(entries.digests.items())
        }
        return True

    def report(self) -> None:
        """Say in ``gate.json`` what the gate stands for, and whether dnsmasq follows it."""
        dhcp = self._dnsmasq.state() if self._dnsmasq else "unmanaged"
        content = {"dhcp": dhcp, "entries": self._entries}
        if content != self._report_content:
            write_atomic(self._report_file, to_json(content), durable=False)
            self._report_content = content

    def _link(self, wanted: set[str]) -> None:
        # dnsmasq's tftp-unique-root looks for a file below the folder named like the client.
        there = {item.name for item in os.scandir(self._tftp)}
        for name in there - wanted:
            (self._tftp / name).unlink()
        for name in wanted - there:
            (self._tftp / name).symlink_to("../loaders", target_is_directory=True)


class Dnsmasq:
    """The DHCP server that somebody else keeps running, by its pid file."""

    def __init__(
        self, pid_file: Path, log: Callable[[str], None], interval_seconds: float = 1.0
    ) -> None:
        self._pid_file = pid_file
        self._log = log
        self._interval_seconds = interval_seconds
        self._ended: int | None = None
        self._next = time.monotonic()

    def may_restart(self) -> bool:
        """Whether it had its time to answer machines since the last restart."""
        return time.monotonic() >= self._next and self.state() != "restarting"

    def restart(self) -> None:
        """End the running process; one that only starts now has the gate still to read."""
        self._next = time.monotonic() + self._interval_seconds
        self._ended = None
        pid = self._pid()
        if pid is None:
            return
        try:
            descriptor = os.pidfd_open(pid)
            try:
                # Looked at again while the descriptor holds it: a pid can be another's by now.
                if self._pid() == pid:
                    signal.pidfd_send_signal(descriptor, signal.SIGTERM)
                    self._ended = pid
            finally:
                os.close(descriptor)
        except ProcessLookupError:
            return
        except OSError as error:
            self._log(f"dnsmasq could not be told to read the gate again: {error}")

    def state(self) -> str:
        """``running`` with the gate as it is, ``restarting`` or ``not running``."""
        pid = self._pid()
        if self._ended is not None and pid in (None, self._ended):
            late = time.monotonic() > self._next + RESTART_PATIENCE_SECONDS
            return "not running" if late else "restarting"
        return "not running" if pid is None else "running"

    def _pid(self) -> int | None:
        try:
            pid = int(self._pid_file.read_text())
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except (OSError, ValueError):
            return None
        return pid if name == "dnsmasq" else None


# --- the receiver -------------------------------------------------------------------------------


class Spool:
    """Events as files, the newest :data:`EVENTS_KEPT` of each kind and node.

    Kinds: ``checkin``, ``token_reused``, ``rejoin``, ``work_ended``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, kind: str, node: str, content: Json, moment: datetime) -> None:
        """Store an event durably."""
        folder = self._folder / kind / node
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{moment.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(3)}.json"
        event = {"kind": kind, "node": node, "received_at": timestamp(moment), **content}
        write_atomic(folder / name, to_json(event))
        for old in self._names(folder)[:-EVENTS_KEPT]:
            (folder / old).unlink(missing_ok=True)

    def events(self, kind: str, node: str) -> Iterator[Json]:
        """The events of a node, oldest first."""
        folder = self._folder / kind / node
        for name in self._names(folder) if folder.is_dir() else []:
            with contextlib.suppress(FileNotFoundError):
                yield json.loads((folder / name).read_bytes())

    @staticmethod
    def _names(folder: Path) -> list[str]:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))


class Receiver:
    """The protocol without HTTP: what each request means. Any thread may call any method."""

    def __init__(
        self,
        root: Path,
        base_url: str,
        *,
        http_loader: str = "snponly.efi",
        dnsmasq_pid_file: Path | None = None,
        log: Callable[[str], None] = lambda text: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root = root
        self.base_url = base_url.rstrip("/")
        for name in ("entries", "files", "loaders", "state", "spool", "dhcp", "tftp", "run"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self.log = log
        self._now = now
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._entries = Entries(root / "entries", log)
        self._spool = Spool(root / "spool")
        self._states: dict[str, BootState] = {}
        # The wall clock can be set back; no window lives longer here than it may.
        self._ends: dict[str, float] = {}
        self._open_nodes: frozenset[str] | None = None
        self._gate = Gate(
            root,
            base_url=self.base_url,
            http_loader=http_loader,
            dnsmasq_pid_file=dnsmasq_pid_file,
            log=log,
        )
        self._load_states()
        self.refresh()

    # -- what time and the entry files do

    def refresh(self) -> None:
        """Take over changed entry files, close windows whose time is up, move the gate along."""
        with self._lock:
            if self._entries.scan():
                windows = {
                    entry.window.window_id
                    for entry in self._entries.by_node.values()
                    if entry.window
                }
                self._ends = {key: end for key, end in self._ends.items() if key in windows}
                self._open_nodes = None
            open_nodes = frozenset(
                entry.node for entry in self._entries.by_node.values() if self._is_open(entry)
            )
            if open_nodes != self._open_nodes and self._gate.apply(self._entries, open_nodes):
                self._open_nodes = open_nodes
            self._gate.report()

    def _is_open(self, entry: Entry) -> bool:
        return not self._is_refused(entry) and self._is_live(entry)

    def _is_refused(self, entry: Entry) -> bool:
        state = self._states.get(entry.node)
        window = entry.window
        if window is None or window.closed:
            return True
        return state is not None and state.window_id == window.window_id and state.reused

    def _is_live(self, entry: Entry) -> bool:
        """Whether the time of the entry's window is not up yet, closed or not."""
        window = entry.window
        if window is None:
            return False
        left = (window.expires_at - self._now()).total_seconds()
        if left <= 0:
            return False
        end = self._ends.setdefault(
            window.window_id, self._monotonic() + min(left, WINDOW_MAX_SECONDS)
        )
        return self._monotonic() < end

    def _load_states(self) -> None:
        fields = {field.name for field in dataclasses.fields(BootState)}
        for path in (self.root / "state").glob("*.json"):
            try:
                data = json.loads(path.read_bytes())
                self._states[path.stem] = BootState(
                    **{key: value for key, value in data.items() if key in fields}
                )
            except (ValueError, TypeError, AttributeError) as error:
                self.log(f"{path} is unusable, its token is void: {error!r}")

    def _store_state(self, node: str, state: BootState) -> None:
        write_atomic(self.root / "state" / f"{node}.json", to_json(dataclasses.asdict(state)))
        self._states[node] = state

    # -- what a machine asks

    def first_script(self) -> str:
        """The script that every loader starts with: it asks for each card that the loader knows.

        ``exit 1`` tells the firmware to go on with its next boot device; UEFI firmware stops in
        its menu after a success (UEFI 2.10, 3.1.1).
        """
        base = self.base_url
        return (
            "#!ipxe\n"
            f"chain --replace {base}/v1/boot/${{netX/mac:hexhyp}} ||\n"
            "set card:int32 0\n"
            ":next\n"
            "isset ${net${card}/mac} || goto disk\n"
            f"chain --replace {base}/v1/boot/${{net${{card}}/mac:hexhyp}} ||\n"
            "inc card\n"
            "goto next\n"
            ":disk\n"
            "echo Barewright has nothing to boot for this machine: going on with its disk\n"
            "exit 1\n"
        )

    def boot_script(self, mac_text: str) -> str:
        """The boot script of a machine, with a fresh token that voids the earlier one."""
        nothing = Refused(
            HTTPStatus.NOT_FOUND, "BOOT_NOT_OPEN", "no boot window is open for this MAC address"
        )
        mac = normal_mac(mac_text)
        if mac is None:
            raise nothing
        with self._lock:
            self.refresh()
            entry = self._entries.by_mac.get(mac)
            if entry is None or entry.window is None or not self._is_open(entry):
                raise nothing
            token = f"bwt_{secrets.token_urlsafe(32)}"
            self._store_state(
                entry.node,
                BootState(window_id=entry.window.window_id, token_sha256=sha256(token), mac=mac),
            )
            self.log(f"{entry.node} gets its boot script by {mac}")
            return self._script(entry.window, mac, token)

    def _script(self, window: Window, mac: str, token: str) -> str:
        words = [
            # The kernel's EFI stub finds an initrd of this name; BIOS ignores the word.
            "initrd=initrd.img",
            window.command_line,
            f"barewright.url={self.base_url}",
            f"barewright.token={token}",
            f"BOOTIF=01-{mac.replace(':', '-')}",
        ]
        kernel, initrd = self._file_url(window.kernel), self._file_url(window.initrd)
        return (
            "#!ipxe\n"
            "set attempt:int32 0\n"
            ":again\n"
            "imgfree\n"
            f"kernel --name vmlinuz {kernel} {' '.join(word for word in words if word)} ||"
            " goto failed\n"
            f"initrd --name initrd.img {initrd} || goto failed\n"
            "boot || goto failed\n"
            ":failed\n"
            "inc attempt\n"
            "iseq ${attempt} 3 && exit 1 ||\n"
            "sleep 3\n"
            "goto again\n"
        )

    def _file_url(self, path: str) -> str:
        return path if "://" in path else f"{self.base_url}/files/{path}"

    def loader(self, node: str, name: str) -> Path:
        """The loader for UEFI HTTP boot, behind the same gate as DHCP and TFTP."""
        with self._lock:
            self.refresh()
            entry = self._entries.by_node.get(node)
            path = self.root / "loaders" / name
            known = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) and path.is_file()
            if entry is None or not self._is_open(entry) or not known:
                raise Refused(
                    HTTPStatus.NOT_FOUND, "BOOT_NOT_OPEN", "no boot window is open for this node"
                )
            return path

    def check_in(self, body: Json, remote: str) -> Json:
        """A ramdisk reports for work; answers ``{node, window_id, authorized_keys}``."""
        request = CheckIn.parse(body)
        token = sha256(request.token)
        with self._lock:
            self.refresh()
            entry, state = self._by_token(token)
            # The machine repeats a check-in whose answer was lost, when its window may be closed
            # already because of that check-in.
            if state.keys_sha256 == request.keys_sha256() and state.answer is not None:
                return state.answer
            if state.keys_sha256 is not None:
                self._reused(entry, state, request, remote)
            if self._is_refused(entry):
                raise self._token_invalid("its boot window is closed")
            if not set(request.macs) & set(entry.macs):
                raise self._token_invalid("the machine has none of the node's MAC addresses")
            assert entry.window is not None
            answer = {
                "node": entry.node,
                "window_id": entry.window.window_id,
                "authorized_keys": list(entry.window.authorized_keys),
            }
            event = {
                "window_id": entry.window.window_id,
                "mac": state.mac,
                "remote_address": remote,
                **request.event(),
            }
            # Spooled before the state says so: a crash between the two spools it twice, which
            # harms nobody, and never forgets it.
            self._spool.put("checkin", entry.node, event, self._now())
            self._store_state(
                entry.node,
                dataclasses.replace(state, keys_sha256=request.keys_sha256(), answer=answer),
            )
            self.log(f"{entry.node} checked in, window {entry.window.window_id}")
            return answer

    def _by_token(self, digest: str) -> tuple[Entry, BootState]:
        for node, state in self._states.items():
            if state.token_sha256 is None or not hmac.compare_digest(state.token_sha256, digest):
                continue
            entry = self._entries.by_node.get(node)
            if entry is None or entry.window is None or entry.window.window_id != state.window_id:
                raise self._token_invalid("its boot window is gone")
            if state.reused:
                raise self._token_reused()
            if not self._is_live(entry):
                raise self._token_invalid("its boot window has ended")
            return entry, state
        raise self._token_invalid("it was never given out, or a newer boot script voided it")

    def _reused(self, entry: Entry, state: BootState, request: CheckIn, remote: str) -> None:
        event = {"window_id": state.window_id, "remote_address": remote, **request.event()}
        self._spool.put("token_reused", entry.node, event, self._now())
        self._store_state(entry.node, dataclasses.replace(state, reused=True, answer=None))
        self.log(f"{entry.node}: its token came with a second key, the window is shut")
        self.refresh()
        raise self._token_reused()

    @staticmethod
    def _token_invalid(reason: str) -> Refused:
        return Refused(
            HTTPStatus.FORBIDDEN, "BOOT_TOKEN_INVALID", f"this token is not valid: {reason}"
        )

    @staticmethod
    def _token_reused() -> Refused:
        return Refused(
            HTTPStatus.CONFLICT,
            "BOOT_TOKEN_REUSED",
            "this token was used with another key; nobody can check in until a new window opens",
        )

    def rejoin(self, body: Json, remote: str) -> None:
        """This boot of a deployed system is up. A boot counts once, however often it is told."""
        token = body.get("token")
        node = body.get("node")
        boot_id = _text(body, "boot_id", _UUID, "the UUID of /proc/sys/kernel/random/boot_id")
        deploy_id = _text(body, "deploy_id", _IDENTIFIER, "an identifier of at most 128 characters")
        with self._lock:
            self.refresh()
            entry = self._entries.by_node.get(node) if isinstance(node, str) else None
            expected = entry.rejoin_token_sha256 if entry else None
            given = sha256(token) if isinstance(token, str) else ""
            if entry is None or expected is None or not hmac.compare_digest(expected, given):
                raise Refused(
                    HTTPStatus.FORBIDDEN, "REJOIN_TOKEN_INVALID", "no node rejoins by this token"
                )
            for event in self._spool.events("rejoin", entry.node):
                if event["boot_id"] == boot_id and event["deploy_id"] == deploy_id:
                    return
            content = {"boot_id": boot_id, "deploy_id": deploy_id, "remote_address": remote}
            self._spool.put("rejoin", entry.node, content, self._now())
            self.log(f"{entry.node} rejoined, boot {boot_id}")

    def work_ended(self, body: Json, remote: str) -> None:
        """A hint that detached work ended. Nothing in it is believed: it only saves waiting."""
        operation_id = _text(
            body, "operation_id", _IDENTIFIER, "an identifier of at most 128 characters"
        )
        node = body.get("node")
        with self._lock:
            self.refresh()
            if not isinstance(node, str) or node not in self._entries.by_node:
                raise Refused(HTTPStatus.NOT_FOUND, "NODE_UNKNOWN", "no entry has this node name")
            content = {"operation_id": operation_id, "remote_address": remote}
            self._spool.put("work_ended", node, content, self._now())

    def file(self, path: str) -> Path:
        """The file below ``files/`` that a URL path names, percent signs decoded already."""
        missing = Refused(HTTPStatus.NOT_FOUND, "FILE_NOT_FOUND", "no such file")
        parts = path.split("/")
        if (
            not path.isprintable()
            or "\\" in path
            or any(not part or part[0] == "." for part in parts)
        ):
            raise missing
        base = (self.root / "files").resolve()
        found = base.joinpath(*parts).resolve()
        # A link may point to another place below files/, never out of it.
        if not found.is_relative_to(base) or not found.is_file():
            raise missing
        return found


# --- HTTP ---------------------------------------------------------------------------------------


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First and last byte of a single byte range (RFC 9110, 14.2); None: send everything.

    Raises Refused 416 for a range that begins behind the end.
    """
    match = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", (header or "").replace(" ", ""))
    if match is None or match[0] == "bytes=-":
        return None
    if not match[1]:
        first, last = max(0, size - int(match[2])), size - 1
        unsatisfiable = int(match[2]) == 0 or size == 0
    else:
        first = int(match[1])
        last = min(int(match[2]), size - 1) if match[2] else size - 1
        if match[2] and int(match[2]) < first:
            return None
        unsatisfiable = first >= size
    if unsatisfiable:
        raise Refused(
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            "RANGE_INVALID",
            f"it has {size} bytes",
            {"Content-Range": f"bytes */{size}"},
        )
    return first, last


class Handler(BaseHTTPRequestHandler):
    """Routes of the protocol: exact paths, no redirects, no listings."""

    protocol_version = "HTTP/1.1"
    server_version = "barewright-boot"
    sys_version = ""
    timeout = IDLE_SECONDS
    server: Server

    ROUTES = {
        "/boot.ipxe": "GET, HEAD",
        "/files/": "GET, HEAD",
        "/v1/boot/": "GET",
        "/v1/checkin": "POST",
        "/v1/loader/": "GET, HEAD",
        "/v1/rejoin": "POST",
        "/v1/work-ended": "POST",
    }

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_HEAD(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_PUT(self) -> None:
        self._answer(self._other)

    do_DELETE = do_PATCH = do_OPTIONS = do_PUT  # noqa: N815  http.server finds them by name

    def _answer(self, route: Callable[[], None]) -> None:
        try:
            route()
        except Refused as refused:
            self._refuse(refused)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except OSError as error:
            # A full or read-only disk: the machine tries again, the operator finds the reason.
            self.server.receiver.log(f"{self.command} {self.path}: {error}")
            self._refuse(
                Refused(HTTPStatus.SERVICE_UNAVAILABLE, "BOOT_SERVER_BROKEN", "see the log")
            )

    def _refuse(self, refused: Refused) -> None:
        if self.command not in ("GET", "HEAD"):
            # What was not read of a body would be taken for the next request.
            self.close_connection = True
        body = {"fault": {"code": refused.code, "message": refused.message}}
        with contextlib.suppress(OSError):
            self._send(refused.status, to_json(body), "application/json", refused.headers)

    def _get(self) -> None:
        receiver = self.server.receiver
        path = unquote(self.path, errors="surrogateescape")
        if path == "/boot.ipxe":
            self._send_text(receiver.first_script())
        elif path.startswith("/v1/boot/"):
            # It gives out a token and voids the earlier one: nothing that may be asked by the way.
            if self.command == "HEAD":
                self._other()
            self._send_text(receiver.boot_script(path.removeprefix("/v1/boot/")))
        elif path.startswith("/v1/loader/") and path.count("/") == 4:
            self._send_file(receiver.loader(*path.split("/")[3:]))
        elif path.startswith("/files/"):
            self._send_file(receiver.file(path.removeprefix("/files/")))
        else:
            self._other()

    def _post(self) -> None:
        receiver, remote = self.server.receiver, self.client_address[0]
        if self._allowed() != "POST":
            self._other()
        body = self._read_body()
        if self.path == "/v1/checkin":
            answer = receiver.check_in(body, remote)
            self._send(HTTPStatus.OK, to_json(answer), "application/json")
        elif self.path == "/v1/rejoin":
            receiver.rejoin(body, remote)
            self._send(HTTPStatus.NO_CONTENT)
        else:
            receiver.work_ended(body, remote)
            self._send(HTTPStatus.ACCEPTED, b"{}\n", "application/json")

    def _other(self) -> NoReturn:
        allowed = self._allowed()
        if allowed and self.command not in allowed.split(", "):
            raise Refused(
                HTTPStatus.METHOD_NOT_ALLOWED,
                "METHOD_NOT_ALLOWED",
                f"this path takes {allowed}",
                {"Allow": allowed},
            )
        raise Refused(HTTPStatus.NOT_FOUND, "PATH_UNKNOWN", "this path is not part of the protocol")

    def _allowed(self) -> str:
        for route, methods in self.ROUTES.items():
            if self.path == route or (route.endswith("/") and self.path.startswith(route)):
                return methods
        return ""

    def _read_body(self) -> Json:
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"\d{1,12}", length):
            raise Refused(
                HTTPStatus.LENGTH_REQUIRED, "REQUEST_INVALID", "Content-Length is missing"
            )
        if int(length) > BODY_MAX_BYTES:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "REQUEST_TOO_LARGE",
                f"a body may have {BODY_MAX_BYTES} bytes",
            )
        content = self.rfile.read(int(length))
        try:
            body = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise invalid("the body is not JSON in UTF-8") from error
        if not isinstance(body, dict):
            raise invalid("the body must be a JSON object")
        return body

    def _send_text(self, text: str) -> None:
        self._send(
            HTTPStatus.OK, text.encode(), "text/plain; charset=utf-8", {"Cache-Control": "no-store"}
        )

    def _send(
        self,
        status: HTTPStatus,
        content: bytes = b"",
        kind: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _send_file(self, path: Path) -> None:
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            size = status.st_size
            tag = f'"{status.st_mtime_ns:x}-{size:x}"'
            # A download must not go on in another file of the same name (RFC 9110, 13.1.5).
            same = self.headers.get("If-Range", tag) == tag
            part = parse_range(self.headers.get("Range") if same else None, size)
            first, last = part or (0, size - 1)
            self.send_response(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK)
            self.send_header(
                "Content-Type", mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            )
            self.send_header("Content-Length", str(last - first + 1))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", tag)
            self.send_header("Last-Modified", self.date_time_string(int(status.st_mtime)))
            if part:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.end_headers()
            if self.command == "HEAD":
                return
            sent = 0
            with contextlib.suppress(OSError):
                sent = self.connection.sendfile(stream, first, last - first + 1) if size else 0
            # Shorter than promised: the client must not take the next answer for the rest.
            if sent != last - first + 1:
                self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        self.server.receiver.log(f"{self.client_address[0]} {format % args}")


class Server(ThreadingHTTPServer):
    """A thread a connection, at most :data:`CONNECTIONS_MAX` of them."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], receiver: Receiver) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.receiver = receiver
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        # HTTPServer asks the resolver for the own name, which can take seconds in a namespace.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.receiver.log(f"{client_address[0]} turned away: too many connections")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            self.receiver.log(f"{client_address[0]} ended by {error!r}")


def log_line(text: str) -> None:
    """One line on standard error, control characters and tokens taken out."""
    clean = "".join(sign if sign.isprintable() else "?" for sign in redact(text))
    sys.stderr.write(f"{timestamp(datetime.now(UTC))} {clean}\n")
    sys.stderr.flush()


def serve(receiver: Receiver, address: tuple[str, int]) -> None:
    """Serve until SIGTERM or SIGINT."""
    server = Server(address, receiver)
    ended = threading.Event()

    def stop(_number: int, _frame: Any) -> None:
        ended.set()
        # shutdown() waits for serve_forever(), which this very thread runs.
        threading.Thread(target=server.shutdown, daemon=True).start()

    def tick() -> None:
        while not ended.wait(SCAN_SECONDS):
            try:
                receiver.refresh()
            except OSError as error:
                log_line(f"the gate could not be moved: {error}")

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    threading.Thread(target=tick, name="gate", daemon=True).start()
    log_line(f"serving {receiver.root} on {address[0]} port {server.server_port}")
    with contextlib.closing(server.socket):
        server.serve_forever(poll_interval=0.1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: see ``--help``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, required=True, help="folder of the boot server")
    parser.add_argument("--listen", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--base-url", required=True, help="how machines reach this receiver")
    parser.add_argument("--http-loader", default="snponly.efi", help="loader for UEFI HTTP boot")
    parser.add_argument("--dnsmasq-pid-file", type=Path, help="dnsmasq that follows the gate")
    options = parser.parse_args(arguments)
    receiver = Receiver(
        options.root,
        options.base_url,
        http_loader=options.http_loader,
        dnsmasq_pid_file=options.dnsmasq_pid_file,
        log=log_line,
    )
    serve(receiver, (options.listen, options.port))


if __name__ == "__main__":
    main()
