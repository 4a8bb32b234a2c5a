# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from collections.abc import Iterator

import pytest

from virtual_rack.testing import LightBmc, light_bmc


@pytest.fixture
def light() -> Iterator[LightBmc]:
    accounts = [{"username": "operator", "password": "Operate-1", "role": "Operator"}]
    with light_bmc(bmc={"accounts": accounts}) as running:
        yield running
