# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import os
import signal
import subprocess
import time

from ansible_collections.barewright.metal.tests.unit.plugins.image.rig import (
    MIB,
    sgdisk_problems,
    sha256,
)

DISK = {"serial_number": "NAMESPACE-1"}


def image(server, **options):
    return {
        "url": f"{server.base}/image.raw",
        "sha256": sha256(server.manners.body),
        "root_disk": DISK,
        "operation_id": "image-1",
        **options,
    }


def seed(**options):
    return {
        "root_disk": DISK,
        "instance_id": "i-1",
        "hostname": "alpha",
        "user_data": {"password": "CANARY-PASSWORD"},
        "rejoin": {
            "url": "http://127.0.0.1:1",
            "node": "alpha",
            "deploy_id": "d-1",
            "token": "CANARY-TOKEN",
        },
        **options,
    }


def slowly(server, seconds=5):
    """Make the stream last for seconds instead of milliseconds."""
    server.manners.pause_seconds = seconds / (len(server.manners.body) / 65536)


def wait_for(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_written(machine, server):
    """Whether the first bytes that are not held back have reached the disk."""
    place = slice(MIB, MIB + 65536)
    return machine.disk.read_bytes()[place] == server.manners.body[place]


def assert_unbootable(machine):
    content = machine.disk.read_bytes()
    assert not any(content[:MIB])
    assert not any(content[-MIB:])


def test_an_image_and_its_seed_are_written_and_a_second_run_changes_nothing(
    machine, playbook, server
):
    planned, written, again = [
        playbook.results("image_stream", image(server), options=options)[0]
        for options in ("--check --diff", "--diff", "")
    ]
    assert planned["changed"]
    assert planned["root_disk"]["serial_number"] == "NAMESPACE-1"
    assert planned["diff"]["before"].startswith("1 old: sectors ")
    assert written["changed"]
    assert written["operation_id"] == "image-1"
    assert written["received_bytes"] == len(server.manners.body)
    assert not again["changed"]
    assert again["received_bytes"] == written["received_bytes"]
    assert machine.disk.read_bytes()[MIB : 8 * MIB] == server.manners.body[MIB : 8 * MIB]

    first, second = playbook.results("node_seed", seed(), seed())
    assert first["changed"]
    assert not second["changed"]
    assert second["ssh_host_public_key"] == first["ssh_host_public_key"]
    assert sgdisk_problems(machine.disk) == ""


def test_no_secret_is_shown_even_when_everything_is(machine, playbook, server):
    arguments = image(server, headers={"Authorization": "CANARY-HEADER"})
    playbook.results("image_stream", arguments, options="-vvv --diff")
    shown = playbook.output
    playbook.results("node_seed", seed(), options="-vvv --diff")
    shown += playbook.output
    assert "CANARY" not in shown
    assert "PRIVATE KEY" not in shown
    assert server.manners.requests[0]["Authorization"] == "CANARY-HEADER"


def test_progress_is_shown_while_the_image_is_written(machine, playbook, server):
    slowly(server, seconds=9)
    (result,) = playbook.results("image_stream", image(server))
    assert result["changed"]
    lines = [line for line in playbook.output.splitlines() if "image_stream: writing" in line]
    assert lines
    assert "[alpha]" in lines[-1]
    assert "MiB/s" in lines[-1]


def test_a_fault_of_the_work_is_the_result_of_the_task(machine, playbook, server):
    (result,) = playbook.results("image_stream", image(server, sha256="ab" * 32))
    assert result["failed"]
    assert result["fault"]["code"] == "IMAGE_DIGEST_MISMATCH"
    assert_unbootable(machine)


def test_a_fault_before_the_work_leaves_the_operation_id_unused(machine, playbook, server):
    wrong = image(server, root_disk={"serial_number": "another"})
    first, second = playbook.results("image_stream", wrong, image(server))
    assert first["fault"]["code"] == "ROOT_DISK_NO_MATCH"
    assert second["changed"]


def test_the_operation_id_of_other_work_is_refused(machine, playbook, server):
    other = image(server, sha256="cd" * 32)
    _first, second = playbook.results("image_stream", image(server), other)
    assert second["fault"]["code"] == "OPERATION_ID_REUSED"


def test_a_machine_that_refuses_connections_is_a_failed_task_and_not_an_unreachable_host(
    machine, playbook, server
):
    machine.power_off()
    stream, seeded = [
        playbook.results(module, arguments)[0]
        for module, arguments in (
            ("image_stream", image(server, unreachable_seconds=1)),
            ("node_seed", seed()),
        )
    ]
    for result in (stream, seeded):
        assert result["failed"]
        assert result["fault"]["code"] == "NODE_UNREACHABLE"
        assert "refused" in result["fault"]["found"]


def test_a_host_key_that_is_not_the_pinned_one_is_a_mismatch(machine, playbook, server):
    machine.pin("other_key")
    began = time.monotonic()
    stream = playbook.results("image_stream", image(server))[0]
    seeded = playbook.results("node_seed", seed())[0]
    assert stream["fault"]["code"] == seeded["fault"]["code"] == "HOST_KEY_MISMATCH"
    assert time.monotonic() - began < 30


def test_a_host_key_that_nobody_pinned_is_a_mismatch(machine, playbook):
    (machine.folder / "known_hosts").write_text("")
    assert playbook.results("node_seed", seed())[0]["fault"]["code"] == "HOST_KEY_MISMATCH"


def test_a_refused_key_is_not_tried_again(machine, playbook, server):
    arguments = image(server)
    (result,) = playbook.results("image_stream", arguments, key="other_key")
    assert result["fault"]["code"] == "SSH_AUTHENTICATION_FAILED"
    log = (machine.folder / "console.log").read_text()
    assert log.count("Connection closed by authenticating user") == 1


def test_power_lost_in_the_middle_of_a_write_is_a_fault_and_leaves_no_partition_table(
    machine, playbook, server
):
    slowly(server)
    tasks = [{"barewright.metal.image_stream": image(server, unreachable_seconds=3)}]
    with playbook.start(tasks) as running:
        wait_for(lambda: is_written(machine, server))
        machine.power_off()
        output = running.communicate(timeout=60)[0]
    assert "NODE_UNREACHABLE" in output
    assert "failed=1" in output
    assert "unreachable=0" in output
    assert_unbootable(machine)


def test_a_connection_that_comes_back_in_time_is_only_a_delay(machine, playbook, server):
    slowly(server)
    tasks = [{"barewright.metal.image_stream": image(server)}]
    with playbook.start(tasks) as running:
        wait_for(lambda: is_written(machine, server))
        for pid in machine.processes("sshd"):
            os.kill(pid, signal.SIGKILL)
        output = running.communicate(timeout=120)[0]
    assert "changed=1" in output, output
    assert len(server.manners.requests) == 1
    assert sgdisk_problems(machine.disk) == ""


def test_a_controller_that_died_finds_its_work_again(machine, playbook, server):
    slowly(server)
    tasks = [{"barewright.metal.image_stream": image(server)}]
    with playbook.start(tasks) as running:
        wait_for(lambda: is_written(machine, server))
        running.kill()
    (result,) = playbook.results("image_stream", image(server))
    assert not result.get("failed"), result
    assert len(server.manners.requests) == 1
    assert sgdisk_problems(machine.disk) == ""


def test_a_daemon_that_died_is_lost_work(machine, playbook, server):
    slowly(server)
    tasks = [{"barewright.metal.image_stream": image(server)}]
    with playbook.start(tasks) as running:
        wait_for(lambda: is_written(machine, server))
        workers = [pid for pid in machine.processes("python") if is_daemon(pid)]
        assert len(workers) == 1
        os.kill(workers[0], signal.SIGKILL)
        output = running.communicate(timeout=60)[0]
    assert "OPERATION_LOST" in output
    assert_unbootable(machine)


def is_daemon(pid):
    return os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"


def test_work_that_is_too_slow_ends_by_its_own_deadline(machine, playbook, server):
    server.manners.pause_seconds = 0.2
    (result,) = playbook.results("image_stream", image(server, timeout_seconds=4))
    assert result["fault"]["code"] == "DEADLINE_EXCEEDED"
    assert_unbootable(machine)


def test_a_machine_that_falls_silent_is_noticed(machine, playbook, server):
    slowly(server)
    tasks = [{"barewright.metal.image_stream": image(server, unreachable_seconds=5)}]
    began = time.monotonic()
    with playbook.start(tasks) as running:
        wait_for(lambda: is_written(machine, server))
        for pid in machine.processes():
            os.kill(pid, signal.SIGSTOP)
        output = running.communicate(timeout=120)[0]
    assert "NODE_UNREACHABLE" in output
    assert time.monotonic() - began < 100


def test_nothing_is_left_in_the_scratch_folder(machine, playbook):
    playbook.results("node_seed", seed())
    pid = machine.processes("sshd")[0]
    command = ["nsenter", "-t", str(pid), "-m", "find", "/run/barewright", "-mindepth", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ""
