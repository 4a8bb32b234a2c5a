# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A rack of an ordinary user is the same rack.

Each user exists in a mount namespace of the test only, which also gives it a /dev/net/tun of the
wanted mode and a way to this checkout, wherever that lies.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.rack import boot_sectors
from tests.integration.rack.conftest import (
    CREDENTIALS,
    PATIENCE_SECONDS,
    ROOT,
    Traces,
    spec_document,
    wait_until,
)
from virtual_rack.rack import Rack

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can be somebody else; all else here runs as this user"
)

# Stands in for the user of a fresh Debian, whom useradd gives such a range.
SUBORDINATE = "61234"
# Has no range, no home and no shell.
NOBODY = "65534"

AS_USER = """
set -e
place=$1 user=$2
shift 2
mount --bind "$place/tun" /dev/net/tun
for file in passwd subuid subgid; do mount --bind "$place/$file" "/etc/$file"; done
mount --bind "$CHECKOUT" "$place/checkout"
mount --bind "$VENV" "$place/venv"
cd "$place"
exec setpriv --reuid "$user" --regid "$user" --clear-groups \
    env -i HOME="$place/home" PATH=/usr/bin:/bin PYTHONPATH="$place/checkout" "$@"
"""


@dataclass(frozen=True)
class OrdinaryUser:
    uid: str
    place: Path

    @property
    def directory(self) -> Path:
        return self.place / "home" / "rack"

    def rack(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `python -m virtual_rack …` on the rack of this user."""
        command, *rest = arguments
        argv = ["unshare", "--mount", "sh", "-c", AS_USER, "sh", str(self.place), self.uid]
        argv += [str(self.place / "venv/bin/python"), "-m", "virtual_rack", command]
        return subprocess.run(
            [*argv, "--dir", str(self.directory), *rest],
            env={**os.environ, "CHECKOUT": str(ROOT), "VENV": sys.prefix},
            capture_output=True,
            text=True,
            check=check,
            timeout=2 * PATIENCE_SECONDS,
        )

    def power(self, *command: str) -> str:
        argv = ["ipmitool", "-I", "lanplus", "-C", "17", "-H", "10.77.1.1"]
        argv += ["-U", CREDENTIALS["username"], "-P", CREDENTIALS["password"]]
        return self.rack("exec", "--", *argv, "chassis", "power", *command).stdout


def make_user(place: Path, uid: str, *, tun_mode: int) -> OrdinaryUser:
    place.chmod(0o755)
    for name in ("checkout", "venv", "home"):
        (place / name).mkdir()
    os.chown(place / "home", int(uid), int(uid))
    os.mknod(place / "tun", stat.S_IFCHR | tun_mode, os.makedev(10, 200))
    (place / "tun").chmod(tun_mode)
    account = f"rackuser:x:{SUBORDINATE}:{SUBORDINATE}::/nonexistent:/bin/sh\n"
    passwd = Path("/etc/passwd").read_text(encoding="utf-8") + account
    (place / "passwd").write_text(passwd, encoding="utf-8")
    for name in ("subuid", "subgid"):
        (place / name).write_text("rackuser:700000:65536\n", encoding="utf-8")
    (place / "rack.yml").write_text(yaml.safe_dump(spec_document()), encoding="utf-8")
    return OrdinaryUser(uid, place)


@pytest.fixture(params=[SUBORDINATE, NOBODY], ids=["with subordinate ids", "without"])
def user(directory: Path, request: pytest.FixtureRequest) -> Iterator[OrdinaryUser]:
    user = make_user(directory.parent, request.param, tun_mode=0o666)
    yield user
    user.rack("down")


def test_an_ordinary_user_has_the_same_rack(user: OrdinaryUser) -> None:
    user.rack("up", str(user.place / "rack.yml"))
    # Root reads the disks and logs of any user's rack from outside.
    rack = Rack.at(user.directory)
    traces = Traces(rack)
    boot_sectors.install(boot_sectors.STAYS, rack.disk("m0", 0))
    user.power("on")
    wait_until(lambda: "{" in rack.console("m0"), "the system on the disk runs")
    assert "m0                   on" in user.rack("status").stdout
    qemu = [line for line in traces.left() if "qemu-system" in line]
    assert len(qemu) == 1
    assert os.stat(f"/proc/{qemu[0].partition(':')[0]}").st_uid == int(user.uid)
    links = user.rack("exec", "--", "/usr/sbin/ip", "-br", "link").stdout
    assert "tap0n0" in links
    user.rack("down")
    traces.gone()
    # And once more, from the state that the first left.
    user.rack("up", str(user.place / "rack.yml"))
    assert user.power("status") == "Chassis Power is off\n"


def test_more_ids_exist_where_the_user_has_a_range(user: OrdinaryUser) -> None:
    user.rack("up", str(user.place / "rack.yml"))
    mapped = user.rack("exec", "--", "cat", "/proc/self/uid_map").stdout.split()
    ranges: dict[str, Any] = {
        SUBORDINATE: ["0", SUBORDINATE, "1", "1", "700000", "65535"],
        NOBODY: ["0", NOBODY, "1"],
    }
    assert mapped == ranges[user.uid]


def test_a_rack_of_another_user_is_left_alone(user: OrdinaryUser) -> None:
    user.rack("up", str(user.place / "rack.yml"))
    stranger = OrdinaryUser("61999", user.place)
    done = stranger.rack("down", check=False)
    assert done.returncode == 1
    assert "spec.yml: Permission denied" in done.stderr
    assert "Traceback" not in done.stderr
    assert user.rack("status").returncode == 0


def test_a_closed_tun_device_is_said_before_anything_is_started(directory: Path) -> None:
    user = make_user(directory.parent, NOBODY, tun_mode=0o600)
    done = user.rack("up", str(user.place / "rack.yml"), check=False)
    assert done.returncode == 1
    assert "/dev/net/tun may not be opened by this user" in done.stderr
    assert "sudo chmod 0666 /dev/net/tun" in done.stderr
    assert not user.directory.exists()


def test_light_machines_need_no_tun_device(directory: Path) -> None:
    user = make_user(directory.parent, NOBODY, tun_mode=0o600)
    document = yaml.safe_dump(spec_document(machines=0, light=1))
    (user.place / "rack.yml").write_text(document, encoding="utf-8")
    assert "rack test is up" in user.rack("up", str(user.place / "rack.yml")).stdout
    user.rack("down")
