# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Jobs through real ansible-playbook against light machines: records, phases, bad input."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from virtual_rack.testing import LightBmc, light_bmc

ROOT = Path(__file__).resolve().parents[2]
NO_MINIMUM = hashlib.sha256(b"{}").hexdigest()


class Site:
    """An inventory of one or more nodes in a temporary folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._hosts: dict[str, dict[str, Any]] = {}

    def add(self, name: str, bmc: LightBmc, **other: Any) -> None:
        """Put a node into the inventory."""
        self._hosts[name] = {
            "bmc_address": bmc.address,
            "bmc_port": bmc.redfish_port,
            "bmc_username": bmc.username,
            "bmc_password": bmc.password,
            "bmc_ca_path": str(bmc.ca_path),
            "ramdisk_address": "127.0.0.1",
            **other,
        }

    def run(self, job: str, *extra: str) -> tuple[int, str]:
        """Run a job; its exit code and its output."""
        inventory = {
            "all": {
                # rendered late, as an inventory's variables are
                "vars": {"place": str(self.directory), "barewright_state_dir": "{{ place }}/state"},
                "children": {
                    "nodes": {"hosts": self._hosts},
                    "site_services": {"hosts": {"localhost": {"ansible_connection": "local"}}},
                },
            }
        }
        path = self.directory / "hosts.yml"
        path.write_text(yaml.safe_dump(inventory), encoding="utf-8")
        done = subprocess.run(
            ["ansible-playbook", "-i", path, f"barewright.metal.{job}", *extra],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    def record(self, node: str) -> dict[str, Any]:
        """The node's record."""
        path = self.directory / "state" / f"{node}.yml"
        record: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        return record

    def set_phase(self, node: str, phase: str, **other: Any) -> None:
        """Begin a test in a phase."""
        path = self.directory / "state" / f"{node}.yml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump({"version": 1, "node": node, "phase": phase, **other}))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def changed(output: str, node: str) -> int:
    row = re.search(rf"^{node}\s+: .*\bchanged=(\d+)", output, re.MULTILINE)
    assert row, output[-3000:]
    return int(row.group(1))


def test_enroll_writes_a_record_and_nothing_else_then_finds_nothing_to_change(site: Site) -> None:
    with light_bmc() as bmc:
        site.add("alpha", bmc)
        code, output = site.run("enroll")
        assert code == 0, output
        record = site.record("alpha")
        assert record["phase"] == "enrolled"
        macs = [nic["mac"] for nic in record["inspection"]["out_of_band"]["nics"]]
        assert record["pxe_macs"] == macs
        code, output = site.run("enroll")
        assert (code, changed(output, "alpha")) == (0, 0), output
        assert bmc.power_effects() == []
    left = {path.name for path in site.directory.iterdir()}
    assert left == {"hosts.yml", "state"}


def test_enroll_in_check_mode_writes_nothing(site: Site) -> None:
    with light_bmc() as bmc:
        site.add("alpha", bmc)
        code, output = site.run("enroll", "--check")
        assert code == 0, output
    assert not (site.directory / "state").exists()


def test_an_ipmi_node_must_name_its_network_cards(site: Site) -> None:
    with light_bmc() as bmc:
        site.add("alpha", bmc, bmc_driver="ipmi", bmc_port=bmc.ipmi_port)
        code, output = site.run("enroll")
        assert code != 0
        assert site.record("alpha")["fault"]["code"] == "PXE_MAC_UNKNOWN", output
        site.add(
            "alpha",
            bmc,
            bmc_driver="ipmi",
            bmc_port=bmc.ipmi_port,
            pxe_macs=["52:54:00:AA:00:01"],
        )
        code, output = site.run("enroll")
        assert code == 0, output
        record = site.record("alpha")
        assert record["pxe_macs"] == ["52:54:00:aa:00:01"]
        assert "fault" not in record


def test_two_nodes_with_one_network_card_are_refused(site: Site) -> None:
    with light_bmc() as first, light_bmc() as second:
        site.add("alpha", first, pxe_macs=["52:54:00:aa:00:01"])
        site.add("beta", second, pxe_macs=["52:54:00:aa:00:01"])
        assert site.run("enroll", "--limit", "alpha")[0] == 0
        code, _ = site.run("enroll", "--limit", "beta")
        assert code != 0
        assert site.record("beta")["fault"]["code"] == "NODE_DUPLICATE"


@pytest.mark.parametrize(
    ("variables", "fault"),
    [
        ({"bmc_password": "wrong"}, "BMC_AUTH_FAILED"),
        ({"bmc_ca_path": "/etc/ssl/certs/ca-certificates.crt"}, "BMC_CERTIFICATE_REJECTED"),
        ({"bmc_port": 1}, "BMC_UNREACHABLE"),
        ({"pxe_macs": ["none"]}, "INVALID_INPUT"),
    ],
)
def test_bad_input_is_named_and_the_node_stays_unknown(
    site: Site, variables: dict[str, Any], fault: str
) -> None:
    with light_bmc() as bmc:
        site.add("alpha", bmc, **variables)
        code, output = site.run("enroll")
        assert code != 0
        record = site.record("alpha")
        assert record["fault"]["code"] == fault, output
        assert "phase" not in record
        logins = [entry for entry in bmc.journal() if entry["status"] == 401]
        assert len(logins) == (1 if fault == "BMC_AUTH_FAILED" else 0)


def test_a_missing_state_folder_is_named_before_anything_is_touched(site: Site) -> None:
    with light_bmc() as bmc:
        site.add("alpha", bmc)
        code, output = site.run("power", "-e", "barewright_state_dir=")
        assert code != 0
        assert "barewright_state_dir" in output
        assert bmc.journal() == []


@pytest.mark.parametrize("job", ["inspect", "deploy", "commission", "release"])
def test_a_job_from_the_wrong_phase_asks_no_bmc(site: Site, job: str) -> None:
    with light_bmc() as bmc:
        site.add("alpha", bmc)
        code, output = site.run(job)
        assert code != 0
        assert site.record("alpha")["fault"]["code"] == "PHASE_REFUSED", output
        assert bmc.journal() == []


def test_a_deployed_node_cannot_be_inspected_or_commissioned(site: Site) -> None:
    with light_bmc() as bmc:
        site.add("alpha", bmc)
        for job in ("inspect", "commission"):
            site.set_phase("alpha", "deployed")
            assert site.run(job)[0] != 0
            assert site.record("alpha")["phase"] == "deployed"
        assert bmc.journal() == []


def test_a_damaged_record_stops_a_destructive_job(site: Site) -> None:
    with light_bmc() as bmc:
        site.add("alpha", bmc)
        site.set_phase("alpha", "ready")
        path = site.directory / "state" / "alpha.yml"
        path.write_text("phase: [ready")
        code, output = site.run("release")
        assert code != 0
        assert "STATE_UNUSABLE" in output
        assert path.read_text() == "phase: [ready"
        assert bmc.journal() == []


@pytest.mark.parametrize(
    ("job", "variables", "done"),
    [
        ("release", {}, True),
        ("release", {"release_level": "purge"}, False),
        ("release", {"pool_erase_floor": "purge"}, False),
        ("release", {"admin_erase_floor": "purge"}, False),
        ("commission", {}, True),
        ("commission", {"commission_level": "purge"}, False),
        ("commission", {"commission_minimum": {"disks": 9}}, False),
        ("commission", {"commission_force": True}, False),
    ],
)
def test_a_ready_node_is_left_alone_only_while_it_is_what_was_asked_for(
    site: Site, job: str, variables: dict[str, Any], done: bool
) -> None:
    wipe = {"level": "clear", "purpose": "release", "complete": True}
    with light_bmc() as bmc:
        # no boot server runs: a job that has something to do stops there, before any power
        site.add("alpha", bmc, boot_server_root=str(site.directory / "boot"), **variables)
        site.set_phase("alpha", "ready", wipe=wipe, commission={"minimum_sha256": NO_MINIMUM})
        code, output = site.run(job)
        if done:
            assert (code, changed(output, "alpha")) == (0, 0), output
            assert site.record("alpha")["phase"] == "ready"
        else:
            assert code != 0
            assert site.record("alpha")["fault"]["step"] == "ensure_ramdisk", output
            assert site.record("alpha")["phase"] == {"release": "releasing"}.get(
                job, "commissioning"
            )
        assert bmc.power_effects() == []


def test_a_ready_node_that_is_on_is_released_again(site: Site) -> None:
    wipe = {"level": "clear", "purpose": "release", "complete": True}
    with light_bmc() as bmc:
        site.add("alpha", bmc, boot_server_root=str(site.directory / "boot"))
        assert site.run("power", "-e", "power_state=on")[0] == 0
        site.set_phase("alpha", "ready", wipe=wipe)
        assert site.run("release")[0] != 0
        assert site.record("alpha")["phase"] == "releasing"


@pytest.mark.parametrize(
    ("purpose", "variables", "level"),
    [
        ("commission", {}, "quick"),
        ("commission", {"commission_level": "clear"}, "clear"),
        ("commission", {"pool_erase_floor": "purge"}, "purge"),
        ("commission", {"release_level": "purge"}, "quick"),
        ("release", {}, "clear"),
        ("release", {"release_level": "quick"}, "clear"),
        ("release", {"release_level": "purge", "pool_erase_floor": "clear"}, "purge"),
        ("release", {"admin_erase_floor": "purge"}, "purge"),
        ("release", {"commission_level": "purge"}, "clear"),
    ],
)
def test_the_level_of_a_wipe_is_the_highest_of_request_purpose_and_floors(
    tmp_path: Path, purpose: str, variables: dict[str, str], level: str
) -> None:
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {
            "barewright_state_dir": str(tmp_path / "state"),
            "sanitize_purpose": purpose,
            **variables,
        },
        "tasks": [
            {
                "ansible.builtin.include_role": {
                    "name": "barewright.metal.sanitize",
                    "tasks_from": "level",
                }
            },
            {"ansible.builtin.assert": {"that": f"sanitize_level == '{level}'"}},
        ],
    }
    path = tmp_path / "play.yml"
    path.write_text(yaml.safe_dump([play]), encoding="utf-8")
    done = subprocess.run(
        ["ansible-playbook", path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_power_reads_first_and_sends_once(site: Site) -> None:
    with light_bmc() as bmc:
        site.add("alpha", bmc)
        code, output = site.run("power", "-e", "power_state=on")
        assert (code, changed(output, "alpha")) == (0, 1), output
        code, output = site.run("power", "-e", "power_state=on")
        assert (code, changed(output, "alpha")) == (0, 0), output
        code, output = site.run("power", "-e", "power_state=off", "--check")
        assert (code, changed(output, "alpha")) == (0, 1), output
        assert bmc.power_effects() == ["power: off→on"]


def test_a_step_fails_its_host_when_it_is_run_alone(site: Site) -> None:
    with light_bmc() as bmc:
        site.add("alpha", bmc, bmc_password="wrong")
        code, output = site.run("steps.power_off")
        assert code != 0
        assert "step power_off: BMC_AUTH_FAILED" in output


def test_the_example_site_can_be_read_with_its_documented_password(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("example")
    done = subprocess.run(
        [
            "ansible-inventory",
            "-i",
            "inventories/example",
            "--vault-password-file",
            password,
            "--list",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    site = json.loads(done.stdout)
    nodes = {**site["_meta"]["hostvars"]}
    boot_server = nodes.pop("boot-1.example.com")
    assert boot_server["boot_server_address"] == "198.51.100.2"
    assert set(site["redfish_nodes"]["hosts"]) | set(site["ipmi_nodes"]["hosts"]) == set(nodes)
    for node in nodes.values():
        assert node["vault_bmc_password"]
        assert node["ramdisk_address"]
        assert node["bmc_driver"] == "redfish" or node["pxe_macs"]


def test_the_credentials_of_the_example_site_are_encrypted() -> None:
    path = ROOT / "inventories" / "example" / "group_vars" / "nodes" / "vault.yml"
    assert path.read_text().startswith("$ANSIBLE_VAULT;1.1;AES256")
