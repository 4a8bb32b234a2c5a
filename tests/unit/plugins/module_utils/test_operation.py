# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils import operation
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault


@pytest.fixture
def root(tmp_path):
    return tmp_path / "operations"


def start(root, work, operation_id="op-1", parameters=None, **options):
    return operation.start(
        operation_id, parameters or {"a": 1}, work, label="test", root=str(root), **options
    )


def await_result(root, operation_id="op-1", seconds=10.0):
    end = time.monotonic() + seconds
    path = root / operation_id / "result.json"
    while not path.exists():
        assert time.monotonic() < end, "no result"
        time.sleep(0.02)
    return json.loads(path.read_text())


def await_end(pid, seconds=10.0):
    end = time.monotonic() + seconds
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}")


def wait_for(path):
    """Work that lasts until the test makes a file."""

    def work(progress):
        while not path.exists():
            time.sleep(0.02)
        return {"changed": True, "waited": True}

    return work


def test_work_runs_without_its_starter_and_leaves_a_result(root):
    started = start(root, lambda progress: {"changed": True, "answer": 42})
    assert started["operation"]["state"] == "running"
    assert started["operation"]["attached"] is False
    assert started["operation"]["pid"] != os.getpid()
    assert await_result(root) == {"changed": True, "answer": 42}


def test_the_daemon_has_no_terminal_no_pipe_and_a_session_of_its_own(root, tmp_path):
    go = tmp_path / "go"
    pid = start(root, wait_for(go))["operation"]["pid"]
    links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    directory = root / "op-1"
    assert links == {os.devnull, str(directory / "log"), str(directory / "lock")}
    assert os.getsid(pid) not in (os.getsid(0), pid)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    go.touch()
    await_end(pid)


def test_a_starter_that_writes_to_a_pipe_does_not_keep_it_open(root, tmp_path):
    # What ssh waits for is the end of the module's output, not of the module.
    program = (
        "import sys, time; sys.path[:0] = sys.argv[2].split(':')\n"
        "from ansible_collections.barewright.metal.plugins.module_utils import operation\n"
        "operation.start('op-1', {}, lambda p: time.sleep(3) or {}, label='x', root=sys.argv[1])\n"
        "print('started')\n"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program, str(root), ":".join(sys.path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "started\n"
    assert time.monotonic() - began < 3
    await_result(root)


def test_a_second_start_attaches_to_what_runs_and_returns_what_ended(root, tmp_path):
    go = tmp_path / "go"
    first = start(root, wait_for(go))
    second = start(root, wait_for(go))
    assert second["operation"] == {**first["operation"], "attached": True}
    go.touch()
    result = await_result(root)
    third = start(root, wait_for(tmp_path / "never"))
    assert third["operation"]["state"] == "finished"
    assert third["result"] == result


def test_many_starts_at_once_start_the_work_once(root, tmp_path):
    go, starts = tmp_path / "go", tmp_path / "starts"

    def work(progress):
        with open(starts, "a", encoding="ascii") as file:
            file.write("x")
        return wait_for(go)(progress)

    children = []
    for _number in range(8):
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(0 if start(root, work)["operation"]["pid"] else 1)
            finally:
                os._exit(2)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 8
    go.touch()
    await_result(root)
    assert starts.read_text() == "x"


@pytest.mark.parametrize("ended", [True, False])
def test_the_same_id_with_other_parameters_is_refused(root, tmp_path, ended):
    go = tmp_path / "go"
    pid = start(root, wait_for(go))["operation"]["pid"]
    if ended:
        go.touch()
        await_end(pid)
    with pytest.raises(Fault, match="OPERATION_ID_REUSED"):
        start(root, wait_for(go), parameters={"a": 2})
    go.touch()


def test_a_daemon_that_died_is_lost_and_is_not_started_again(root, tmp_path):
    pid = start(root, wait_for(tmp_path / "never"))["operation"]["pid"]
    os.kill(pid, signal.SIGKILL)
    await_end(pid)
    with pytest.raises(Fault, match="OPERATION_LOST"):
        start(root, wait_for(tmp_path / "never"))


def test_a_request_whose_daemon_never_began_is_started(root):
    directory = root / "op-1"
    directory.mkdir(parents=True)
    digest = operation.parameters_digest({"a": 1})
    request = {"operation_id": "op-1", "label": "test", "digest": digest, "started_at": "x"}
    (directory / "request.json").write_text(json.dumps(request))
    start(root, lambda progress: {"changed": True})
    assert await_result(root) == {"changed": True}


def test_a_fault_of_the_preparation_leaves_the_id_unused(root):
    def refuse():
        raise Fault("DISK_BUSY")

    with pytest.raises(Fault, match="DISK_BUSY"):
        start(root, lambda progress: {}, prepare=refuse)
    start(root, lambda progress: {"changed": True}, parameters={"a": 2})
    assert await_result(root) == {"changed": True}


def test_a_fault_of_the_work_is_its_result(root):
    def work(progress):
        raise Fault("DISK_IO_ERROR", wanted="a", found="b")

    start(root, work)
    result = await_result(root)
    assert result["failed"] is True
    assert result["fault"]["code"] == "DISK_IO_ERROR"
    status = json.loads((root / "op-1" / "status.json").read_text())
    assert status["state"] in ("failed", "running")


def test_a_crash_of_the_work_is_its_result_and_its_log(root):
    start(root, lambda progress: {}["missing"])
    assert await_result(root)["fault"]["code"] == "OPERATION_CRASHED"
    assert "KeyError: 'missing'" in (root / "op-1" / "log").read_text()


def test_secret_values_are_not_in_the_result(root):
    start(root, lambda progress: {"text": "has CANARY inside"}, no_log_values={"CANARY"})
    assert "CANARY" not in json.dumps(await_result(root))


def test_nobody_else_can_read_what_an_operation_leaves(root):
    start(root, lambda progress: {"changed": True})
    await_result(root)
    assert (root / "op-1").stat().st_mode & 0o077 == 0
    assert (root / "op-1" / "result.json").stat().st_mode & 0o077 == 0


def test_progress_tells_bytes_rate_and_time_left(root, tmp_path):
    go = tmp_path / "go"

    def work(progress):
        progress.update(phase="writing", done_bytes=0, total_bytes=1000)
        time.sleep(1.1)
        progress.update(done_bytes=500, text="half", details={"disk": "sda"})
        return wait_for(go)(progress)

    start(root, work)
    path = root / "op-1" / "status.json"
    end = time.monotonic() + 10
    while json.loads(path.read_text())["done_bytes"] != 500 and time.monotonic() < end:
        time.sleep(0.05)
    status = json.loads(path.read_text())
    assert (status["state"], status["phase"], status["text"]) == ("running", "writing", "half")
    assert 0 < status["bytes_per_second"] <= 500
    assert status["eta_seconds"] >= 1
    assert status["details"] == {"disk": "sda"}
    go.touch()
    await_end(status["pid"])
    assert json.loads(path.read_text())["state"] == "finished"


@pytest.mark.parametrize("answer", [202, 500])
def test_the_end_is_told_to_the_boot_server_and_nothing_depends_on_it(root, answer):
    bodies = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append((self.path, json.loads(body)))
            self.send_response(answer)
            self.end_headers()

        def log_message(self, *_arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    started = start(root, lambda p: {"changed": True}, work_ended={"url": url, "node": "alpha"})
    assert await_result(root) == {"changed": True}
    await_end(started["operation"]["pid"])
    server.shutdown()
    server.server_close()
    assert bodies == [("/v1/work-ended", {"node": "alpha", "operation_id": "op-1"})]


def test_a_boot_server_that_is_away_changes_nothing(root):
    notice = {"url": "http://127.0.0.1:1", "node": "alpha"}
    started = start(root, lambda progress: {"changed": True}, work_ended=notice)
    assert await_result(root) == {"changed": True}
    await_end(started["operation"]["pid"])


@given(st.text(max_size=140))
def test_an_id_never_leaves_its_directory(text):
    try:
        directory = operation.operation_directory(text, "/run/x")
    except Fault:
        return
    assert os.path.dirname(os.path.normpath(directory)) == "/run/x"
    assert not text.startswith(".")


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "a b", "a\n", "-x", "é", "x" * 129])
def test_an_id_that_is_no_file_name_is_refused(text):
    with pytest.raises(Fault, match="INVALID_INPUT"):
        operation.operation_directory(text)


def test_the_digest_does_not_depend_on_the_order_of_parameters():
    first = operation.parameters_digest({"a": 1, "b": {"c": [1, 2], "d": None}})
    assert first == operation.parameters_digest({"b": {"d": None, "c": [1, 2]}, "a": 1})
    assert first != operation.parameters_digest({"a": 1, "b": {"c": [2, 1], "d": None}})
