# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A real web server with bad manners, images, and disks: files, and loop devices where allowed."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import os
import random
import shutil
import ssl
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.barewright.metal.plugins.module_utils import gpt

MIB = 1 << 20
os.environ["PATH"] += ":/usr/sbin:/sbin"


class Manners:
    """How the server answers; a test changes what it is about."""

    def __init__(self) -> None:
        self.body = b""
        self.status = 200
        self.promised: int | None = None
        self.stop_after: int | None = None
        self.stall_after: int | None = None
        self.pause_seconds = 0.0
        self.chunked = False
        self.location: str | None = None
        self.encoding: str | None = None
        self.requests: list[dict[str, str]] = []
        self.released = threading.Event()


class Server:
    """An HTTP or HTTPS server on a free port of the loopback address."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.manners = Manners()
        manners = self.manners

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                manners.requests.append(dict(self.headers))
                self.close_connection = True
                if manners.location and not self.path.endswith("/final.raw"):
                    self.send_response(302)
                    self.send_header("Location", manners.location)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(manners.status)
                if manners.encoding:
                    self.send_header("Content-Encoding", manners.encoding)
                if manners.chunked:
                    self.send_header("Transfer-Encoding", "chunked")
                else:
                    promised = manners.promised
                    length = len(manners.body) if promised is None else promised
                    self.send_header("Content-Length", str(length))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.send_body()

            def send_body(self) -> None:
                body = manners.body[: manners.stop_after]
                for start in range(0, len(body), 1 << 16):
                    piece = body[start : start + (1 << 16)]
                    if manners.stall_after is not None and start >= manners.stall_after:
                        manners.released.wait(30)
                        return
                    time.sleep(manners.pause_seconds)
                    if manners.chunked:
                        piece = b"%x\r\n%s\r\n" % (len(piece), piece)
                    self.wfile.write(piece)
                if manners.chunked and manners.stop_after is None:
                    self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "https" if context else "http"
        self.base = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.manners.released.set()
        self._server.shutdown()
        self._server.server_close()


def new_gpt(size_bytes: int, sector_bytes: int) -> gpt.Gpt:
    table = gpt.Gpt(
        sector_bytes=sector_bytes,
        disk_guid=uuid.uuid4().bytes_le,
        first_usable_lba=2 + 16384 // sector_bytes,
        last_usable_lba=0,
        alternate_lba=0,
        entries_lba=2,
        entry_bytes=128,
        entries=bytearray(128 * 128),
    )
    table.relocate(size_bytes // sector_bytes)
    return table


def protective_mbr(size_bytes: int, sector_bytes: int) -> bytes:
    entry = bytes([0, 0, 2, 0, 0xEE, 255, 255, 255]) + bytes(8)
    sector = bytes(446) + entry + bytes(48) + b"\x55\xaa" + bytes(sector_bytes - 512)
    return gpt.protect(sector, size_bytes // sector_bytes)


def write_table(image: bytearray, table: gpt.Gpt) -> None:
    sector = table.sector_bytes
    image[:sector] = protective_mbr(len(image), sector)
    for copy in (table.primary(), table.backup()):
        for lba, content in copy.items():
            image[lba * sector : lba * sector + len(content)] = content


def make_image(size_bytes: int = 12 * MIB, sector_bytes: int = 512, seed: int = 1) -> bytes:
    """A GPT image with one partition from 1 MiB on: data, a large hole, data, small holes, data."""
    image = bytearray(size_bytes)
    table = new_gpt(size_bytes, sector_bytes)
    end = (size_bytes - MIB) // MIB * MIB
    table.add(end - MIB, gpt.BASIC_DATA_GUID, "root")
    source = random.Random(seed)
    third = end // 3
    image[MIB : MIB + third // 2] = source.randbytes(third // 2)
    image[2 * third : end] = source.randbytes(end - 2 * third)
    for start in range(2 * third, end, 300_000):
        image[start : start + 70_000] = bytes(len(image[start : start + 70_000]))
    write_table(image, table)
    return bytes(image)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "none": lambda raw: raw,
    "gz": lambda raw: _run(["gzip", "-1"], raw),
    "xz": lambda raw: _run(["xz", "-0"], raw),
    "zst": lambda raw: _run(["zstd", "-q", "-1"], raw),
}


def _run(command: list[str], content: bytes) -> bytes:
    return subprocess.run(command, input=content, capture_output=True, check=True).stdout


DISK_BYTES = 24 * MIB


def make_used_disk(path: Path) -> Path:
    """A used disk: noise everywhere, under a valid partition table of its own."""
    content = bytearray(random.Random(7).randbytes(DISK_BYTES))
    table = new_gpt(DISK_BYTES, 512)
    table.add(4 * MIB, gpt.BASIC_DATA_GUID, "old")
    write_table(content, table)
    path.write_bytes(content)
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def loop_device(path: Path, *options: str) -> Iterator[str]:
    """A loop device over the file; skips the test where none can be had."""
    if os.geteuid() != 0 or not shutil.which("losetup"):
        pytest.skip("loop devices need root")
    made = subprocess.run(
        ["losetup", "--find", "--show", *options, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"no loop device to be had: {made.stderr.strip()}")
    device = made.stdout.strip()
    try:
        yield device
    finally:
        # udev, where it runs, looks at a device after each change.
        for _attempt in range(50):
            if (
                subprocess.run(
                    ["losetup", "--detach", device], capture_output=True, check=False
                ).returncode
                == 0
            ):
                break
            time.sleep(0.1)


def sgdisk_problems(path: object) -> str:
    """What an independent judge says about the partition table."""
    done = subprocess.run(
        ["sgdisk", "--verify", str(path)], capture_output=True, text=True, check=False
    )
    return "" if "No problems found" in done.stdout else done.stdout + done.stderr
