# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The rig's servers, images and disks as fixtures."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from ansible_collections.barewright.metal.tests.unit.plugins.image.rig import (
    COMPRESS,
    Server,
    make_image,
    make_used_disk,
)

# A busy machine is not a slow function.
settings.register_profile("barewright", deadline=None)
settings.load_profile("barewright")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def tls_server(certificates: dict[str, Path]) -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates["certificate"], certificates["key"])
    with Server(context) as running:
        yield running


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A certificate for 127.0.0.1 that is its own CA."""
    folder = tmp_path_factory.mktemp("certificates")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 "
        "-addext keyUsage=critical,digitalSignature,keyCertSign "
        f"-keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return {"key": key, "certificate": certificate}


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def raw_image() -> bytes:
    return make_image()


@pytest.fixture(scope="session")
def compressed(raw_image: bytes) -> dict[str, bytes]:
    return {name: pack(raw_image) for name, pack in COMPRESS.items()}


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return make_used_disk(tmp_path / "disk")
