# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The boot server's systemd units, as far as they can be judged without running systemd."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = {
    "barewright-boot-receiver.service": "",
    "barewright-dnsmasq.service": "CAP_NET_ADMIN CAP_NET_BIND_SERVICE CAP_NET_RAW",
    "barewright-tftp.service": "CAP_NET_BIND_SERVICE",
}


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("units")
    subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible-playbook")),
            *("--inventory", "localhost,", "--connection", "local"),
            *("--extra-vars", f"units_dir={folder}"),
            str(Path(__file__).with_name("units.yml")),
        ],
        env={**os.environ, "ANSIBLE_PYTHON_INTERPRETER": sys.executable},
        check=True,
        capture_output=True,
        timeout=120,
    )
    return folder


def test_units_run_without_root_and_with_the_capabilities_they_need(units: Path) -> None:
    assert {path.name for path in units.iterdir()} == set(UNITS)
    for name, capabilities in UNITS.items():
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
        unit.read(units / name)
        service = unit["Service"]
        assert service["User"] == "barewright-boot"
        assert service["CapabilityBoundingSet"] == capabilities
        assert service["NoNewPrivileges"] == "true"
        assert service["ProtectSystem"] == "strict"
        writable = service["ReadWritePaths"].split()
        # Who may boot, and what is served, is out of their reach.
        for fixed in ("bin", "entries", "etc", "files", "loaders"):
            assert f"/var/lib/barewright/boot/{fixed}" not in writable


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
def test_systemd_understands_the_units(units: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(units.iterdir()))],
        text=True,
        capture_output=True,
        timeout=60,
    )
    # Not installed there: the receiver's program, which the role copies.
    said = [
        line
        for line in done.stderr.splitlines()
        if "barewright" in line and "boot_receiver.py" not in line
    ]
    assert said == []
