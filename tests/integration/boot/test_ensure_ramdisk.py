# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Role ensure_ramdisk against virtual BMCs, light machines and the real receiver."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.boot.receiver_process import ReceiverProcess, receiver_process
from virtual_rack.testing import LightBmc, light_bmcs

PLAYBOOK = Path(__file__).with_name("ensure_ramdisk.yml")


class Site:
    """An inventory of light machines, and how its playbook ends."""

    def __init__(self, directory: Path, receiver: ReceiverProcess) -> None:
        self.directory = directory
        self.receiver = receiver
        self.hosts: dict[str, dict[str, Any]] = {}
        (directory / "outcome").mkdir()

    def add(self, name: str, bmc: LightBmc, **variables: Any) -> None:
        """A node behind a BMC."""
        self.hosts[name] = {
            "bmc_address": bmc.address,
            "bmc_port": bmc.redfish_port,
            "bmc_username": bmc.username,
            "bmc_password": bmc.password,
            "bmc_ca_path": str(bmc.ca_path),
            "pxe_macs": [nic.mac for nic in bmc.machine.hardware().nics],
            "boot_mode": "uefi",
            "ramdisk_address": f"127.0.1.{len(self.hosts) + 1}",
            **variables,
        }

    def run(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """Run the role on all nodes; what each wrote down at its end."""
        inventory = {
            "nodes": {"hosts": self.hosts},
            "site_services": {"hosts": {"localhost": {"ansible_connection": "local"}}},
            "all": {
                "vars": {
                    "barewright_state_dir": str(self.directory / "state"),
                    "boot_server_root": str(self.receiver.root),
                    "outcome_dir": str(self.directory / "outcome"),
                    # A light machine runs no SSH server.
                    "ensure_ramdisk_await_ssh": False,
                    "ensure_ramdisk_timeout_seconds": 30,
                }
            },
        }
        path = self.directory / "hosts.yml"
        path.write_text(yaml.safe_dump(inventory))
        for old in (self.directory / "outcome").iterdir():
            old.unlink()
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("ansible-playbook")),
                *("--inventory", str(path), *arguments, str(PLAYBOOK)),
            ],
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            text=True,
            capture_output=True,
            timeout=300,
        )
        self.output = done.stdout + done.stderr
        assert done.returncode == 0, self.output
        return {
            path.stem: json.loads(path.read_text())
            for path in (self.directory / "outcome").glob("*.json")
        }

    def record(self, name: str) -> Any:
        return yaml.safe_load((self.directory / "state" / f"{name}.yml").read_text())

    def gate(self) -> Any:
        return json.loads((self.receiver.root / "run/gate.json").read_text())["entries"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with receiver_process(tmp_path / "boot") as receiver:
        yield Site(tmp_path, receiver)


def test_nodes_boot_side_by_side_and_each_has_its_own_pins(site: Site) -> None:
    light = {"boot_seconds": 0.2, "boot_server": site.receiver.base_url}
    with light_bmcs(2, light=light) as (alpha, beta):
        beta.machine.power_on()
        site.add("alpha", alpha)
        site.add("beta", beta)
        assert site.run() == {"alpha": {"up": True}, "beta": {"up": True}}, site.output
        assert alpha.power_effects() == ["power: off→on"]
        assert beta.power_effects()[-2:] == ["power: on→off", "power: off→on"]
        for name, bmc in (("alpha", alpha), ("beta", beta)):
            booted = bmc.machine.boot()
            assert booted.stage == "checked_in"
            assert booted.checkin is not None
            assert booted.answer is not None
            record = site.record(name)
            assert record["pins"]["ramdisk_host_key"] == booted.checkin["ssh_host_key"]
            assert record["pins"]["ramdisk_identity_key"] == booted.checkin["identity_key"]
            assert record["boot"]["window_id"] == booted.answer["window_id"]
            known_hosts = site.directory / "state/known_hosts" / f"{name}.ramdisk"
            assert known_hosts.read_text() == (f"{name}.ramdisk {booted.checkin['ssh_host_key']}\n")
            assert len(booted.answer["authorized_keys"]) == 1
            # Nothing is left open behind.
            assert site.gate()[name]["open"] is False
            overrides = [effect for effect in bmc.effects() if effect.startswith("boot override: ")]
            assert overrides[0] == "boot override: pxe continuous uefi"
            assert overrides[-1].startswith("boot override: none")
        key = site.directory / "state/ssh/id_ed25519"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert [path.name for path in key.parent.iterdir()] == ["id_ed25519"]


def test_silent_node_fails_with_the_end_of_its_console_and_the_other_goes_on(site: Site) -> None:
    light = {"boot_seconds": 0.2, "boot_server": site.receiver.base_url}
    console = site.directory / "console.log"
    console.write_text(
        "old line\n" * 100
        + "\x1b[2J\x1b[01;01HLinux version 6\n"
        + "Command line: barewright.url=http://x barewright.tok\x1b[0men=bwt_SECRET-one BOOTIF=01\n"
        + "tried bwt_SECRET-two\nKernel panic - not syncing\n"
    )
    silent = {**light, "fate": "silent"}
    with light_bmcs(1, light=light) as (alpha,), light_bmcs(1, light=silent) as (beta,):
        site.add("alpha", alpha)
        site.add("beta", beta, console_log=str(console), ensure_ramdisk_timeout_seconds=4)
        # Both specs are numbered from the start.
        site.hosts["beta"]["pxe_macs"] = ["52:54:00:77:99:01"]
        ended = site.run()
        assert ended["alpha"] == {"up": True}
        fault = ended["beta"]["fault"]
        assert fault["code"] == "RAMDISK_TIMEOUT"
        assert "Kernel panic - not syncing" in fault["found"]
        assert fault["details"]["console_tail"][-2:] == [
            "tried REDACTED",
            "Kernel panic - not syncing",
        ]
        assert "SECRET" not in site.output + json.dumps(ended)
        assert "barewright.token=REDACTED BOOTIF=01" in fault["found"]
        assert site.gate()["beta"]["open"] is False


def test_check_mode_sends_no_power_command_and_opens_no_window(site: Site) -> None:
    with light_bmcs(1) as (alpha,):
        alpha.machine.power_on()
        site.add("alpha", alpha)
        before = alpha.power_effects()
        assert site.run("--check", "--diff") == {"alpha": {"up": False}}
        assert "What follows in the ramdisk is predicted" in " ".join(site.output.split())
        assert alpha.power_effects() == before
        assert alpha.machine.power_state() == "on"
        assert site.gate() == {}
        assert not (site.directory / "state").exists()


def test_node_without_a_card_to_boot_from_is_refused_before_anything(site: Site) -> None:
    with light_bmcs(1) as (alpha,):
        site.add("alpha", alpha, pxe_macs=[])
        assert site.run()["alpha"]["fault"]["code"] == "PXE_MAC_UNKNOWN"
        assert alpha.journal() == []


def test_secure_boot_is_refused_before_anything_is_powered(site: Site) -> None:
    with light_bmcs(1, firmware="uefi", secure_boot=True) as (alpha,):
        site.add("alpha", alpha)
        fault = site.run()["alpha"]["fault"]
        assert fault["code"] == "SECURE_BOOT_UNSUPPORTED"
        assert "not supported yet" in fault["wanted"]
        assert alpha.power_effects() == []


def test_boot_server_that_is_down_costs_no_running_machine(tmp_path: Path) -> None:
    with receiver_process(tmp_path / "boot") as receiver:
        site = Site(tmp_path, receiver)
    with light_bmcs(1) as (alpha,):
        alpha.machine.power_on()
        site.add("alpha", alpha, ensure_ramdisk_gate_timeout_seconds=1)
        assert site.run()["alpha"]["fault"]["code"] == "BOOT_SERVER_DOWN"
        assert alpha.machine.power_state() == "on"


def test_cleanup_of_a_node_that_has_nothing_open_changes_nothing(site: Site) -> None:
    with light_bmcs(1) as (alpha,):
        site.add("alpha", alpha)
        site.run("--extra-vars", "entry_point=boot_cleanup")
        assert "changed=0" in site.output
        assert alpha.power_effects() == []
