# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import json

import pytest

from ansible_collections.barewright.metal.plugins.module_utils.deployment import (
    demand,
    parse_deployment,
)
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault


def test_a_system_that_was_never_deployed_is_none():
    assert parse_deployment(None) is None
    with pytest.raises(Fault, match="never deployed"):
        demand(None, "d-1")


def test_another_deployment_is_refused_by_name():
    deploy = parse_deployment(json.dumps({"node": "alpha", "deploy_id": "d-1"}))
    demand(deploy, "d-1")
    with pytest.raises(Fault, match="wanted deployment d-2; found d-1"):
        demand(deploy, "d-2")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"node": "alpha"}', '{"deploy_id": 1}'])
def test_a_file_that_no_seed_wrote_is_refused(text):
    with pytest.raises(Fault, match="NODE_NOT_RUNNING_DEPLOYED_SYSTEM"):
        parse_deployment(text)
