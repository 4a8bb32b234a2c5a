# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The collection as its users get it: a tarball, installed far from the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from virtual_rack.testing import light_bmc

ROOT = Path(__file__).resolve().parents[3]

SHIPPED = {
    "CHANGELOG.md",
    "COPYING",
    "FILES.json",
    "LICENSES",
    "MANIFEST.json",
    "README.md",
    "changelogs",
    "docs",
    "faults.yml",
    "inventories",
    "meta",
    "playbooks",
    "plugins",
    "roles",
    "workflows",
}


class Site(NamedTuple):
    """The folder of a user who has the collection and nothing else of this repository."""

    directory: Path

    def ansible(self, command: str, *arguments: str | Path) -> str:
        """Run ``ansible-COMMAND`` there and return what it prints; it must succeed."""
        done = subprocess.run(
            [sys.executable, "-m", "ansible", command, *map(str, arguments)],
            cwd=self.directory,
            env={
                "ANSIBLE_COLLECTIONS_PATH": str(self.directory / "collections"),
                "HOME": str(self.directory),
                "LC_ALL": "C.UTF-8",
                "PATH": os.environ["PATH"],
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def write(self, name: str, content: Any) -> Path:
        path = self.directory / name
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return path


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = Site(tmp_path_factory.mktemp("build"))
    site.ansible("galaxy", "collection", "build", "--output-path", site.directory, ROOT)
    (built,) = site.directory.glob("barewright-metal-*.tar.gz")
    return built


@pytest.fixture(scope="module")
def site(tarball: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    elsewhere = Site(tmp_path_factory.mktemp("elsewhere"))
    elsewhere.ansible(
        "galaxy",
        *("collection", "install", "--offline", tarball),
        *("-p", elsewhere.directory / "collections"),
    )
    return elsewhere


def files_of(tarball: Path) -> set[str]:
    with tarfile.open(tarball) as archive:
        return {member.name for member in archive if not member.isdir()}


def test_tarball_holds_the_collection_and_neither_rack_nor_tests_nor_tools(tarball: Path) -> None:
    files = files_of(tarball)
    assert {name.split("/")[0] for name in files} - SHIPPED == set()
    assert [name for name in files if "__pycache__" in name or name.endswith(".pyc")] == []


def test_tarball_holds_every_file_that_git_has_of_the_collection(tarball: Path) -> None:
    parts = ["faults.yml", "meta", "playbooks", "plugins", "roles", "workflows"]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *parts],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    present = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    assert present - files_of(tarball) == set()


def test_installed_collection_documents_every_plugin(site: Site) -> None:
    modules = {path.stem for path in (ROOT / "plugins/modules").glob("*.py")}
    names = [f"barewright.metal.{name}" for name in sorted(modules)]
    docs = json.loads(site.ansible("doc", "--json", *names))
    assert set(docs) == set(names)
    for name, doc in docs.items():
        assert doc["doc"]["short_description"], name
        assert str(site.directory) in doc["doc"]["filename"], name
    roles = json.loads(
        site.ansible("doc", "--type", "role", "--list", "--json", "barewright.metal")
    )
    assert {name.rsplit(".", 1)[-1] for name in roles} == {
        path.name for path in (ROOT / "roles").iterdir() if path.is_dir()
    }


def test_module_defaults_of_the_group_set_address_and_credentials_once(site: Site) -> None:
    with light_bmc() as bmc:
        defaults = {
            "address": bmc.address,
            "port": bmc.redfish_port,
            "username": bmc.username,
            "password": bmc.password,
            "ca_path": str(bmc.ca_path),
        }
        play = site.write(
            "module_defaults.yml",
            [
                {
                    "hosts": "localhost",
                    "connection": "local",
                    "gather_facts": False,
                    "module_defaults": {"group/barewright.metal.bmc": defaults},
                    "tasks": [
                        {
                            "barewright.metal.bmc_boot_device": {
                                "device": "pxe",
                                "persistence": "once",
                                "mode": "uefi",
                            }
                        },
                        {"barewright.metal.bmc_power": {"state": "on"}},
                        {"barewright.metal.bmc_info": {}, "register": "found"},
                        {"ansible.builtin.assert": {"that": ["found.power_state == 'on'"]}},
                    ],
                }
            ],
        )
        site.ansible("playbook", "-i", "localhost,", play)
        assert bmc.machine.power_state() == "on"


def test_a_job_playbook_runs_from_the_installed_collection(site: Site) -> None:
    with light_bmc() as bmc:
        variables = {
            "barewright_state_dir": str(site.directory / "state"),
            "bmc_address": bmc.address,
            "bmc_port": bmc.redfish_port,
            "bmc_username": bmc.username,
            "bmc_password": bmc.password,
            "bmc_ca_path": str(bmc.ca_path),
        }
        hosts = site.write("hosts.yml", {"nodes": {"hosts": {"alpha": variables}}})
        power_on = ["barewright.metal.power", "-e", '{"power_state": "on"}']
        site.ansible("playbook", "-i", hosts, *power_on)
        assert bmc.machine.power_state() == "on"
        assert "changed=0" in site.ansible("playbook", "-i", hosts, *power_on)
