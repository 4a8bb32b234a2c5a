# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""What happens on the wire below Redfish: TLS, HTTP/1.1, bad clients, many BMCs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import socket
import ssl
import threading
from pathlib import Path

import pytest

from virtual_rack.testing import LightBmc, light_bmcs, wait_until


def connect(light: LightBmc) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=str(light.ca_path))
    return http.client.HTTPSConnection(
        light.address, light.redfish_port, context=context, timeout=10
    )


def raw(light: LightBmc, data: bytes) -> bytes:
    """Everything that the BMC answers to some bytes until it hangs up."""
    context = ssl.create_default_context(cafile=str(light.ca_path))
    with (
        socket.create_connection((light.address, light.redfish_port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=light.address) as secured,
    ):
        secured.sendall(data)
        return b"".join(iter(lambda: secured.recv(4096), b""))


def test_a_connection_serves_many_requests(light: LightBmc) -> None:
    connection = connect(light)
    for _ in range(3):
        connection.request("GET", "/redfish/v1/")
        answer = connection.getresponse()
        assert json.loads(answer.read())["@odata.id"] == "/redfish/v1"
    clients = {entry["client"] for entry in light.journal()}
    assert len(clients) == 1


def test_head_has_the_headers_of_get_and_no_body(light: LightBmc) -> None:
    rest = b" /redfish/v1/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answers = [raw(light, method + rest).partition(b"\r\n\r\n") for method in (b"HEAD", b"GET")]
    (head, _, no_body), (get, _, body) = answers
    assert no_body == b""
    assert f"Content-Length: {len(body)}".encode() in get
    for name in (b"Content-Length", b"ETag", b"Allow", b"Link", b"Content-Type"):
        (line,) = [line for line in get.split(b"\r\n") if line.startswith(name + b":")]
        assert line in head.split(b"\r\n")


def test_no_content_has_no_length(light: LightBmc) -> None:
    body = b'{"UserName": "admin", "Password": "%s"}' % light.password.encode()
    connection = connect(light)
    connection.request("POST", "/redfish/v1/SessionService/Sessions", body)
    opened = connection.getresponse()
    opened.read()
    token, location = opened.headers["X-Auth-Token"], opened.headers["Location"]
    connection.request("DELETE", location, headers={"X-Auth-Token": token})
    closed = connection.getresponse()
    closed.read()
    assert (closed.status, closed.headers["Content-Length"]) == (204, None)
    connection.request("GET", "/redfish/v1/")
    assert connection.getresponse().status == 200


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"BREW /redfish/v1/ HTTP/1.1\r\nHost: x\r\n\r\n", b"501"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
    ],
)
def test_what_is_no_request_gets_an_error_body_and_the_end_of_the_connection(
    light: LightBmc, request_bytes: bytes, status: bytes
) -> None:
    head, _, body = raw(light, request_bytes).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert b"Connection: close" in head
    assert json.loads(body)["error"]["@Message.ExtendedInfo"]


def test_a_client_that_speaks_no_tls_hurts_nobody(light: LightBmc) -> None:
    with socket.create_connection((light.address, light.redfish_port), timeout=10) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            plain.recv(100)
    connection = connect(light)
    connection.request("GET", "/redfish/v1/")
    assert connection.getresponse().status == 200


def test_clients_that_only_connect_keep_nobody_waiting(light: LightBmc) -> None:
    idle = [
        socket.create_connection((light.address, light.redfish_port), timeout=10) for _ in range(30)
    ]
    try:
        connection = connect(light)
        connection.request("GET", "/redfish/v1/")
        assert connection.getresponse().status == 200
    finally:
        for each in idle:
            each.close()


def test_hundreds_of_bmcs_cost_no_thread_and_little_memory() -> None:
    before_threads, before = threading.active_count(), _resident_bytes()
    with light_bmcs(300) as lights:
        assert threading.active_count() - before_threads < 10
        assert _resident_bytes() - before < 100 * 2**20

        def name_of(light: LightBmc) -> str:
            connection = connect(light)
            connection.request("GET", "/redfish/v1/")
            uuid = json.loads(connection.getresponse().read())["UUID"]
            connection.close()
            return str(uuid)

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            found = list(pool.map(name_of, lights))
        assert found == [light.bmc.uuid for light in lights]
        assert len(set(found)) == 300
        wait_until(lambda: threading.active_count() - before_threads < 10)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
