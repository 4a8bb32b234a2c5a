# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The sockets of one or of many BMCs in one process.

One thread waits on all listening sockets and all IPMI sockets. An HTTPS connection gets a thread of
its own for as long as it lives; an idle BMC costs two sockets and no thread.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import selectors
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, cast

from virtual_rack.bmc.ipmi import IpmiServer
from virtual_rack.bmc.messages import RedfishError
from virtual_rack.bmc.redfish import MAX_BODY_BYTES, RedfishService, Request, Response
from virtual_rack.bmc.resources import TABLE
from virtual_rack.bmc.state import Bmc, Endpoint

LOG = logging.getLogger(__name__)
HANDSHAKE_TIMEOUT_SECONDS = 10.0
IDLE_TIMEOUT_SECONDS = 30.0


class EventLoop:
    """One thread that calls a function whenever its socket can be read."""

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._running = True
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, listener: socket.socket, readable: Callable[[], None]) -> None:
        listener.setblocking(False)
        with self._lock:
            self._selector.register(listener, selectors.EVENT_READ, readable)
        self._wake()

    def remove(self, listener: socket.socket) -> None:
        with self._lock, contextlib.suppress(KeyError):
            self._selector.unregister(listener)
        self._wake()

    def close(self) -> None:
        self._running = False
        self._wake()
        self._thread.join(timeout=5)
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    def _run(self) -> None:
        while self._running:
            for key, _ in self._selector.select():
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_reader.recv(4096)
                    continue
                try:
                    key.data()
                except Exception:
                    # One bad packet or connection must not take all BMCs of the process down.
                    LOG.exception("on %s", key.fileobj)


class HttpsServer:
    """Serves one `RedfishService` on one address."""

    def __init__(
        self, address: str, port: int, context: ssl.SSLContext, service: RedfishService
    ) -> None:
        self.service = service
        self._context = context
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.listener = socket.create_server((address, port), backlog=64)

    @property
    def port(self) -> int:
        return cast(int, self.listener.getsockname()[1])

    def accept(self) -> None:
        """Take a waiting connection and serve it in a thread."""
        try:
            connection, peer = self.listener.accept()
        except OSError:
            return
        thread = threading.Thread(target=self._serve, args=(connection, peer), daemon=True)
        thread.start()

    def _serve(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        secured: socket.socket = connection
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._connections.add(connection)
        try:
            connection.settimeout(HANDSHAKE_TIMEOUT_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The original socket is left without a descriptor by wrap_socket.
            secured = self._context.wrap_socket(connection, server_side=True)
            with self._lock:
                self._connections.discard(connection)
                self._connections.add(secured)
            secured.settimeout(IDLE_TIMEOUT_SECONDS)
            _Handler(secured, peer, cast(Any, self))
        except (OSError, ValueError) as error:
            # A client that hangs up, speaks no TLS or does not trust us is its own problem.
            LOG.debug("connection from %s: %s", peer, error)
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._connections.discard(secured)
            secured.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        self.listener.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class IpmiSocket:
    """Takes the packets for one `IpmiServer` from the network."""

    def __init__(self, address: str, port: int, server: IpmiServer) -> None:
        self.server = server
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.bind((address, port))
        except OSError:
            self.socket.close()
            raise

    @property
    def port(self) -> int:
        return cast(int, self.socket.getsockname()[1])

    def receive(self) -> None:
        """Answer one waiting packet."""
        try:
            packet, peer = self.socket.recvfrom(65535)
        except OSError:
            return
        answer = self.server.handle(packet, f"{peer[0]}:{peer[1]}")
        if answer is not None:
            with contextlib.suppress(OSError):
                self.socket.sendto(answer, peer)


class _Handler(BaseHTTPRequestHandler):
    """Turns HTTP into `Request` and `Response`."""

    protocol_version = "HTTP/1.1"
    server_version = "BarewrightBMC/1.0"
    sys_version = ""
    wbufsize = -1
    server: HttpsServer  # type: ignore[assignment]  # narrower than the base

    def _dispatch(self) -> None:
        body = self._read_body()
        if body is None:
            return
        request = Request(
            method=self.command,
            target=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
            body=body,
            client="{}:{}".format(*self.client_address[:2]),
        )
        self._respond(self.server.service.handle(request))

    def do_GET(self) -> None:
        self._dispatch()

    def do_HEAD(self) -> None:
        self._dispatch()

    def do_POST(self) -> None:
        self._dispatch()

    def do_PATCH(self) -> None:
        self._dispatch()

    def do_PUT(self) -> None:
        self._dispatch()

    def do_DELETE(self) -> None:
        self._dispatch()

    def do_OPTIONS(self) -> None:
        self._dispatch()

    def _read_body(self) -> bytes | None:
        """The body, or None when an error was sent instead of reading it."""
        if self.headers.get("Transfer-Encoding", "identity").lower() != "identity":
            self.send_error(HTTPStatus.LENGTH_REQUIRED)
            return None
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            length = -1
        if length < 0:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return None
        if length > MAX_BODY_BYTES:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return None
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return None
        return body

    def _respond(self, response: Response) -> None:
        content = response.content()
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        if response.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD" and content:
            self.wfile.write(content)
        self.wfile.flush()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library finds wrong with a request, in Redfish's words."""
        self.close_connection = True
        self.command = getattr(self, "command", None) or "GET"
        # Before it has parsed a request the standard library answers like HTTP/0.9, without a head.
        self.request_version = self.protocol_version
        error = RedfishError("GeneralError", status=HTTPStatus(code))
        headers = {"Content-Type": "application/json;charset=utf-8", "OData-Version": "4.0"}
        self._respond(Response(error.status, headers, error.body()))

    def log_message(self, format: str, *args: object) -> None:
        LOG.debug("%s %s", self.client_address, format % args)


@dataclass(frozen=True)
class TlsFiles:
    """The certificate of a BMC and its key, PEM."""

    certificate: Path
    key: Path


class BmcHost:
    """Everything that listens in this process."""

    def __init__(self) -> None:
        # Two sockets a BMC: the usual soft limit of 1,024 ends at five hundred.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._loop = EventLoop("bmc-listener")
        self._contexts: dict[TlsFiles, ssl.SSLContext] = {}
        self._https: dict[Bmc, HttpsServer] = {}
        self._ipmi: dict[Bmc, IpmiSocket] = {}

    def add(
        self,
        bmc: Bmc,
        address: str,
        *,
        netmask: str = "255.0.0.0",
        redfish_port: int | None = None,
        ipmi_port: int | None = None,
        tls: TlsFiles | None = None,
    ) -> Endpoint:
        """Listen for a BMC. Port 0 takes a free one, None leaves the protocol out.

        Raises OSError when an address is not there or in use.
        """
        try:
            if redfish_port is not None:
                if tls is None:
                    raise ValueError("Redfish needs a certificate")
                service = RedfishService(bmc, TABLE)
                https = HttpsServer(address, redfish_port, self._context(tls), service)
                self._https[bmc] = https
                redfish_port = https.port
            if ipmi_port is not None:
                ipmi = IpmiSocket(address, ipmi_port, IpmiServer(bmc))
                self._ipmi[bmc] = ipmi
                ipmi_port = ipmi.port
        except OSError:
            self.remove(bmc)
            raise
        bmc.endpoint = Endpoint(address, netmask, redfish_port, ipmi_port)
        if redfish_port is not None:
            self._loop.add(https.listener, https.accept)
        if ipmi_port is not None:
            self._loop.add(ipmi.socket, ipmi.receive)
        return bmc.endpoint

    def _context(self, tls: TlsFiles) -> ssl.SSLContext:
        if tls not in self._contexts:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(tls.certificate, tls.key)
            self._contexts[tls] = context
        return self._contexts[tls]

    def remove(self, bmc: Bmc) -> None:
        """Stop listening for one BMC."""
        if https := self._https.pop(bmc, None):
            self._loop.remove(https.listener)
            https.close()
        if ipmi := self._ipmi.pop(bmc, None):
            self._loop.remove(ipmi.socket)
            ipmi.socket.close()

    def close(self) -> None:
        for bmc in [*self._https, *self._ipmi]:
            self.remove(bmc)
        self._loop.close()
