# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs an operation as a module does: where no controller process did it in place."""

from __future__ import annotations

from typing import Any, Protocol

from ..fault import Fault
from ..run_channel import local_channel
from .operations import Operation


class Module(Protocol):
    """The part of AnsibleModule that is used here."""

    params: dict[str, Any]
    check_mode: bool
    _diff: bool

    def exit_json(self, **result: Any) -> None:
        """End the module with success."""

    def fail_json(self, **result: Any) -> None:
        """End the module with a failure; ``result`` holds ``msg``."""


def run_module(module: Module, operation: Operation) -> None:
    """End ``module`` with the result of ``operation``, or with its fault.

    The record of the node lies on the controller, so intents live as long as this process only.
    """
    try:
        result = operation(
            module.params,
            check_mode=module.check_mode,
            diff=module._diff,
            channel=local_channel(None, str(module.params["address"])),
        )
    except Fault as fault:
        return module.fail_json(**fault.to_result())
    return module.exit_json(**result)
