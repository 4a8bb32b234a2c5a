# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from collections.abc import Iterator

import pytest

from virtual_rack.testing import LightBmc, light_bmc

ACCOUNTS = [
    {"username": "operator", "password": "Operate-1", "role": "Operator"},
    {"username": "viewer", "password": "View-1", "role": "ReadOnly"},
]


@pytest.fixture
def light() -> Iterator[LightBmc]:
    """A BMC with one account of every role, in front of a machine that is off."""
    with light_bmc(bmc={"accounts": ACCOUNTS}) as running:
        yield running
