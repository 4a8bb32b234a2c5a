# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of the action plugins beside the BMC modules: the work, in the controller's own process.

A task costs a tenth of the CPU time of its module that way. The module still runs where this
process is the wrong one: on another host, as another user, or detached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.parameters import remove_values
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

# Loaded here, in the process from which Ansible forks one worker per host and task: imported in
# the worker, these two would cost each task more CPU time than everything else it does.
from ansible_collections.barewright.metal.plugins.module_utils.bmc import ipmi as _ipmi  # noqa: F401
from ansible_collections.barewright.metal.plugins.module_utils.bmc import redfish as _redfish  # noqa: F401
from ansible_collections.barewright.metal.plugins.module_utils.bmc.operations import Operation
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.run_channel import (
    RunChannel,
    local_channel,
)
from ansible_collections.barewright.metal.plugins.plugin_utils.task_context import (
    state_dir_or_none,
)

Json = dict[str, Any]

_display = Display()


class BmcAction(ActionBase):
    """Runs ``operation`` with the options of ``argument_spec``; both are the module's own."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_diff = True
    _supports_async = True

    operation: Operation
    argument_spec: Callable[[], dict[str, Json]]

    def run(self, tmp: str | None = None, task_vars: Json | None = None) -> Json:
        """The result of the operation, scrubbed as the module would."""
        result: Json = super().run(tmp, task_vars)
        del tmp
        task_vars = task_vars or {}
        if not self._in_process():
            result.update(
                self._execute_module(task_vars=task_vars, wrap_async=bool(self._task.async_val))
            )
            return result
        validation = ArgumentSpecValidator(type(self).argument_spec()).validate(self._task.args)
        secrets = set(validation._no_log_values)
        if validation.error_messages:
            raise AnsibleActionFail(remove_values("; ".join(validation.error_messages), secrets))
        try:
            outcome = type(self).operation(
                validation.validated_parameters,
                check_mode=bool(self._task.check_mode),
                diff=bool(self._task.diff),
                channel=self._channel(task_vars),
            )
        except Fault as fault:
            outcome = fault.to_result()
        result.update(remove_values(outcome, secrets))
        return result

    def _in_process(self) -> bool:
        return (
            self._connection.transport == "local"
            and not self._play_context.become
            and not self._task.async_val
        )

    def _channel(self, task_vars: Json) -> RunChannel:
        return local_channel(
            state_dir_or_none(self._templar, task_vars),
            str(task_vars.get("inventory_hostname", "localhost")),
            _display.vv,
        )
