# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""``ansible-playbook`` against BMCs of light machines; what happened is judged by the journal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from virtual_rack.testing import LightBmc, light_bmc

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
Json = dict[str, Any]


@dataclass
class Run:
    """A finished ``ansible-playbook``."""

    returncode: int
    output: str
    results: list[Json]


@dataclass
class Controller:
    """Where playbooks are started: one node, local connection, a state folder."""

    directory: Path

    @property
    def state_dir(self) -> Path:
        return self.directory / "state"

    def command(self, tasks: list[Json], *arguments: str, **play: Any) -> list[str]:
        """Write the playbook and return the command that runs it."""
        book = self.directory / "play.yml"
        document = {"hosts": "all", "gather_facts": False, "tasks": tasks, **play}
        book.write_text(yaml.safe_dump([document]))
        variables = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "barewright_state_dir": str(self.state_dir),
        }
        extra = ("-i", "node-1,", "-e", json.dumps(variables))
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        return [program, str(book), *extra, *arguments]

    def environment(self) -> dict[str, str]:
        """Home and caches of its own, so that no lock file of the user is touched."""
        return {
            **os.environ,
            "ANSIBLE_ASYNC_DIR": str(self.directory / "async"),
            "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "callback"),
            "ANSIBLE_CALLBACKS_ENABLED": "notes",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_LOCAL_TEMP": str(self.directory / "tmp"),
            "HOME": str(self.directory),
            "NOTES_FILE": str(self.directory / "notes.jsonl"),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
        }

    def play(self, tasks: list[Json], *arguments: str, **play: Any) -> Run:
        """Run tasks in one play and return the result of each; failures are ignored."""
        notes = self.directory / "notes.jsonl"
        notes.write_text("")
        tolerant = [{"ignore_errors": True, **task} for task in tasks]
        done = subprocess.run(
            self.command(tolerant, *arguments, **play),
            cwd=ROOT,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        results = [json.loads(line) for line in notes.read_text().splitlines()]
        assert len(results) >= len(tasks), done.stdout
        return Run(done.returncode, done.stdout, results)


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path)


@pytest.fixture(params=["redfish", "ipmi"])
def driver(request: pytest.FixtureRequest) -> str:
    """Each promise holds with both drivers."""
    return str(request.param)


@pytest.fixture
def bmc() -> Iterator[LightBmc]:
    """A BMC of a light machine that is off."""
    with light_bmc(firmware="uefi") as running:
        yield running


Asking = Callable[..., Json]


@pytest.fixture
def ask(bmc: LightBmc) -> Asking:
    """Makes tasks: ``ask("power", "redfish", state="on")``. ``detached`` runs the module itself."""

    def task(module: str, driver: str, *, detached: bool = False, **options: Any) -> Json:
        arguments = {
            "address": bmc.address,
            "port": bmc.redfish_port if driver == "redfish" else bmc.ipmi_port,
            "username": bmc.username,
            "password": bmc.password,
            "driver": driver,
            "ca_path": str(bmc.ca_path),
            "timeout_seconds": 20,
            **options,
        }
        given = {key: value for key, value in arguments.items() if value is not None}
        made: Json = {f"barewright.metal.bmc_{module}": given}
        # An asynchronous task is the shortest way to the module instead of the action plugin.
        return {**made, "async": 60, "poll": 1} if detached else made

    return task
