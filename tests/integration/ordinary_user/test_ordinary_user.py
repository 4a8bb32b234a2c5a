# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Nothing but the installation of Debian packages needs root."""

from __future__ import annotations

import re

from tests.integration.ordinary_user.conftest import OrdinaryUser

RACK = """
name: ordinary
servers:
  - name: alpha
    kind: light
    bmc: {address: 10.77.1.1, username: admin, password: Rack-123, protocols: [redfish, ipmi]}
"""


def test_deps_has_nothing_to_do_where_all_is_installed(ordinary_user: OrdinaryUser) -> None:
    done = ordinary_user.run("make deps")
    assert done.stdout == ""


def test_deps_says_which_package_is_missing_and_why_and_what_root_has_to_run(
    ordinary_user: OrdinaryUser,
) -> None:
    # A package that exists and that nobody has on such a machine.
    packages = ordinary_user.clone / "tools/debian-packages.txt"
    before = packages.read_text(encoding="utf-8")
    packages.write_text(before + "kernel-wedge    stands for a package that is missing\n")
    try:
        done = ordinary_user.run("make deps", check=False)
    finally:
        packages.write_text(before)
    assert done.returncode != 0
    assert re.search(r"kernel-wedge +stands for a package that is missing", done.stdout)
    assert "As root, run:" in done.stdout
    assert "apt-get install --no-install-recommends kernel-wedge" in done.stdout


def test_the_rack_comes_up_and_goes_down_again_as_an_ordinary_user(
    ordinary_user: OrdinaryUser,
) -> None:
    (ordinary_user.home / "rack.yml").write_text(RACK, encoding="utf-8")
    rack = ".cache/venv/bin/python -m virtual_rack"
    # One shell: the mount namespace with the open /dev/net/tun is the same for all of it.
    done = ordinary_user.run(
        f"""
        set -e
        {rack} up --dir ~/rack ~/rack.yml
        {rack} status --dir ~/rack
        {rack} exec --dir ~/rack -- ipmitool -I lanplus -C 3 -H 10.77.1.1 \\
            -U admin -P Rack-123 chassis power on
        {rack} exec --dir ~/rack -- ipmitool -I lanplus -C 3 -H 10.77.1.1 \\
            -U admin -P Rack-123 chassis power status
        {rack} down --dir ~/rack
        """
    )
    assert "Chassis Power is on" in done.stdout
    assert ordinary_user.processes() == []
