# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import json
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from virtual_rack.bmc.journal import Caller, Journal, read_journal, redacted

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def test_a_line_holds_all_that_tests_judge_by(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new" / "journal.jsonl")
    caller = Caller("redfish", "127.0.0.1:5", "7", "admin")
    journal.write(caller, {"method": "GET", "path": "/"}, effect="power: off→on", status=204)
    (line,) = (tmp_path / "new" / "journal.jsonl").read_text("utf-8").splitlines()
    entry = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", entry.pop("time"))
    assert entry == {
        "protocol": "redfish",
        "client": "127.0.0.1:5",
        "session": "7",
        "user": "admin",
        "request": {"method": "GET", "path": "/"},
        "effect": "power: off→on",
        "status": 204,
    }


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write(Caller("machine"), {"event": "boot_started"})
    with journal.path.open("a") as file:
        file.write('{"time": "20')
    assert len(read_journal(journal.path)) == 1


def test_a_bmc_that_was_asked_nothing_has_an_empty_journal(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "journal.jsonl") == []


@given(secret=JSON, around=JSON, name=st.sampled_from(["Password", "NewPassword", "X-Auth-Token"]))
def test_no_secret_survives_redaction(secret: object, around: object, name: str) -> None:
    marked = {name: ["canary", secret], "deep": [{"also": {name.lower(): "canary"}}, around]}
    assert "canary" not in json.dumps(redacted(marked))


@given(value=JSON.filter(lambda value: "***" not in json.dumps(redacted(value))))
def test_what_is_no_secret_stays_as_it_is(value: object) -> None:
    assert redacted(value) == value
