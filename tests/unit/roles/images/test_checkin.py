# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The ramdisk's check-in against a real HTTP server."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

TOKEN = "t0p-secret"
WELCOME = {"node": "alpha", "window_id": "w1", "authorized_keys": ["ssh-ed25519 AAAA one"]}


@contextmanager
def boot_server(answers: list[tuple[int, object]]) -> Iterator[tuple[str, list[dict[str, object]]]]:
    """Answers one request after the other; yields its address and the bodies it was sent."""
    bodies: list[dict[str, object]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            bodies.append({"path": self.path, **json.loads(self.rfile.read(length))})
            status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _prepare(
    run: Path, checkin: ModuleType, monkeypatch: pytest.MonkeyPatch, url: str
) -> list[float]:
    (run / "keys").mkdir()
    (run / "keys/ssh_host_ed25519_key.pub").write_text("ssh-ed25519 AAAAhost root@x\n")
    (run / "keys/identity.pub.pem").write_text("-----BEGIN PUBLIC KEY-----\n")
    (run / "boot-options").write_text(
        f"quiet\nbarewright.url={url}\nbarewright.token={TOKEN}\nBOOTIF=01-52-54-00-77-00-01\n"
    )
    pauses: list[float] = []
    monkeypatch.setattr(checkin.time, "sleep", pauses.append)
    monkeypatch.setattr(checkin, "addresses", lambda: ["10.77.2.1/16"])
    monkeypatch.setattr(checkin, "macs", lambda: ["52:54:00:77:00:01"])
    monkeypatch.setattr(checkin.subprocess, "run", lambda *_a, **_k: None)
    return pauses


def test_a_welcome_puts_the_keys_in_place(
    tmp_path: Path, checkin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with boot_server([(200, WELCOME)]) as (url, bodies):
        _prepare(tmp_path, checkin, monkeypatch, url + "/")
        assert checkin.main() == 0
    (body,) = bodies
    assert body["path"] == "/v1/checkin"
    assert body["token"] == TOKEN
    assert body["ssh_host_key"] == "ssh-ed25519 AAAAhost"
    assert body["macs"] == ["52:54:00:77:00:01"]
    assert body["boot_mode"] in ("bios", "uefi")
    assert (tmp_path / "node").read_text() == "alpha\n"
    assert (tmp_path / "window_id").read_text() == "w1\n"
    assert (tmp_path / "url").read_text() == f"{url}\n"
    keys = tmp_path / "authorized_keys"
    assert keys.read_text() == "ssh-ed25519 AAAA one\n"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600


def test_a_server_in_trouble_is_asked_again_with_growing_pauses(
    tmp_path: Path, checkin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble: list[tuple[int, object]] = [(503, {}), (500, b"<html>"), (200, b"not json")] * 3
    with boot_server([*trouble, (200, WELCOME)]) as (url, bodies):
        pauses = _prepare(tmp_path, checkin, monkeypatch, url)
        assert checkin.main() == 0
    assert len(bodies) == 10
    assert pauses == sorted(pauses)
    assert max(pauses) == checkin.LONGEST_PAUSE_SECONDS


def test_a_server_that_is_not_there_yet_is_waited_for(
    tmp_path: Path, checkin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with boot_server([(200, WELCOME)]) as (url, _bodies):
        gone = "http://127.0.0.1:1"
        _prepare(tmp_path, checkin, monkeypatch, gone)
        real_post, tries = checkin.post, []

        def post(address: str, body: object) -> object:
            tries.append(address)
            return real_post(gone if len(tries) < 3 else url, body)

        monkeypatch.setattr(checkin, "post", post)
        assert checkin.main() == 0
    assert len(tries) == 3


@pytest.mark.parametrize(
    ("status", "code"), [(403, "BOOT_TOKEN_INVALID"), (409, "BOOT_TOKEN_REUSED")]
)
def test_a_refusal_is_final_and_lets_nobody_in(
    tmp_path: Path,
    checkin: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
) -> None:
    answer = {"fault": {"code": code, "message": "no"}}
    with boot_server([(status, answer)]) as (url, bodies):
        _prepare(tmp_path, checkin, monkeypatch, url)
        assert checkin.main() == 1
    assert len(bodies) == 1
    assert not (tmp_path / "authorized_keys").exists()
    assert any(code in line for line in checkin.said)


@pytest.mark.parametrize("status", [200, 403])
def test_the_token_is_neither_kept_nor_shown(
    tmp_path: Path, checkin: ModuleType, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    with boot_server([(503, {}), (status, WELCOME if status == 200 else {})]) as (url, _bodies):
        _prepare(tmp_path, checkin, monkeypatch, url)
        checkin.main()
    texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(TOKEN in text for text in [*texts, *checkin.said])
    assert "BOOTIF=01-52-54-00-77-00-01" in (tmp_path / "boot-options").read_text()


def test_without_token_nobody_is_asked(tmp_path: Path, checkin: ModuleType) -> None:
    (tmp_path / "boot-options").write_text("quiet\nbarewright.url=http://127.0.0.1:1\n")
    assert checkin.main() == 1
    assert "barewright.token" in checkin.said[0]
