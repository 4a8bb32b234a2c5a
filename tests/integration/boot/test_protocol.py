# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The contract test of docs/boot-protocol.md: every implementation keeps these promises."""

from __future__ import annotations

import itertools
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.integration.boot.bench import AUTHORIZED_KEY, BENCHES, Bench
from tests.integration.boot.receiver_process import Answer, request

BOOT_ID = "0b2b5c3e-7d0f-4a52-9a5e-0d3a0f6a9c11"
OTHER_BOOT_ID = "1c2b5c3e-7d0f-4a52-9a5e-0d3a0f6a9c12"
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module", params=sorted(BENCHES))
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    with BENCHES[request.param](tmp_path_factory.mktemp("protocol")) as running:
        yield running


class Machine:
    """A node of its own, with keys like a freshly booted ramdisk."""

    def __init__(self, bench: Bench, rejoin_token: str | None = None) -> None:
        number = next(_NUMBERS)
        self.bench = bench
        self.node = f"node-{number}"
        self.macs = [f"52:54:00:79:{number:02x}:{card:02x}" for card in (1, 2)]
        self.address = f"127.7.0.{number}"
        bench.know(self.node, self.macs, self.address, rejoin_token)
        self.new_keys()

    def new_keys(self) -> None:
        host_key = ed25519.Ed25519PrivateKey.generate().public_key()
        self.host_key = host_key.public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        ).decode()
        identity = ec.generate_private_key(ec.SECP256R1()).public_key()
        self.identity = pem(identity)

    def script(self, mac: str | None = None) -> Answer:
        return request(self.bench.base_url, "GET", f"/v1/boot/{mac or self.macs[0]}")

    def token(self) -> str:
        found = re.search(r"barewright\.token=(\S+)", self.script().text)
        assert found
        return found[1]

    def body(self, token: str, /, **changes: Any) -> dict[str, Any]:
        return {
            "token": token,
            "macs": self.macs,
            "product_uuid": "4C4C4544-0042-3510-8052-B4C04F564433",
            "ssh_host_key": self.host_key,
            "identity_key": self.identity,
            "boot_mode": "uefi",
            "addresses": [f"{self.address}/16", "fe80::1"],
            **changes,
        }

    def check_in(self, token: str, /, **changes: Any) -> Answer:
        return request(self.bench.base_url, "POST", "/v1/checkin", self.body(token, **changes))

    def rejoin(self, token: str, /, **changes: Any) -> Answer:
        body = {"node": self.node, "token": token, "boot_id": BOOT_ID, "deploy_id": "d-1"}
        return request(self.bench.base_url, "POST", "/v1/rejoin", {**body, **changes})


def pem(key: Any) -> str:
    encoded = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return str(encoded.decode())


# --- the boot script ----------------------------------------------------------------------------


def test_first_script_asks_for_every_card_and_falls_back_to_the_disk(bench: Bench) -> None:
    script = request(bench.base_url, "GET", "/boot.ipxe")
    assert script.status == 200
    assert script.text.startswith("#!ipxe\n")
    assert f"{bench.base_url}/v1/boot/${{netX/mac:hexhyp}}" in script.text
    assert f"{bench.base_url}/v1/boot/${{net${{card}}/mac:hexhyp}}" in script.text
    # UEFI firmware goes on to the next device only after a failure.
    assert script.text.endswith("exit 1\n")


def test_paths_are_exact_and_nothing_redirects(bench: Bench) -> None:
    for path in ("/boot.ipxe/", "/boot.ipxe?x=1", "/", "/v1/boot", "/V1/boot/", "/files"):
        answer = request(bench.base_url, "GET", path)
        assert answer.status == 404, path
        assert answer.json["fault"]["message"]


def test_script_only_while_the_window_is_open(bench: Bench) -> None:
    machine = Machine(bench)
    assert (machine.script().status, machine.script().fault) == (404, "BOOT_NOT_OPEN")
    bench.open(machine.node)
    assert machine.script().status == 200
    bench.close(machine.node)
    assert machine.script().status == 404


def test_window_ends_by_itself(bench: Bench) -> None:
    machine = Machine(bench)
    bench.open(machine.node, seconds=2)
    token = machine.token()
    time.sleep(2.5)
    assert machine.script().status == 404
    assert machine.check_in(token).fault == "BOOT_TOKEN_INVALID"


def test_any_enrolled_card_finds_the_node_in_any_spelling(bench: Bench) -> None:
    machine = Machine(bench)
    bench.open(machine.node)
    for mac in (*machine.macs, machine.macs[1].upper(), machine.macs[1].replace(":", "-")):
        assert machine.script(mac).status == 200


@pytest.mark.parametrize(
    "mac", ["", "%20", "00:00:00:00:00:00", "52:54:00:79", "../entries", "a" * 999]
)
def test_what_is_no_mac_address_matches_nothing(bench: Bench, mac: str) -> None:
    bench.open(Machine(bench).node)
    assert request(bench.base_url, "GET", f"/v1/boot/{mac}").status == 404


def test_script_names_files_server_token_and_card(bench: Bench) -> None:
    machine = Machine(bench)
    bench.open(machine.node)
    answer = machine.script(machine.macs[1])
    base, dashed = bench.base_url, machine.macs[1].replace(":", "-")
    kernel = next(line for line in answer.text.splitlines() if line.startswith("kernel "))
    words = kernel.split()
    assert f"{base}/files/ramdisk/vmlinuz" in words
    assert {"console=ttyS0", f"barewright.url={base}", f"BOOTIF=01-{dashed}"} <= set(words)
    assert f"{base}/files/ramdisk/initrd.img" in answer.text
    assert answer.headers["Cache-Control"] == "no-store"
    token = next(word for word in words if word.startswith("barewright.token="))
    assert len(token) > 40


def test_looking_at_a_script_by_head_is_refused(bench: Bench) -> None:
    machine = Machine(bench)
    bench.open(machine.node)
    token = machine.token()
    answer = request(bench.base_url, "HEAD", f"/v1/boot/{machine.macs[0]}")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET")
    assert machine.check_in(token).status == 200


# --- check-in -----------------------------------------------------------------------------------


def test_check_in_answers_with_the_keys_that_may_log_in(bench: Bench) -> None:
    machine = Machine(bench)
    window = bench.open(machine.node)
    answer = machine.check_in(machine.token())
    assert answer.status == 200
    assert answer.json == {
        "node": machine.node,
        "window_id": window,
        "authorized_keys": [AUTHORIZED_KEY],
    }
    [event] = bench.events("checkin", machine.node)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", event.pop("received_at"))
    assert event == {
        "kind": "checkin",
        "node": machine.node,
        "window_id": window,
        "mac": machine.macs[0],
        "macs": machine.macs,
        "product_uuid": "4c4c4544-0042-3510-8052-b4c04f564433",
        "ssh_host_key": machine.host_key,
        "identity_key": machine.identity,
        "boot_mode": "uefi",
        "addresses": [machine.address, "fe80::1"],
        "remote_address": "127.0.0.1",
    }


def test_fresh_script_voids_the_earlier_token(bench: Bench) -> None:
    machine = Machine(bench)
    bench.open(machine.node)
    first, second = machine.token(), machine.token()
    assert first != second
    refused = machine.check_in(first)
    assert (refused.status, refused.fault) == (403, "BOOT_TOKEN_INVALID")
    assert machine.check_in(second).status == 200


def test_new_window_voids_the_token_of_the_earlier_one(bench: Bench) -> None:
    machine = Machine(bench)
    bench.open(machine.node)
    token = machine.token()
    bench.open(machine.node)
    assert machine.check_in(token).fault == "BOOT_TOKEN_INVALID"


def test_same_token_with_the_same_keys_gets_the_same_answer_once_more(bench: Bench) -> None:
    machine = Machine(bench)
    bench.open(machine.node)
    token = machine.token()
    first = machine.check_in(token)
    assert machine.check_in(token).json == first.json
    # The answer was lost, and whoever waited for the check-in has shut the window meanwhile.
    bench.close(machine.node)
    assert machine.check_in(token).json == first.json
    assert len(bench.events("checkin", machine.node)) == 1


@pytest.mark.parametrize("changed", ["ssh_host_key", "identity_key"])
def test_same_token_with_another_key_fails_the_node(bench: Bench, changed: str) -> None:
    machine = Machine(bench)
    window = bench.open(machine.node)
    token = machine.token()
    assert machine.check_in(token).status == 200
    rightful = machine.body(token)
    machine.new_keys()
    second = machine.check_in(token, **({} if changed == "ssh_host_key" else {
        "ssh_host_key": rightful["ssh_host_key"]}))  # fmt: skip
    assert (second.status, second.fault) == (409, "BOOT_TOKEN_REUSED")
    [event] = bench.events("token_reused", machine.node)
    assert event["window_id"] == window
    # Nobody can say who is right, so nobody is, until a new window opens.
    again = request(bench.base_url, "POST", "/v1/checkin", rightful)
    assert (again.status, again.fault) == (409, "BOOT_TOKEN_REUSED")
    assert machine.script().status == 404
    bench.open(machine.node)
    assert machine.check_in(machine.token()).status == 200


def test_token_of_a_closed_window_lets_nobody_in(bench: Bench) -> None:
    machine = Machine(bench)
    bench.open(machine.node)
    token = machine.token()
    bench.close(machine.node)
    assert machine.check_in(token).fault == "BOOT_TOKEN_INVALID"
    assert bench.events("checkin", machine.node) == []


def test_token_does_not_serve_another_machine(bench: Bench) -> None:
    machine, other = Machine(bench), Machine(bench)
    bench.open(machine.node)
    refused = machine.check_in(machine.token(), macs=other.macs)
    assert (refused.status, refused.fault) == (403, "BOOT_TOKEN_INVALID")


def test_made_up_token_is_refused(bench: Bench) -> None:
    machine = Machine(bench)
    bench.open(machine.node)
    assert machine.check_in("x" * 40).fault == "BOOT_TOKEN_INVALID"


def test_odd_hardware_checks_in(bench: Bench) -> None:
    machine = Machine(bench)
    bench.open(machine.node)
    infiniband = ":".join(["80"] * 20)
    macs = [infiniband, "00:00:00:00:00:00", machine.macs[1].upper()]
    answer = machine.check_in(machine.token(), macs=macs, product_uuid="Not Settable", new_key=1)
    assert answer.status == 200
    [event] = bench.events("checkin", machine.node)
    assert (event["macs"], event["product_uuid"]) == ([machine.macs[1]], None)
    assert "new_key" not in event


RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
P384 = ec.generate_private_key(ec.SECP384R1()).public_key()
INVALID = {
    "token": [None, 7, "", "short", "with blanks in it, and long enough"],
    "macs": [None, [], "52:54:00:79:01:01", [""], ["zz"], [1], ["00:00:00:00:00:00"], ["aa"] * 999],
    "product_uuid": [7, ["x"]],
    "ssh_host_key": [
        None,
        "",
        "ssh-rsa AAAA",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 !!!!",
    ],
    "identity_key": [None, "", "PEM", pem(RSA), pem(P384)],
    "boot_mode": [None, "UEFI", "legacy"],
    "addresses": [None, "10.0.0.1", ["10.0.0.256"], [None]],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in INVALID.items() for value in values]
)
def test_check_in_that_breaks_the_rules_is_told_which(bench: Bench, key: str, value: Any) -> None:
    machine = Machine.__new__(Machine)
    machine.bench, machine.macs, machine.address = bench, ["52:54:00:79:ff:01"], "127.7.1.1"
    machine.new_keys()
    answer = machine.check_in("t" * 40, **{key: value})
    assert (answer.status, answer.fault) == (400, "REQUEST_INVALID")
    assert key in answer.json["fault"]["message"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 60_000])
def test_body_that_is_no_json_object_is_refused(bench: Bench, content: bytes) -> None:
    for path in ("/v1/checkin", "/v1/rejoin", "/v1/work-ended"):
        answer = request(bench.base_url, "POST", path, content)
        assert (answer.status, answer.fault) == (400, "REQUEST_INVALID")


def test_body_has_a_limit_and_a_length(bench: Bench) -> None:
    huge = request(bench.base_url, "POST", "/v1/checkin", b" " * 100_000)
    assert (huge.status, huge.fault) == (413, "REQUEST_TOO_LARGE")
    chunked = request(bench.base_url, "POST", "/v1/checkin", b"", {"Transfer-Encoding": "chunked"})
    assert chunked.status in (400, 411)


def test_unknown_methods_are_named(bench: Bench) -> None:
    for method, path, allowed in (
        ("PUT", "/boot.ipxe", "GET, HEAD"),
        ("POST", "/files/x", "GET, HEAD"),
        ("GET", "/v1/checkin", "POST"),
        ("DELETE", "/v1/rejoin", "POST"),
    ):
        answer = request(bench.base_url, method, path)
        assert (answer.status, answer.headers["Allow"]) == (405, allowed)


def test_many_machines_check_in_at_once(bench: Bench) -> None:
    machines = [Machine(bench) for _ in range(40)]
    for machine in machines:
        bench.open(machine.node)

    def boot(machine: Machine) -> str:
        return str(machine.check_in(machine.token()).json["node"])

    with ThreadPoolExecutor(40) as pool:
        assert list(pool.map(boot, machines)) == [machine.node for machine in machines]


# --- rejoin and ended work ----------------------------------------------------------------------


def test_rejoin_with_the_node_s_token_is_kept(bench: Bench) -> None:
    machine = Machine(bench, rejoin_token="rejoin-" + "s" * 40)
    answer = machine.rejoin("rejoin-" + "s" * 40)
    assert (answer.status, answer.content) == (204, b"")
    [event] = bench.events("rejoin", machine.node)
    assert (event["boot_id"], event["deploy_id"]) == (BOOT_ID, "d-1")


def test_one_boot_rejoins_once_however_often_it_says_so(bench: Bench) -> None:
    machine = Machine(bench, rejoin_token="r" * 40)
    for boot_id in (BOOT_ID, BOOT_ID, OTHER_BOOT_ID, BOOT_ID):
        assert machine.rejoin("r" * 40, boot_id=boot_id).status == 204
    kept = [event["boot_id"] for event in bench.events("rejoin", machine.node)]
    assert kept == [BOOT_ID, OTHER_BOOT_ID]


def test_wrong_rejoin_token_and_unknown_node_look_the_same(bench: Bench) -> None:
    machine, without = Machine(bench, rejoin_token="r" * 40), Machine(bench)
    answers = [
        machine.rejoin("wrong" * 8),
        machine.rejoin(""),
        machine.rejoin("r" * 40, token=None),
        machine.rejoin("r" * 40, node="nobody"),
        machine.rejoin("r" * 40, node=["x"]),
        without.rejoin("r" * 40),
    ]
    assert {(answer.status, answer.content) for answer in answers} == {(403, answers[0].content)}
    assert answers[0].fault == "REJOIN_TOKEN_INVALID"
    assert bench.events("rejoin", machine.node) == []


@pytest.mark.parametrize("changes", [{"boot_id": "x"}, {"boot_id": None}, {"deploy_id": "a b"}])
def test_rejoin_that_breaks_the_rules_is_told_which(bench: Bench, changes: dict[str, Any]) -> None:
    machine = Machine(bench, rejoin_token="r" * 40)
    answer = machine.rejoin("r" * 40, **changes)
    assert (answer.status, answer.fault) == (400, "REQUEST_INVALID")
    assert next(iter(changes)) in answer.json["fault"]["message"]


def test_ended_work_is_a_hint_that_is_kept(bench: Bench) -> None:
    machine = Machine(bench)
    body = {"node": machine.node, "operation_id": "wipe-1"}
    assert request(bench.base_url, "POST", "/v1/work-ended", body).status == 202
    assert [event["operation_id"] for event in bench.events("work_ended", machine.node)] == [
        "wipe-1"
    ]
    unknown = request(bench.base_url, "POST", "/v1/work-ended", {**body, "node": "nobody"})
    assert (unknown.status, unknown.fault) == (404, "NODE_UNKNOWN")
    strange = request(bench.base_url, "POST", "/v1/work-ended", {**body, "operation_id": "../x"})
    assert strange.fault == "REQUEST_INVALID"


# --- files --------------------------------------------------------------------------------------


def test_files_are_served_whole_by_range_and_by_head(bench: Bench) -> None:
    content = bytes(range(256)) * 1000
    bench.serve("images/one.raw", content)
    whole = request(bench.base_url, "GET", "/files/images/one.raw")
    assert (whole.status, whole.content) == (200, content)
    assert whole.headers["Accept-Ranges"] == "bytes"
    head = request(bench.base_url, "HEAD", "/files/images/one.raw")
    assert (head.status, head.headers["Content-Length"], head.content) == (200, "256000", b"")
    for header, expected, shown in (
        ("bytes=10-19", content[10:20], "bytes 10-19/256000"),
        ("bytes=255990-", content[255990:], "bytes 255990-255999/256000"),
        ("bytes=-6", content[-6:], "bytes 255994-255999/256000"),
        ("bytes=0-999999", content, "bytes 0-255999/256000"),
    ):
        part = request(bench.base_url, "GET", "/files/images/one.raw", None, {"Range": header})
        assert (part.status, part.content) == (206, expected)
        assert part.headers["Content-Range"] == shown


def test_range_behind_the_end_is_refused_and_odd_ones_are_ignored(bench: Bench) -> None:
    bench.serve("small", b"0123456789")
    behind = request(bench.base_url, "GET", "/files/small", None, {"Range": "bytes=10-"})
    assert (behind.status, behind.headers["Content-Range"]) == (416, "bytes */10")
    for header in ("bytes=1-2,4-5", "lines=1-2", "bytes=5-2", "bytes=x"):
        answer = request(bench.base_url, "GET", "/files/small", None, {"Range": header})
        assert (answer.status, answer.content) == (200, b"0123456789")


def test_replaced_file_is_not_continued_in_the_middle(bench: Bench) -> None:
    bench.serve("replaced", b"old content")
    tag = request(bench.base_url, "HEAD", "/files/replaced").headers["ETag"]
    bench.serve("replaced", b"new and longer content")
    headers = {"Range": "bytes=4-", "If-Range": tag}
    answer = request(bench.base_url, "GET", "/files/replaced", None, headers)
    assert (answer.status, answer.content) == (200, b"new and longer content")


def test_empty_file_is_a_file(bench: Bench) -> None:
    bench.serve("empty", b"")
    answer = request(bench.base_url, "GET", "/files/empty")
    assert (answer.status, answer.content) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        *("/files/", "/files/folder", "/files/folder/", "/files//folder/file", "/files/.hidden"),
        *("/files/../entries/x.json", "/files/%2e%2e/entries", "/files/folder/..%2ffile"),
        *("/files/%00", "/files/folder%5cfile", "/files//etc/passwd", "/files/none"),
    ],
)
def test_only_files_below_the_folder_and_no_listings(bench: Bench, path: str) -> None:
    bench.serve("folder/file", b"x")
    bench.serve(".hidden", b"x")
    answer = request(bench.base_url, "GET", path)
    assert (answer.status, answer.fault) in ((404, "FILE_NOT_FOUND"), (404, "PATH_UNKNOWN"))


def test_connection_serves_one_request_after_the_other(bench: Bench) -> None:
    bench.serve("keep", b"alive")
    host, port = bench.base_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as link:
        link.sendall(b"GET /files/keep HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        received = b""
        while received.count(b"alive") < 2:
            received += link.recv(4096)
    assert received.count(b"HTTP/1.1 200") == 2


# --- secrets ------------------------------------------------------------------------------------


def test_tokens_are_stored_and_logged_nowhere(bench: Bench) -> None:
    secret = "rejoin-canary-" + "c" * 40
    machine = Machine(bench, rejoin_token=secret)
    bench.open(machine.node)
    token = machine.token()
    machine.check_in(token)
    machine.rejoin(secret)
    request(bench.base_url, "GET", f"/v1/boot/{token}")
    request(bench.base_url, "GET", f"/files/barewright.token={token}")
    kept = bench.everything_kept()
    assert token not in kept
    assert secret not in kept
    assert "REDACTED" in kept
