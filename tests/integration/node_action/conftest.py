# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A machine of namespaces with a real sshd and a disk, and ansible-playbook working on it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.barewright.metal.tests.unit.plugins.image.rig import (
    Server,
    make_image,
    make_used_disk,
)
from tests.conftest import COLLECTIONS

SCRIPT = Path(__file__).with_name("machine.sh")
HOST = "alpha"


class Machine:
    """One machine. ``power_off`` kills all that runs in it, at once."""

    def __init__(self, folder: Path, sshd: str, port: int) -> None:
        self.folder = folder
        self.port = port
        self.disk = folder / "disk"
        self._sshd = sshd
        self._process: subprocess.Popen[bytes] | None = None
        for name in ("host_key", "client_key", "other_key"):
            make_key(folder / name)
        public = (folder / "client_key.pub").read_text()
        (folder / "authorized_keys").write_text(public)
        (folder / "sshd_config").write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
            "PermitRootLogin prohibit-password\nPidFile none\n"
        )
        self.pin("host_key")

    def pin(self, name: str) -> None:
        """Trust exactly that host key."""
        key = " ".join((self.folder / f"{name}.pub").read_text().split()[:2])
        (self.folder / "known_hosts").write_text(f"{HOST}.ramdisk {key}\n")

    def power_on(self) -> None:
        log = open(self.folder / "console.log", "ab")  # noqa: SIM115  # lives as long as it
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        self._process = subprocess.Popen(
            [*namespaces, "sh", str(SCRIPT), str(self.folder), self._sshd],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        pytest.skip(f"no machine of namespaces: {(self.folder / 'console.log').read_text()}")

    def power_off(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def processes(self, name: str = "") -> list[int]:
        """The machine's processes whose program begins with the name; all without one."""
        assert self._process is not None
        found = []
        for pid in descendants(self._process.pid):
            try:
                program = Path(f"/proc/{pid}/comm").read_text()
            except OSError:
                continue
            if program.startswith(name):
                found.append(pid)
        return found


def descendants(pid: int) -> list[int]:
    """All processes below one; those that lost their parent are below the machine's first."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


class Playbook:
    """ansible-playbook with one play on the machine."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine = machine
        self._folder = folder
        # A socket's address is short, and pytest's folders are not.
        self._control = f"/tmp/bw-test-{os.getpid()}"

    def start(
        self, tasks: list[dict[str, Any]], *options: str, key: str = "client_key"
    ) -> subprocess.Popen[str]:
        folder = self._machine.folder
        ssh = {
            "UserKnownHostsFile": folder / "known_hosts",
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": f"{HOST}.ramdisk",
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
        }
        variables = {
            "ansible_connection": "ssh",
            "ansible_host": "127.0.0.1",
            "ansible_port": self._machine.port,
            "ansible_user": "root",
            "ansible_python_interpreter": sys.executable,
            "ansible_pipelining": True,
            "ansible_ssh_private_key_file": str(folder / key),
            "ansible_ssh_common_args": " ".join(f"-o {k}={v}" for k, v in ssh.items()),
            "barewright_state_dir": str(folder / "state"),
        }
        inventory = {"all": {"hosts": {HOST: variables}}}
        play = {"hosts": HOST, "gather_facts": False, "tasks": tasks}
        (self._folder / "inventory.yml").write_text(yaml.safe_dump(inventory))
        (self._folder / "play.yml").write_text(yaml.safe_dump([play], sort_keys=False))
        environment = {
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
            "ANSIBLE_SSH_CONTROL_PATH_DIR": self._control,
            "ANSIBLE_LOCAL_TEMP": str(self._folder / "local"),
            "ANSIBLE_NOCOLOR": "1",
        }
        program = Path(sys.executable).with_name("ansible-playbook")
        return subprocess.Popen(
            [str(program), "-i", "inventory.yml", "play.yml", *options],
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, tasks: list[dict[str, Any]], *options: str, key: str = "client_key") -> str:
        """The output of a play that may fail."""
        with self.start(tasks, *options, key=key) as process:
            return str(process.communicate(timeout=180)[0])

    def results(
        self, module: str, *arguments: dict[str, Any], key: str = "client_key", options: str = ""
    ) -> list[dict[str, Any]]:
        """What the module returns for each of the arguments, failures included."""
        kept = self._folder / "results.json"
        tasks: list[dict[str, Any]] = []
        for number, each in enumerate(arguments):
            tasks.append(
                {
                    f"barewright.metal.{module}": each,
                    "register": f"r{number}",
                    "ignore_errors": True,
                }
            )
        names = ", ".join(f"r{number}" for number in range(len(arguments)))
        tasks.append(
            {
                "ansible.builtin.copy": {
                    "dest": str(kept),
                    "content": f"{{{{ [{names}] | to_json }}}}",
                },
                "delegate_to": "localhost",
                "check_mode": False,
                "diff": False,
                "vars": {
                    "ansible_connection": "local",
                    "ansible_python_interpreter": sys.executable,
                },
            }
        )
        kept.unlink(missing_ok=True)
        self.output = self.run(tasks, *options.split(), key=key)
        assert kept.exists(), self.output
        assert "unreachable=0" in self.output
        return list(json.loads(kept.read_text()))


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An sshd. Installing Debian's package would start one for the world, so it is unpacked."""
    if os.geteuid() != 0:
        pytest.skip("a machine of mount and pid namespaces needs root")
    found = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if found:
        return found
    folder = tmp_path_factory.mktemp("sshd")
    unpack = "apt-get --quiet download openssh-server && dpkg --extract openssh-server*.deb ."
    done = subprocess.run(["sh", "-c", unpack], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no sshd: {done.stderr}")
    return str(folder / "usr/sbin/sshd")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        running.manners.body = make_image()
        yield running


@pytest.fixture
def machine(tmp_path: Path, sshd: str) -> Iterator[Machine]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    make_used_disk(tmp_path / "disk")
    made = Machine(tmp_path, sshd, port)
    made.power_on()
    yield made
    made.power_off()


@pytest.fixture
def playbook(machine: Machine, tmp_path: Path) -> Iterator[Playbook]:
    folder = tmp_path / "controller"
    folder.mkdir()
    made = Playbook(machine, folder)
    yield made
    for master in Path(made._control).glob("*"):
        subprocess.run(
            ["ssh", "-o", f"ControlPath={master}", "-O", "exit", "x"], capture_output=True
        )
    shutil.rmtree(made._control, ignore_errors=True)
