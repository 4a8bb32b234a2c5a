# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The certificates of a rack, judged by OpenSSL's own verification."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from pathlib import Path

import pytest

from virtual_rack import tls
from virtual_rack.layout import RackLayout

ALPHA = ipaddress.IPv4Address("10.77.1.1")


def handshake(layout: RackLayout, ca: Path, address: str) -> None:
    """Verify the certificate of server alpha as a client that was sent to that address."""
    ours, theirs = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(layout.certificate("alpha"), layout.certificate_key("alpha"))

    def serve() -> None:
        try:
            context.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    server = threading.Thread(target=serve)
    server.start()
    try:
        client = ssl.create_default_context(cafile=str(ca))
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        client.wrap_socket(ours, server_hostname=address).close()
    finally:
        ours.close()
        server.join()


@pytest.fixture
def layout(tmp_path: Path) -> RackLayout:
    layout = RackLayout(tmp_path)
    tls.prepare(layout, "demo", {"alpha": ALPHA})
    return layout


def test_the_ca_of_the_rack_verifies_a_bmc_at_its_address(layout: RackLayout) -> None:
    handshake(layout, layout.ca_certificate, str(ALPHA))


def test_a_bmc_cannot_pass_for_another_address(layout: RackLayout) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        handshake(layout, layout.ca_certificate, "10.77.1.2")


def test_trusting_one_rack_trusts_no_other(layout: RackLayout, tmp_path: Path) -> None:
    other = RackLayout(tmp_path / "other")
    tls.prepare(other, "demo", {})
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(layout, other.ca_certificate, str(ALPHA))


def test_the_ca_stays_and_keys_are_the_owners_alone(layout: RackLayout) -> None:
    before = layout.ca_certificate.read_bytes()
    tls.prepare(layout, "demo", {"alpha": ALPHA})
    assert layout.ca_certificate.read_bytes() == before
    handshake(layout, layout.ca_certificate, str(ALPHA))
    for key in (layout.ca_key, layout.certificate_key("alpha")):
        assert key.stat().st_mode & 0o777 == 0o600
