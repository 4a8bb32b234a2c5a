# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A BMC that answers what a test scripts, over real sockets and TLS, and drivers made of states."""

from __future__ import annotations

import datetime
import hashlib
import http.server
import ipaddress
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ansible_collections.barewright.metal.plugins.module_utils.bmc.interfaces import (
    BootForm,
    BootOverride,
    PowerAction,
    PowerState,
)
from ansible_collections.barewright.metal.plugins.module_utils.bmc.target import Target

ADDRESS = "127.0.0.1"
USERNAME = "admin"
PASSWORD = "Right-123"


@dataclass(frozen=True)
class Request:
    """One request as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """One answer; ``body`` is sent as JSON unless it is bytes. ``hang_up`` sends nothing at all."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hang_up: bool = False


@dataclass
class ScriptedBmc:
    """A Redfish service of one system; ``script`` answers before the defaults do."""

    port: int
    certificate: Path
    fingerprint: str
    requests: list[Request] = field(default_factory=list)
    script: Callable[[Request], Answer | None] = lambda request: None
    system: dict[str, Any] = field(default_factory=dict)
    root: dict[str, Any] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    opened: int = 0

    def sent(self, method: str) -> list[Request]:
        """The requests of one method, without those about sessions."""
        return [
            each for each in self.requests if each.method == method and "/Sessions" not in each.path
        ]

    def target(self, **changes: Any) -> Target:
        """Options for this BMC."""
        values: dict[str, Any] = {
            "address": ADDRESS,
            "username": USERNAME,
            "password": PASSWORD,
            "ports": {"redfish": self.port, "ipmi": 623},
            "drivers": dict.fromkeys(("power", "boot", "inspect"), "redfish"),
            "ca_path": str(self.certificate),
            "timeout_seconds": 10,
        }
        return Target(**{**values, **changes})

    def answer(self, request: Request) -> Answer:
        """What the service does: script first, then sessions, then resources."""
        scripted = self.script(request)
        if scripted is not None:
            return scripted
        if request.path == "/redfish/v1/":
            return Answer(body=self.root)
        if request.path == "/redfish/v1/SessionService/Sessions" and request.method == "POST":
            return self._log_in(request)
        if request.headers.get("X-Auth-Token") not in self.sessions:
            return Answer(401, {"error": {"code": "Base.1.0.NoValidSession", "message": "no"}})
        if request.method == "DELETE":
            self.sessions.discard(request.path.rsplit("/", 1)[-1])
            return Answer(204)
        if request.method == "GET" and request.path in self.resources:
            return Answer(body=self.resources[request.path])
        return Answer(404, {"error": {"code": "Base.1.0.ResourceMissingAtURI"}})

    def _log_in(self, request: Request) -> Answer:
        if request.body != {"UserName": USERNAME, "Password": PASSWORD}:
            return Answer(401, {"error": {"code": "Base.1.0.NoValidSession", "message": "no"}})
        self.opened += 1
        token = f"token-{self.opened}"
        self.sessions.add(token)
        location = f"/redfish/v1/SessionService/Sessions/{token}"
        return Answer(201, {"Id": token}, {"X-Auth-Token": token, "Location": location})


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """Certificate (its own CA), key and SHA-256."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "scripted BMC")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(ADDRESS))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("scripted")
    (folder / "bmc.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "bmc.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    encoded = made.public_bytes(serialization.Encoding.DER)
    return folder / "bmc.pem", folder / "bmc.key", hashlib.sha256(encoded).hexdigest()


@pytest.fixture
def scripted(certificate: tuple[Path, Path, str]) -> Iterator[ScriptedBmc]:
    """A running :class:`ScriptedBmc`."""
    bmc: ScriptedBmc

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            request = Request(
                self.command, self.path, dict(self.headers), json.loads(raw) if raw else None
            )
            bmc.requests.append(request)
            answer = bmc.answer(request)
            # As some BMCs do: it closes the connection without announcing it in the answer.
            self.close_connection = True
            if answer.hang_up:
                return
            body = answer.body
            content = body if isinstance(body, bytes) else b""
            if body is not None and not isinstance(body, bytes):
                content = json.dumps(body).encode()
            self.send_response(answer.status)
            for key, value in answer.headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Tests look at ``requests``."""

    server = http.server.ThreadingHTTPServer((ADDRESS, 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[0], certificate[1])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    bmc = ScriptedBmc(server.server_port, certificate[0], certificate[2])
    bmc.root = {
        "Id": "RootService",
        "Systems": {"@odata.id": "/redfish/v1/Systems"},
        "Links": {"Sessions": {"@odata.id": "/redfish/v1/SessionService/Sessions"}},
    }
    bmc.system = {
        "@odata.id": "/redfish/v1/Systems/1",
        "Id": "1",
        "PowerState": "Off",
        "Boot": {
            "BootSourceOverrideEnabled": "Disabled",
            "BootSourceOverrideTarget": "None",
            "BootSourceOverrideMode": "UEFI",
            "BootSourceOverrideTarget@Redfish.AllowableValues": ["None", "Pxe", "Hdd"],
        },
        "Actions": {
            "#ComputerSystem.Reset": {
                "target": "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset",
                "ResetType@Redfish.AllowableValues": ["On", "ForceOff", "ForceRestart"],
            }
        },
    }
    bmc.resources = {
        "/redfish/v1/Systems": {"Members": [{"@odata.id": "/redfish/v1/Systems/1"}]},
        "/redfish/v1/Systems/1": bmc.system,
    }
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield bmc
    server.shutdown()
    server.server_close()
    thread.join()


class Chassis:
    """A driver whose machine obeys, or does not, as a test says. Serves all but inspection."""

    system: str | None = "1"
    settle_seconds = 0.0

    def __init__(self, states: list[PowerState | Exception] | None = None) -> None:
        self.state: PowerState = "off"
        self.states = states or []
        self.offered: dict[PowerAction, str] = {
            "on": "On",
            "force_off": "ForceOff",
            "graceful_shutdown": "GracefulShutdown",
            "force_restart": "ForceRestart",
        }
        self.answers: list[Exception | None] = []
        self.obeys: set[PowerAction] = {"on", "force_off", "graceful_shutdown"}
        self.sent: list[str] = []
        self.marks: list[str | None] = [None]
        self.override = BootOverride("none", "disabled", "uefi")
        self.forms: list[BootForm] = []
        self.keeps: dict[BootForm, bool] = {"complete": True, "minimal": True}

    def open(self) -> None:
        """Nothing to log in to."""

    def close(self) -> None:
        """Nothing to log out of."""

    def power_state(self) -> PowerState:
        """The scripted states first, then the real one."""
        if not self.states:
            return self.state
        scripted = self.states.pop(0)
        if isinstance(scripted, Exception):
            raise scripted
        return scripted

    def power_actions(self) -> Mapping[PowerAction, str]:
        return self.offered

    def send_power_action(self, action: PowerAction) -> None:
        self.sent.append(action)
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        if action in self.obeys:
            self.state = "on" if action == "on" else "off"

    def last_reset(self) -> str | None:
        return self.marks.pop(0) if len(self.marks) > 1 else self.marks[0]

    def boot_override(self) -> BootOverride:
        return self.override

    def boot_devices(self) -> tuple[str, ...]:
        return ("none", "pxe", "disk")

    def boot_modes(self) -> tuple[str, ...]:
        return ("uefi",)

    def boot_forms(self) -> tuple[BootForm, ...]:
        return ("complete", "minimal")

    def set_boot_override(self, override: BootOverride, form: BootForm) -> None:
        self.forms.append(form)
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        if self.keeps[form]:
            self.override = override


@pytest.fixture
def chassis() -> Chassis:
    """A machine that is off and obeys."""
    return Chassis()
