# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""One machine that runs the ramdisk and has a disk on every bus.

QEMU loads kernel and initramfs itself: these tests are about disks, and network boot has tests of
its own. The ramdisk checks in with a responder that admits the test's key.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from virtual_rack.accelerator import choose, shared_cache
from virtual_rack.programs import QEMU, find

ROOT = Path(__file__).resolve().parents[3]
RAMDISK = ROOT / ".cache" / "artefacts" / "ramdisk" / "current"
DISK_MIB = 96
MIB = 1 << 20

# Four times what was measured on a quiet machine (15 s to the SSH port, under emulation).
_BOOT_SECONDS = 60.0

# Each disk's backend is a file of its name; -drive wants to know no more.
_DEVICES = {
    "nvme": ["nvme-ns,bus=nvme0,nsid=1,drive=nvme"],
    "detached": ["nvme-ns,bus=nvme0,nsid=26,detached=on,drive=detached"],
    "virtio": [
        "virtio-blk-pci,serial=VIRTIO-1,logical_block_size=4096,physical_block_size=4096,"
        "drive=virtio"
    ],
    "scsi": ["virtio-scsi-pci,id=scsi0", "scsi-hd,bus=scsi0.0,serial=SCSI-1,drive=scsi"],
    "sata": ["ide-hd,bus=ide.0,serial=SATA-1,drive=sata"],
    "locked": ["virtio-blk-pci,serial=LOCKED-1,drive=locked"],
}
_CONTROLLERS = ["nvme-subsys,id=subsystem0", "nvme,id=nvme0,serial=NVME-1,subsys=subsystem0"]


class Guest:
    """The running machine: its disks from outside, Ansible modules inside."""

    def __init__(self, directory: Path, key: Path, port: int) -> None:
        self._directory = directory
        self._inventory = directory / "inventory.json"
        variables = {
            "ansible_host": "127.0.0.1",
            "ansible_port": port,
            "ansible_user": "root",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_pipelining": True,
            "ansible_ssh_private_key_file": str(key),
            "ansible_ssh_common_args": (
                f"-o UserKnownHostsFile={directory}/known_hosts "
                "-o StrictHostKeyChecking=accept-new -o IdentitiesOnly=yes"
            ),
        }
        self._inventory.write_text(json.dumps({"all": {"hosts": {"guest": variables}}}))

    def module(self, name: str, *, check: bool = False, **options: Any) -> dict[str, Any]:
        """The result of one module of the collection, failed or not."""
        tree = self._directory / "results"
        command = [
            sys.executable,
            "-m",
            "ansible",
            "adhoc",
            "guest",
            "-i",
            str(self._inventory),
            "-t",
            str(tree),
        ]
        command += ["-m", f"barewright.metal.{name}", "-a", json.dumps(options)]
        subprocess.run(
            [*command, *(["--check"] if check else [])],
            check=False,
            capture_output=True,
            timeout=300,
        )
        return dict(json.loads((tree / "guest").read_text()))

    def fill(self) -> None:
        """Data in every sector of every disk, written from outside."""
        for name in _DEVICES:
            fill_with_data(self.disk(name))

    def disk(self, name: str) -> Path:
        """The file behind a disk."""
        return self._directory / f"{name}.raw"

    def left(self, name: str) -> float:
        """Which part of the disk is not zero, MiB by MiB, read from outside."""
        content = self.disk(name).read_bytes()
        steps = [content[start : start + MIB] for start in range(0, len(content), MIB)]
        return sum(1 for step in steps if step.strip(b"\0")) / len(steps)


def fill_with_data(path: Path) -> None:
    """No two sectors are equal; the file keeps its size and its place."""
    block = os.urandom(MIB)
    with path.open("r+b" if path.exists() else "wb") as stream:
        for number in range(DISK_MIB):
            stream.write(number.to_bytes(8, "big") + block[8:])


class _CheckIn(BaseHTTPRequestHandler):
    """Admits whoever checks in."""

    admitted = ""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        answer = {"node": "guest", "window_id": "w", "authorized_keys": [self.admitted]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing of it is of interest."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _command(directory: Path, url: str, port: int) -> list[str]:
    accelerator = choose(directory / "accelerator.json", shared_cache=shared_cache())
    # The machine dies with the tests, however they end.
    command = ["setpriv", "--pdeathsig", "KILL", find(QEMU)]
    command += ["-machine", "q35,vmport=off", *accelerator.arguments()]
    command += ["-smp", "1", "-m", "1024", "-nodefaults", "-display", "none", "-vga", "none"]
    command += ["-device", "virtio-rng-pci", "-serial", f"file:{directory}/console.log"]
    command += ["-smbios", "type=1,serial=MACHINE-1,manufacturer=Maker"]
    command += ["-kernel", str(RAMDISK / "vmlinuz"), "-initrd", str(RAMDISK / "initrd")]
    command += ["-append", f"console=ttyS0,115200n8 quiet barewright.url={url} barewright.token=t"]
    command += ["-netdev", f"user,id=net0,hostfwd=tcp:127.0.0.1:{port}-:22"]
    command += ["-device", "virtio-net-pci,netdev=net0,romfile="]
    for device in _CONTROLLERS:
        command += ["-device", device]
    for name, devices in _DEVICES.items():
        drive = f"if=none,id={name},file={directory}/{name}.raw,format=raw,cache=unsafe"
        command += ["-drive", f"{drive},{'readonly=on' if name == 'locked' else 'discard=unmap'}"]
        for device in devices:
            command += ["-device", device]
    return command


def _await_ssh(process: subprocess.Popen[bytes], port: int, console: Path) -> None:
    end = time.monotonic() + _BOOT_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(2.0)
            # QEMU's own end of the forwarding always accepts; only sshd sends its version.
            try:
                probe.connect(("127.0.0.1", port))
                if probe.recv(4) == b"SSH-":
                    return
            except OSError:
                pass
        time.sleep(0.5)
    text = console.read_text(errors="replace") if console.exists() else ""
    pytest.fail(f"no ramdisk after {_BOOT_SECONDS:.0f} s; its console ends with\n{text[-2000:]}")


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """The machine, up and reachable."""
    if not (RAMDISK / "initrd").exists():
        pytest.fail("there is no ramdisk: `make images` builds it")
    directory = tmp_path_factory.mktemp("guest")
    key = directory / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    _CheckIn.admitted = key.with_suffix(".pub").read_text().strip()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _CheckIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = _free_port()
    machine = Guest(directory, key, port)
    machine.fill()
    with (directory / "qemu.log").open("wb") as log:
        url = f"http://10.0.2.2:{server.server_port}"
        process = subprocess.Popen(_command(directory, url, port), stdout=log, stderr=log)
    try:
        _await_ssh(process, port, directory / "console.log")
        yield machine
    finally:
        process.kill()
        process.wait()
        server.shutdown()
        server.server_close()
