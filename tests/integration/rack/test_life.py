# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A rack comes up, and however it ends, nothing of it is left and the next one comes up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from tests.integration.rack.conftest import (
    PATIENCE_SECONDS,
    ROOT,
    Traces,
    cli,
    is_on,
    make_rack,
    power,
    process_of,
    spec_document,
    wait_until,
)
from virtual_rack.rack import Rack, RackError


@pytest.fixture
def spec_file(directory: Path) -> Path:
    file = directory.parent / "rack.yml"
    file.write_text(yaml.safe_dump(spec_document()), encoding="utf-8")
    return file


def pid_of(rack: Rack) -> int:
    supervisor = rack.supervisor()
    assert supervisor is not None
    return supervisor.pid


def test_the_command_line_brings_a_rack_up_shows_it_and_takes_it_down(
    directory: Path, spec_file: Path
) -> None:
    said = cli("up", spec_file, "--dir", directory).stdout
    assert "rack test is up" in said
    rack = Rack.at(directory)
    traces = Traces(rack)
    status = json.loads(cli("status", "--json", "--dir", directory).stdout)
    assert status["up"]
    assert status["servers"][0]["bmc_running"]
    assert status["servers"][0]["power"] == "off"
    again = cli("up", spec_file, "--dir", directory, check=False)
    assert again.returncode == 1
    assert "is up" in again.stderr
    assert "take it down first" in again.stderr
    cli("down", "--dir", directory)
    traces.gone()
    assert not rack.layout.record.exists()
    down = cli("status", "--dir", directory, check=False)
    assert (down.returncode, down.stdout) == (3, "rack test is down\n")
    # Down stays down, without complaint.
    cli("down", "--dir", directory)


@pytest.mark.parametrize("victim", ["supervisor", "starter"])
def test_a_killed_rack_takes_its_running_machines_with_it(directory: Path, victim: str) -> None:
    rack = make_rack(directory)
    rack.up()
    power(rack, "m0", "on")
    background = rack.popen(["sh", "-c", "sleep 1000 & sleep 1000 & echo started; wait"])
    wait_until(lambda: Traces(rack).processes >= 6, "QEMU and the background processes run")
    traces = Traces(rack)
    supervisor = pid_of(rack)
    pid = supervisor if victim == "supervisor" else parent_of(supervisor)
    os.kill(pid, signal.SIGKILL)
    background.wait(timeout=15)
    traces.gone()
    # What it left in its directory is known to be stale.
    assert rack.layout.record.exists()
    wait_until(lambda: rack.supervisor() is None, "the supervisor has ended")
    rack.up()
    assert not is_on(rack, "m0")
    rack.down()


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_rack_in_the_foreground_ends_with_its_command(
    directory: Path, spec_file: Path, number: signal.Signals
) -> None:
    argv = [sys.executable, "-m", "virtual_rack", "up", "--foreground", str(spec_file)]
    process = subprocess.Popen(
        [*argv, "--dir", str(directory)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "is up" in process.stdout.readline()
    rack = Rack.at(directory)
    traces = Traces(rack)
    process.send_signal(number)
    code = process.wait(timeout=30)
    process.stdout.close()
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    traces.gone()
    rack.up()
    rack.down()


def test_a_rack_ends_with_the_process_that_it_was_tied_to(directory: Path, spec_file: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as parent:
        cli("up", spec_file, "--dir", directory, "--parent-pid", str(parent.pid))
        rack = Rack.at(directory)
        traces = Traces(rack)
        parent.kill()
    traces.gone()
    assert rack.supervisor() is None


def test_a_rack_whose_starter_is_killed_before_it_is_up_leaves_nothing(
    directory: Path, spec_file: Path
) -> None:
    argv = [sys.executable, "-m", "virtual_rack", "up", str(spec_file), "--dir", str(directory)]
    process = subprocess.Popen(argv, cwd=ROOT)
    log = directory / "servers" / "m0" / "bmc.log"
    wait_until(log.exists, "the BMC is being started")
    process.kill()
    process.wait()
    mine = str(directory).encode()

    def left() -> bool:
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mine in (entry / "cmdline").read_bytes():
                    return True
            except OSError:
                continue
        return False

    wait_until(lambda: not left(), "the supervisor has ended")
    rack = Rack.at(directory)
    rack.up()
    rack.down()


def test_a_bmc_that_dies_takes_its_machine_with_it_and_is_shown(directory: Path) -> None:
    with make_rack(directory, machines=2) as rack:
        power(rack, "m0", "on")
        os.kill(process_of(rack, "virtual_rack.bmc", "--server", "m0"), signal.SIGKILL)
        wait_until(lambda: rack.status()[0].power == "off", "QEMU died with its BMC")
        assert [server.bmc_running for server in rack.status()] == [False, True]
        log = rack.layout.supervisor_log
        wait_until(lambda: "BMC m0 has ended with code -9" in log.read_text(), "it is logged")


def test_a_bmc_that_does_not_start_is_an_error_and_leaves_nothing(directory: Path) -> None:
    rack = make_rack(directory)
    killer = threading.Thread(target=kill_once_seen, args=[f"--server\0m0\0--spec\0{directory}"])
    killer.start()
    with pytest.raises(RackError, match=r"the rack did not start: a BMC ended .*bmc\.log"):
        rack.up()
    killer.join()
    assert rack.supervisor() is None
    rack.up()
    rack.down()


def kill_once_seen(words: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and words.encode() in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
                    return
        time.sleep(0.01)


def test_disks_survive_the_end_of_a_rack_unless_it_is_started_fresh(directory: Path) -> None:
    rack = make_rack(directory)
    with rack:
        rack.disk("m0", 0).open("r+b").write(b"kept")
    with rack:
        assert rack.disk("m0", 0).read_bytes()[:4] == b"kept"
    rack.up(fresh=True)
    assert rack.disk("m0", 0).read_bytes()[:4] == bytes(4)
    rack.down()


def test_hundreds_of_light_machines_come_up_in_one_rack(directory: Path) -> None:
    with make_rack(directory, machines=0, light=300) as rack:
        assert all(server.bmc_running for server in rack.status())
        for server in ("l0", "l299"):
            assert not is_on(rack, server)
        traces = Traces(rack)
        assert traces.processes == 2
    traces.gone()
