# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Programs that outlive their starter, and are stopped by exactly their pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles.boot_server.programs import FILES, load

keep_process = load("keep_process")


class Keeper:
    """keep_process.py on one pid file."""

    def __init__(self, directory: Path) -> None:
        self.pid_file = directory / "pid"
        self.log = directory / "log"

    def run(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(FILES / "keep_process.py"), verb]
        files = [f"--pid-file={self.pid_file}", f"--log={self.log}"]
        return subprocess.run(
            [*command, *files, *arguments], text=True, capture_output=True, timeout=30
        )

    def answer(self, verb: str, *arguments: str) -> Any:
        done = self.run(verb, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    found = Keeper(tmp_path)
    yield found
    found.run("stop")


def gone(pid: int, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while keep_process.start_ticks(pid) is not None:
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_second_start_changes_nothing(keeper: Keeper) -> None:
    first = keeper.answer("start", "--", "sleep", "60")
    assert (first["changed"], first["action"]) == (True, "start")
    second = keeper.answer("start", "--", "sleep", "60")
    assert second == {"changed": False, "action": "none", "pid": first["pid"]}


def test_changed_command_or_file_restarts(keeper: Keeper, tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.write_text("1")
    start = ["start", f"--fingerprint-file={conf}", "--", "sleep"]
    first = keeper.answer(*start, "60")
    conf.write_text("2")
    assert keeper.answer(start[0], "--plan", *start[1:], "60") == {
        "changed": True,
        "action": "restart",
        "pid": first["pid"],
    }
    second = keeper.answer(*start, "60")
    assert second["action"] == "restart"
    assert gone(first["pid"])
    assert keeper.answer(*start, "61")["action"] == "restart"


def test_program_has_a_session_of_its_own_and_its_output_in_the_log(keeper: Keeper) -> None:
    script = "echo out; echo err >&2; exec sleep 60"
    pid = keeper.answer("start", "--", "sh", "-c", script)["pid"]
    assert os.getsid(pid) != os.getsid(0)
    assert keeper.log.read_text() == "out\nerr\n"


def test_program_that_ends_at_once_is_a_failure_with_its_words(keeper: Keeper) -> None:
    keeper.log.write_text("of an earlier start\n")
    done = keeper.run("start", "--", "sh", "-c", "echo port is taken; exit 2")
    assert done.returncode == 1
    assert "port is taken" in done.stderr
    assert "earlier" not in done.stderr
    assert not keeper.pid_file.exists()
    assert "No such file" in keeper.run("start", "--", "/does/not/exist").stderr


def test_stop_ends_the_program_even_when_it_does_not_want_to(keeper: Keeper) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.2; done"
    pid = keeper.answer("start", "--", "sh", "-c", script)["pid"]
    answer = keeper.answer("stop", "--timeout-seconds=1")
    assert answer == {"changed": True, "action": "stop", "pid": None}
    assert gone(pid)
    assert keeper.answer("stop")["changed"] is False


def test_stop_leaves_another_process_with_the_same_pid_alone(keeper: Keeper) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        known = {"start_ticks": 1, "boot_id": keep_process.boot_id(), "fingerprint": "x"}
        keeper.pid_file.write_text(json.dumps({"pid": stranger.pid, **known}))
        assert keeper.answer("stop")["changed"] is False
        keep_process.stop({"pid": stranger.pid, **known}, 1.0)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_kept_program_comes_back_and_ends_with_its_keeper(keeper: Keeper, tmp_path: Path) -> None:
    # The program writes its own pid before it becomes a plain sleep.
    script = f"echo $$ > {tmp_path}/child; exec sleep 60"
    pid = keeper.answer("start", "--respawn", "--", "sh", "-c", script)["pid"]
    child = tmp_path / "child"
    first = int(child.read_text())
    assert first != pid
    os.kill(first, signal.SIGTERM)
    end = time.monotonic() + 5
    while int(child.read_text() or 0) in (0, first) and time.monotonic() < end:
        time.sleep(0.05)
    second = int(child.read_text())
    assert second != first
    keeper.answer("stop")
    assert gone(pid)
    assert gone(second)


def test_program_ends_when_its_keeper_is_killed(keeper: Keeper, tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/child; exec sleep 60"
    pid = keeper.answer("start", "--respawn", "--", "sh", "-c", script)["pid"]
    child = int((tmp_path / "child").read_text())
    os.kill(pid, signal.SIGKILL)
    assert gone(child)


def test_program_that_never_starts_is_not_kept(keeper: Keeper) -> None:
    done = keeper.run("start", "--respawn", "--", "sh", "-c", "echo no; exit 3")
    assert (done.returncode, "no" in done.stderr) == (1, True)


def test_name_of_a_process_may_hold_anything(tmp_path: Path) -> None:
    odd = tmp_path / "a) Z 1 (b"
    odd.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(odd), "60"])
    try:
        assert keep_process.start_ticks(process.pid) is not None
    finally:
        process.kill()
        process.wait()
    assert keep_process.start_ticks(process.pid) is None
