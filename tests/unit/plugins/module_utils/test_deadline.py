# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import time

import pytest

from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault


def test_sleep_never_passes_the_deadline() -> None:
    started = time.monotonic()
    deadline = Deadline(0.05)
    deadline.sleep(60)
    assert time.monotonic() - started < 10
    assert deadline.expired
    assert deadline.remaining() == 0.0


def test_check_names_what_was_wanted_and_what_was_found_instead() -> None:
    with pytest.raises(Fault) as raised:
        Deadline(0).check("power off", "still on")
    assert raised.value.code == "DEADLINE_EXCEEDED"
    assert raised.value.wanted == "power off within 0 s"
    assert raised.value.found == "still on"


def test_check_is_silent_while_time_is_left() -> None:
    Deadline(60).check("power off")
