# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.barewright.metal.plugins.module_utils.bmc.target import (
    Target,
    bmc_argument_spec,
)
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault


def target(**options: Any) -> Target:
    given = {"address": "bmc-1", "username": "admin", "password": "secret", **options}
    validation = ArgumentSpecValidator(bmc_argument_spec()).validate(given)
    assert not validation.error_messages
    return Target.from_params(validation.validated_parameters)


def test_each_driver_has_its_standard_port() -> None:
    assert target().ports == {"redfish": 443, "ipmi": 623}


def test_port_is_the_one_of_the_main_driver() -> None:
    made = target(driver="ipmi", port=6230)
    assert made.ports == {"redfish": 443, "ipmi": 6230}


def test_a_concern_can_be_bound_to_another_driver() -> None:
    made = target(drivers={"power": "ipmi"}, port=8443, ports={"ipmi": "1623"})
    assert made.drivers == {"power": "ipmi", "boot": "redfish", "inspect": "redfish"}
    assert made.ports == {"redfish": 8443, "ipmi": 1623}


def test_password_is_not_in_the_representation() -> None:
    assert "secret" not in repr(target())


@pytest.mark.parametrize("spelling", ["{}", "sha256:{}", "SHA256:{}"])
def test_fingerprint_is_taken_in_any_usual_spelling(spelling: str) -> None:
    digits = "0123456789abcdef" * 4
    assert target(tls_fingerprint=spelling.format(digits.upper())).tls_fingerprint == digits
    colons = ":".join(digits[at : at + 2] for at in range(0, 64, 2))
    assert target(tls_fingerprint=spelling.format(colons)).tls_fingerprint == digits


@pytest.mark.parametrize(
    "wrong",
    [
        {"tls_fingerprint": "abc"},
        {"drivers": {"fans": "redfish"}},
        {"timeout_seconds": 0},
        {"ports": {"ipmi": "many"}},
    ],
)
def test_wrong_options_are_a_fault_that_names_them(wrong: dict[str, Any]) -> None:
    with pytest.raises(Fault) as caught:
        target(**wrong)
    assert caught.value.code == "INVALID_INPUT"
