# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils.bmc.interfaces import NotYet
from ansible_collections.barewright.metal.plugins.module_utils.bmc.patience import (
    intervals,
    patiently,
    pause_after,
)
from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault


def test_intervals_grow_to_five_seconds() -> None:
    first = list(itertools.islice(intervals(), 12))
    assert first[0] == 0.5
    assert first == sorted(first)
    assert first[-1] == 5.0


@given(st.floats(min_value=0, max_value=1e9))
def test_what_a_bmc_asks_to_wait_is_kept_within_reason(asked: float) -> None:
    assert 0.1 <= pause_after(NotYet("busy", asked), 1.0) <= 30.0
    assert pause_after(NotYet("busy"), 1.0) == 1.0


def test_a_refusal_is_repeated_until_it_is_taken() -> None:
    answers: list[Exception | None] = [NotYet("busy", 0), NotYet("busy", 0), None]

    def attempt() -> str:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return "taken"

    assert patiently(Deadline(5), "it", attempt) == "taken"


@pytest.mark.parametrize(("seconds", "tries"), [(0.3, 0), (30, 2)])
def test_patience_ends_with_the_words_of_the_bmc(seconds: float, tries: int) -> None:
    deadline = Deadline(seconds)

    def attempt() -> None:
        deadline.check("an answer")
        raise NotYet("503 no room", 0)

    with pytest.raises(Fault) as caught:
        patiently(deadline, "a session", attempt, tries=tries)
    assert caught.value.code == "BMC_BUSY"
    assert caught.value.found == "503 no room"


def test_any_other_fault_ends_it_at_once() -> None:
    attempts = []

    def attempt() -> None:
        attempts.append(1)
        raise Fault("BMC_AUTH_FAILED")

    with pytest.raises(Fault):
        patiently(Deadline(5), "a session", attempt)
    assert len(attempts) == 1
