# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A site of two whole machines, and the jobs as an operator runs them.

The tests of this folder are one life of two machines, in the order of the file: booting them anew
for each promise would take an hour.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from virtual_rack.rack import Rack
from virtual_rack.spec import load_spec

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
ARTEFACTS = ROOT / ".cache" / "artefacts"
BOOT_SERVER = "10.77.0.1"
MIB = 1 << 20

# Four times what was measured on a quiet machine.
JOB_SECONDS = 900


class Job:
    """How one run of a playbook ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.output = done.stdout

    def count(self, host: str, what: str) -> int:
        """A number of the recap, such as ``changed`` or ``failed``."""
        row = re.search(rf"^{host}\s+: .*\b{what}=(\d+)", self.output, re.MULTILINE)
        assert row, self.output[-4000:]
        return int(row.group(1))


class Site:
    """Runs jobs inside the rack's network, and reads the records and disks from outside."""

    def __init__(self, rack: Rack, directory: Path) -> None:
        self.rack = rack
        self.directory = directory
        self.state = directory / "state"

    def start(self, name: str, *extra: str) -> subprocess.Popen[str]:
        """Start a playbook; its output is one text."""
        return self.rack.popen(
            [
                Path(sys.executable).parent / "ansible-playbook",
                "-i",
                HERE / "site",
                "-e",
                f"@{self.directory / 'variables.yml'}",
                *extra,
                name,
            ],
            cwd=ROOT,
            env={**os.environ, "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, process: subprocess.Popen[str]) -> Job:
        """Wait for a playbook that was started."""
        output, _ = process.communicate(timeout=JOB_SECONDS)
        return Job(subprocess.CompletedProcess([], process.returncode, output))

    def run(self, name: str, *extra: str) -> Job:
        """Run a playbook to its end, whatever that is."""
        return self.finish(self.start(name, *extra))

    def must(self, name: str, *extra: str) -> Job:
        """Run a playbook that has to end well."""
        job = self.run(name, *extra)
        assert job.code == 0, job.output[-6000:]
        return job

    def record(self, node: str) -> dict[str, Any]:
        """The node's record."""
        record: dict[str, Any] = yaml.safe_load(
            (self.state / f"{node}.yml").read_text(encoding="utf-8")
        )
        return record

    def edit(self, node: str, change: Callable[[dict[str, Any]], Any]) -> None:
        """Make the record say something else than reality."""
        record = self.record(node)
        change(record)
        (self.state / f"{node}.yml").write_text(yaml.safe_dump(record), encoding="utf-8")

    def ssh(self, node: str, command: str) -> str:
        """What a command on the installed system says, over the pinned host key."""
        address = {"alpha": "10.77.2.1", "beta": "10.77.2.2"}[node]
        options = {
            "BatchMode": "yes",
            "UserKnownHostsFile": self.state / "known_hosts" / f"{node}.host",
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": f"{node}.host",
            "StrictHostKeyChecking": "yes",
        }
        argv: list[str | Path] = ["ssh", "-i", self.state / "ssh" / "id_ed25519"]
        for key, value in options.items():
            argv += ["-o", f"{key}={value}"]
        done = self.rack.exec(
            [*argv, f"barewright@{address}", command],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return str(done.stdout)

    def plant(self, node: str, index: int, offset: int, mark: bytes) -> None:
        """Write a mark to a disk from outside; the machine must be off."""
        with self.rack.disk(node, index).open("r+b") as disk:
            disk.seek(offset)
            disk.write(mark)

    def read(self, node: str, index: int, offset: int, length: int) -> bytes:
        """Read a disk from outside."""
        with self.rack.disk(node, index).open("rb") as disk:
            disk.seek(offset)
            return disk.read(length)

    def has_partition_table(self, node: str, index: int, sector: int = 512) -> bool:
        """Whether an MBR signature or a GPT header stands at either end, as firmware looks."""
        size = self.rack.disk(node, index).stat().st_size
        first = self.read(node, index, 0, 2 * sector)
        last = self.read(node, index, size - sector, sector)
        return (
            first[510:512] == b"\x55\xaa"
            or first[sector : sector + 8] == b"EFI PART"
            or last[:8] == b"EFI PART"
        )

    def effects(self, node: str) -> list[str]:
        """What the BMC's journal says was changed, oldest first."""
        return [entry["effect"] for entry in self.rack.journal(node) if entry["effect"]]


def image(flavour: str) -> dict[str, Any]:
    """``deploy_image`` of an image that role image_build made."""
    folder = ARTEFACTS / f"image-{flavour}" / "current"
    manifest = yaml.safe_load((folder / "manifest.yml").read_text(encoding="utf-8"))
    keys = ("name", "sha256", "size_bytes", "raw_size_bytes", "compression", "sector_bytes")
    return {
        **{key: manifest[key] for key in keys},
        "url": f"http://{BOOT_SERVER}:8080/files/images/{flavour}/image.raw.zst",
    }


@pytest.fixture(scope="session")
def light_image() -> dict[str, Any]:
    return image("light")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, light_image: dict[str, Any]) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("life")
    (directory / "variables.yml").write_text(
        yaml.safe_dump(
            {
                "test_dir": str(directory),
                "test_artefacts": str(ARTEFACTS),
                "deploy_image": light_image,
            }
        ),
        encoding="utf-8",
    )
    with Rack(load_spec(HERE / "rack.yml"), directory / "rack") as rack:
        site = Site(rack, directory)
        site.must(str(HERE / "boot_server.yml"))
        yield site
