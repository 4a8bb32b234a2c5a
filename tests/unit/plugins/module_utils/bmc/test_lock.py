# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from ansible_collections.barewright.metal.plugins.module_utils.bmc.lock import (
    BmcLock,
    default_lock_dir,
)
from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault


def hold(folder: str, notes: str, number: int) -> None:
    """Hold the lock for a moment and write down when."""
    with BmcLock(folder, "bmc-1", Deadline(20)):
        started = time.monotonic()
        time.sleep(0.1)
        ended = time.monotonic()
    Path(notes, str(number)).write_text(f"{started} {ended}")


def test_tasks_of_several_processes_never_overlap_on_one_bmc(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=hold, args=(str(tmp_path / "locks"), str(notes), number))
        for number in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    spans = sorted(tuple(map(float, each.read_text().split())) for each in notes.iterdir())
    assert len(spans) == 3
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))


def test_a_lock_that_is_kept_ends_as_a_fault_at_the_deadline(tmp_path: Path) -> None:
    folder = str(tmp_path)
    with BmcLock(folder, "bmc-1", Deadline(5)):
        with pytest.raises(Fault) as caught, BmcLock(folder, "BMC-1", Deadline(0.3)):
            pass
        assert caught.value.code == "BMC_LOCKED"
        with BmcLock(folder, "bmc-2", Deadline(0.3)):
            pass


def test_the_lock_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), BmcLock(str(tmp_path), "bmc-1", Deadline(5)):
        raise RuntimeError
    with BmcLock(str(tmp_path), "bmc-1", Deadline(0.2)):
        pass


def test_commands_are_spaced_across_tasks(tmp_path: Path) -> None:
    with BmcLock(str(tmp_path), "bmc-1", Deadline(5)) as lock:
        lock.wait_turn(0.4)
    started = time.monotonic()
    with BmcLock(str(tmp_path), "bmc-1", Deadline(5)) as lock:
        lock.wait_turn(0.4)
    assert time.monotonic() - started >= 0.35


def test_a_time_from_before_the_controller_was_restarted_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "bmc-1.lock").write_text("99999999999.0\n")
    started = time.monotonic()
    with BmcLock(str(tmp_path), "bmc-1", Deadline(5)) as lock:
        lock.wait_turn(2.0)
    assert time.monotonic() - started < 1.0


def test_addresses_that_look_alike_in_a_file_name_have_different_locks(tmp_path: Path) -> None:
    with (
        BmcLock(str(tmp_path), "fd00::1", Deadline(1)),
        BmcLock(str(tmp_path), "fd00:_1", Deadline(1)),
    ):
        assert len(os.listdir(tmp_path)) == 2


def test_a_folder_that_cannot_be_made_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Fault) as caught, BmcLock(str(tmp_path / "file"), "bmc-1", Deadline(1)):
        pass
    assert caught.value.code == "LOCK_DIR_UNUSABLE"


def test_the_default_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/tmp/cache-of-user")
    assert default_lock_dir() == "/var/tmp/cache-of-user/barewright/bmc"
