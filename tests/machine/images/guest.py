# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Single machines that start the ramdisk or an image, without rack and boot server.

QEMU loads the kernel itself or starts from the disk; what a boot server does has tests of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from virtual_rack.accelerator import choose, shared_cache
from virtual_rack.programs import OVMF_DIRECTORY, QEMU, find
from virtual_rack.qmp import QmpClient

ROOT = Path(__file__).resolve().parents[3]
ARTEFACTS = ROOT / ".cache" / "artefacts"
MIB = 1 << 20


class Guest:
    """One QEMU machine with a forwarded SSH port; it dies with the tests, however they end."""

    def __init__(
        self, directory: Path, arguments: Sequence[str], user: str, guest_address: str
    ) -> None:
        self.console = directory / "console.log"
        self._directory = directory
        self._user = user
        self._port = _free_port()
        socket_path = directory / "qmp"
        socket_path.unlink(missing_ok=True)
        accelerator = choose(directory / "accelerator.json", shared_cache=shared_cache())
        command = ["setpriv", "--pdeathsig", "KILL", find(QEMU)]
        command += ["-machine", "q35,vmport=off", *accelerator.arguments()]
        command += ["-smp", "1", "-nodefaults", "-display", "none", "-vga", "none"]
        command += ["-device", "virtio-rng-pci", "-serial", f"file:{self.console}"]
        command += ["-qmp", f"unix:{socket_path},server=on,wait=off"]
        command += ["-action", "reboot=shutdown,shutdown=poweroff"]
        command += [
            "-netdev",
            f"user,id=net0,hostfwd=tcp:127.0.0.1:{self._port}-{guest_address}:22",
        ]
        self.process = subprocess.Popen([*command, *arguments])
        self._connection = socket.socket(socket.AF_UNIX)
        self._wait_for(socket_path.exists, 60, "QEMU")
        self._connection.connect(str(socket_path))
        self._qmp = QmpClient(self._connection, lambda _event: None, lambda: None)
        self._qmp.start(60)

    def ssh(self, command: str, *, check: bool = True) -> str:
        """What a shell command on the machine prints."""
        done = subprocess.run(
            [
                *("ssh", "-i", str(self._directory / "id"), "-p", str(self._port)),
                *("-o", f"UserKnownHostsFile={self._directory}/known_hosts"),
                *("-o", "StrictHostKeyChecking=accept-new", "-o", "IdentitiesOnly=yes"),
                *("-o", "LogLevel=ERROR", "-o", "ConnectTimeout=20"),
                f"{self._user}@127.0.0.1",
                command,
            ],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        if check and done.returncode:
            pytest.fail(f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def answers_ssh(self) -> bool:
        """Whether sshd shows its version; QEMU's own end of the forwarding always accepts."""
        with socket.socket() as probe:
            # A try costs a machine without KVM half a second; one that is answered late will do.
            probe.settimeout(30)
            try:
                probe.connect(("127.0.0.1", self._port))
                return probe.recv(4) == b"SSH-"
            except OSError:
                return False

    def await_ssh(self, seconds: float) -> None:
        """Until sshd answers."""
        self._wait_for(self.answers_ssh, seconds, "SSH")

    def await_console(self, text: str, seconds: float) -> None:
        """Until the console shows ``text``."""
        self._wait_for(
            lambda: self.console.exists() and text in self.console.read_text(errors="replace"),
            seconds,
            repr(text),
        )

    def await_command(self, command: str, seconds: float) -> None:
        """Until a shell command on the machine succeeds."""
        self._wait_for(
            lambda: self.ssh(f"{command} && echo yes", check=False) == "yes\n", seconds, command
        )

    def scan_host_key(self) -> str:
        """The ed25519 host key that the machine shows."""
        return subprocess.run(
            ["ssh-keyscan", "-t", "ed25519", "-T", "60", "-p", str(self._port), "127.0.0.1"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def await_end(self, seconds: float) -> int:
        """QEMU's exit status once the machine has switched itself off or wants to start anew."""
        self._wait_for(lambda: self.process.poll() is not None, seconds, "the end")
        return int(self.process.returncode)

    def press_power_button(self) -> None:
        """The ACPI event."""
        self._qmp.execute("system_powerdown")

    def end(self) -> None:
        """Pull the plug."""
        self.process.kill()
        self.process.wait()
        self._connection.close()

    def _wait_for(self, reached: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > deadline or self.process.poll() not in (None, 0):
                text = self.console.read_text(errors="replace") if self.console.exists() else ""
                pytest.fail(f"no {what} within {seconds:.0f} s; console:\n{text[-3000:]}")
            time.sleep(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class BootServer(ThreadingHTTPServer):
    """Answers check-ins as it is told and keeps them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.check_ins: list[dict[str, Any]] = []
        self.answers: list[tuple[int, dict[str, Any]]] = []

    @property
    def guest_url(self) -> str:
        """Its address as a guest of QEMU's user network sees it."""
        return f"http://10.0.2.2:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: BootServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.check_ins.append(json.loads(body))
        answers = self.server.answers
        status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing of it is of interest."""


def artefact(name: str) -> Path:
    """The folder of a built ramdisk or image."""
    folder = ARTEFACTS / name / "current"
    if not (folder / "manifest.yml").is_file():
        pytest.fail(f"there is no {name}: `make images` builds it")
    return folder


def unpacked_image(name: str, disk: Path, size_mib: int) -> dict[str, Any]:
    """Write an image to the start of a new disk; returns its manifest."""
    folder = artefact(name)
    manifest = dict(yaml.safe_load((folder / "manifest.yml").read_text()))
    subprocess.run(
        ["zstd", "-q", "-d", "--sparse", str(folder / manifest["file"]), "-o", str(disk)],
        check=True,
    )
    assert disk.stat().st_size == manifest["raw_size_bytes"]
    os.truncate(disk, size_mib * MIB)
    return manifest


def uefi(directory: Path) -> list[str]:
    """Options for firmware with variables of its own."""
    variables = directory / "variables.fd"
    if not variables.exists():
        shutil.copyfile(OVMF_DIRECTORY / "OVMF_VARS_4M.fd", variables)
    flash = "if=pflash,format=raw"
    return [
        *("-drive", f"{flash},unit=0,readonly=on,file={OVMF_DIRECTORY}/OVMF_CODE_4M.fd"),
        *("-drive", f"{flash},unit=1,file={variables}"),
    ]
