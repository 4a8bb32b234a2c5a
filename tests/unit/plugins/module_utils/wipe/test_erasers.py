# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The commands of disks that no test machine has, against tools constructed from their manuals.

The scripts stand for hdparm 9.65, nvme-cli 2.13 and sg3-utils 1.48; they write down how they were
called and answer in the tools' form. What the commands do to real media is not shown here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ansible_collections.barewright.metal.plugins.module_utils.disks import Disk
from ansible_collections.barewright.metal.plugins.module_utils.wipe import erasers
from ansible_collections.barewright.metal.plugins.module_utils.wipe.erasers import (
    Job,
    Pace,
    erase,
    estimate_seconds,
    sanitize_ended,
)
from ansible_collections.barewright.metal.plugins.module_utils.wipe.features import (
    AtaFeatures,
    Features,
)
from ansible_collections.barewright.metal.plugins.module_utils.wipe.methods import BY_NAME, METHODS
from ansible_collections.barewright.metal.plugins.module_utils.wipe.reasons import DiskRefused
from ansible_collections.barewright.metal.plugins.module_utils.wipe.tools import (
    SEARCH_PATH,
    Tools,
)


@dataclass
class Watched:
    """A watch that writes down what it is told."""

    allowed: list[float] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    most: float = 60.0

    def allow(self, seconds: float) -> float:
        self.allowed.append(seconds)
        return min(seconds, self.most)

    def advance(self, done_bytes: int) -> None:
        self.done.append(done_bytes)


class Bench:
    """A disk on a bus, and tools that are scripts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.log = folder / "calls"
        self.watch = Watched()

    def tool(self, name: str, script: str) -> None:
        path = self._folder / name
        path.write_text(f'#!/bin/sh\necho "$(basename "$0") $*" >> {self.log}\n{script}\n')
        path.chmod(0o755)

    def answer(self, name: str, content: bytes) -> str:
        """A file that a script can ``cat``."""
        path = self._folder / f"{name}.bin"
        path.write_bytes(content)
        return str(path)

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def erase(self, method: str, bus: str = "sata", features: Features | None = None) -> None:
        disk = Disk(
            name="nvme0n1" if bus == "nvme" else "sda",
            path="/dev/nvme0n1" if bus == "nvme" else "/dev/sda",
            bus=bus,
            size_bytes=1 << 40,
            logical_sector_bytes=512,
            physical_sector_bytes=512,
            read_only=False,
            controllers=("nvme0",) if bus == "nvme" else (),
        )
        tools = Tools(f"{self._folder}:{SEARCH_PATH}")
        erase(Job(disk, features or Features(), BY_NAME[method], tools, self.watch))


@pytest.fixture
def bench(tmp_path):
    folder = tmp_path / "tools"
    folder.mkdir()
    return Bench(folder)


def ata(status: int) -> Features:
    words = [0] * 256
    words[82], words[89], words[90], words[128] = 2, 60, 1, status
    return Features(ata=AtaFeatures.parse(struct.pack("<256H", *words)))


def identify_script(status: int) -> str:
    """``hdparm --Istdout`` for a security status word."""
    words = ["0000"] * 256
    words[82], words[128] = "0002", f"{status:04x}"
    lines = "\n".join(" ".join(words[start : start + 8]) for start in range(0, 256, 8))
    return f"cat <<'END'\n\n/dev/sda:\n{lines}\nEND"


def test_secure_erase_sets_a_password_and_erases_with_it(bench):
    bench.tool("hdparm", identify_script(0x21))
    bench.erase("ata_secure_erase_enhanced", features=ata(0x21))
    assert bench.calls == [
        "hdparm --user-master u --security-set-pass barewright /dev/sda",
        "hdparm --user-master u --security-erase-enhanced barewright /dev/sda",
        "hdparm --Istdout /dev/sda",
    ]


def test_a_failed_secure_erase_leaves_no_locked_disk(bench):
    bench.tool(
        "hdparm",
        f'case "$*" in *erase*) echo "SG_IO: bad/missing sense data" >&2; exit 5;;\n'
        f"*Istdout*) {identify_script(0x27)}\n;; esac",
    )
    with pytest.raises(DiskRefused) as caught:
        bench.erase("ata_secure_erase", features=ata(0x21))
    assert caught.value.code == "METHOD_FAILED"
    assert "bad/missing sense data" in caught.value.text
    assert bench.calls[-2:] == [
        "hdparm --user-master u --security-unlock barewright /dev/sda",
        "hdparm --user-master u --security-disable barewright /dev/sda",
    ]


@pytest.mark.parametrize(("status", "code"), [(0x29, "FROZEN"), (0x27, "LOCKED"), (0x23, "LOCKED")])
def test_frozen_and_locked_disks_are_told_apart_and_left_alone(bench, status, code):
    bench.tool("hdparm", "exit 0")
    with pytest.raises(DiskRefused) as caught:
        bench.erase("ata_secure_erase_enhanced", features=ata(status))
    assert caught.value.code == code
    assert bench.calls == []


def test_secure_erase_gets_the_time_that_the_disk_asks_for(bench):
    bench.tool("hdparm", identify_script(0x21))
    bench.erase("ata_secure_erase", features=ata(0x21))
    assert bench.watch.allowed[0] == estimate_seconds(1 << 40, 60 * 120)


def test_ata_sanitize_is_waited_for(bench):
    bench.tool(
        "hdparm",
        f'n=$(grep -c status "{bench.log}")\n'
        'case "$*" in *--sanitize-status*) echo "Sanitize status:"\n'
        'if [ "$n" -lt 3 ]; then echo "    State:    SD2 Sanitize operation In Process"\n'
        'else echo "    State:    SD0 Sanitize Idle"; fi;; esac',
    )
    bench.erase("ata_sanitize_block")
    assert bench.calls[0] == ("hdparm --yes-i-know-what-i-am-doing --sanitize-block-erase /dev/sda")
    assert bench.calls.count("hdparm --sanitize-status /dev/sda") == 3


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        ("SD0 Sanitize Idle", True),
        ("SD4 Sanitize Operation succeeded", True),
        ("SD2 Sanitize operation In Process", False),
    ],
)
def test_states_of_ata_sanitize(state, ended):
    assert sanitize_ended(f"/dev/sda:\nSanitize status:\n    State:    {state}\n") is ended


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("    State:    SD1 Sanitize Frozen", "FROZEN"),
        ("    State:    SD3 Sanitize Operation Failed", "METHOD_FAILED"),
        ("SANITIZE feature set is not supported", "METHOD_FAILED"),
        ("", "METHOD_FAILED"),
    ],
)
def test_an_ata_sanitize_that_cannot_end_well_is_given_up(text, code):
    with pytest.raises(DiskRefused) as caught:
        sanitize_ended(text)
    assert caught.value.code == code


def sanitize_log(status: int) -> bytes:
    return struct.pack("<HHIIII", 0x4000, status, 0, 100, 200, 300).ljust(512, b"\0")


def test_nvme_sanitize_is_waited_for_and_its_estimate_is_believed(bench):
    running, done = bench.answer("running", sanitize_log(2)), bench.answer("done", sanitize_log(1))
    bench.tool(
        "nvme",
        f'case "$1" in get-log) if [ $(grep -c get-log {bench.log}) -lt 3 ]; '
        f"then cat {running}; else cat {done}; fi;; esac",
    )
    bench.erase("nvme_sanitize_block", "nvme")
    assert "nvme sanitize /dev/nvme0 --sanact=2" in bench.calls
    assert bench.watch.allowed == [estimate_seconds(1 << 40, 200)]
    assert bench.watch.done == [1 << 38]


def test_an_nvme_sanitize_that_failed_is_named(bench):
    log = bench.answer("failed", sanitize_log(3))
    bench.tool("nvme", f'case "$1" in get-log) cat {log};; esac')
    with pytest.raises(DiskRefused) as caught:
        bench.erase("nvme_sanitize_crypto", "nvme")
    assert caught.value.code == "METHOD_FAILED"


def test_a_sanitize_that_never_ends_is_given_up_at_its_limit(bench):
    bench.watch.most = 1.0
    log = bench.answer("running", sanitize_log(2))
    bench.tool("nvme", f'case "$1" in get-log) cat {log};; esac')
    with pytest.raises(DiskRefused) as caught:
        bench.erase("nvme_sanitize_overwrite", "nvme")
    assert caught.value.code == "TIMED_OUT"
    assert "nvme sanitize /dev/nvme0 --sanact=3 --owpass=1 --ovrpat=0" in bench.calls


@pytest.mark.parametrize(
    ("method", "erase_setting"), [("nvme_format_user_data", 1), ("nvme_format_crypto", 2)]
)
def test_nvme_format_asks_for_an_erase_and_keeps_the_format(bench, method, erase_setting):
    namespace = bytearray(4096)
    namespace[26], namespace[29] = 4, 0
    answer = bench.answer("id-ns", bytes(namespace))
    bench.tool("nvme", f'case "$1" in id-ns) cat {answer};; esac')
    bench.erase(method, "nvme")
    arguments = bench.calls[-1].split()
    assert arguments[:3] == ["nvme", "format", "/dev/nvme0n1"]
    assert f"--ses={erase_setting}" in arguments
    assert "--lbaf=4" in arguments


def test_scsi_sanitize_is_waited_for(bench):
    bench.tool("sg_sanitize", "exit 0")
    bench.tool("sg_turs", f"[ $(grep -c turs {bench.log}) -ge 3 ] || exit 2")
    bench.erase("scsi_sanitize_overwrite", "scsi")
    assert bench.calls[0] == "sg_sanitize --quick --early --overwrite --zero /dev/sda"
    assert bench.calls[1:] == ["sg_turs /dev/sda"] * 3


def test_a_missing_tool_is_a_failed_method(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    outcome = Tools(str(empty)).run(["sg_sanitize"], 5.0)
    assert not outcome.succeeded
    assert "not installed" in str(outcome)


def test_the_limit_of_an_overwrite_follows_its_speed(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    watch = Watched()
    pace = Pace(watch, 1000)
    now[0] = 10.0
    pace(100)
    assert watch.allowed[-1] == pytest.approx(90 * 2 + 600)
    now[0] = 20.0
    pace(1000)
    assert watch.allowed[-1] == pytest.approx(600)


def test_every_method_has_a_command():
    assert set(erasers._ERASERS) == set(BY_NAME) - {"metadata"}
    assert {method.tool for method in METHODS} == {"nvme", "hdparm", "sg_sanitize", "kernel"}
