# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.barewright.metal.plugins.module_utils.run_channel import utc_now
from ansible_collections.barewright.metal.plugins.module_utils.state_folder import update_record
from ansible_collections.barewright.metal.plugins.plugin_utils.fault_table import (
    UNEXPECTED,
    classify,
)
from ansible_collections.barewright.metal.plugins.plugin_utils.task_context import state_dir_of

ARGUMENTS = {
    "step": {"type": "str", "required": True},
    "failure": {"type": "dict"},
    "predicted": {"type": "bool", "default": False},
    "data": {"type": "dict", "default": {}},
    "job": {
        "type": "dict",
        "options": {
            "stopped": {"type": "bool", "required": True},
            "opened": {"type": "bool", "required": True},
            "nothing_to_do": {"type": "bool", "default": False},
        },
    },
}

OUTCOME_OF_CLASS = {"permanent": "fail", "retryable": "retry", "needs_operator": "fail"}


class ActionModule(ActionBase):
    """End a step for a node; see the module of the same name for the options."""

    _requires_connection = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        del tmp
        task_vars = task_vars or {}
        _dummy, arguments = self.validate_argument_spec(ARGUMENTS)
        failure = arguments["failure"]
        if failure is None:
            outcome = {
                "step": arguments["step"],
                "outcome": "advance",
                "predicted": arguments["predicted"],
                "data": arguments["data"],
            }
            result.update(changed=False, step_result=outcome)
            if arguments["job"] is not None:
                result["ansible_facts"] = {
                    **{f"job_{key}": value for key, value in arguments["job"].items()},
                    "job_failure": {},
                }
            return result

        outcome = failed_outcome(arguments["step"], failure)
        result.update(changed=False, step_result=outcome)
        if not self._task.check_mode:
            self._remember(task_vars, outcome)
        if task_vars.get("job_name"):
            # a job goes on to its cleanup steps; its last step fails the host
            # a cleanup that fails after a step did not cause what the operator must mend first
            first = task_vars.get("job_failure") or outcome
            result["ansible_facts"] = {"job_stopped": True, "job_failure": first}
            return result
        result.update(
            failed=True,
            msg=f"step {outcome['step']}: {outcome['reason']}",
            fault=outcome["fault"],
        )
        return result

    def _remember(self, task_vars: dict[str, Any], outcome: dict[str, Any]) -> None:
        patch = {
            "fault": {
                "step": outcome["step"],
                "code": outcome["code"],
                "reason": outcome["reason"],
                "at": utc_now(),
            }
        }
        state_dir = state_dir_of(self._templar, task_vars)
        update_record(state_dir, str(task_vars["inventory_hostname"]), patch)


def failed_outcome(step: str, failure: dict[str, Any]) -> dict[str, Any]:
    """``{step, outcome: retry|fail, code, class, reason, cure, fault}`` of a failed task's result.

    The class of the fault table decides between retry and fail. A failure without a fault code
    is ``INVALID_INPUT`` when it came from an argument specification, else ``UNEXPECTED``.
    """
    fault = failure.get("fault")
    if not fault:
        code = "INVALID_INPUT" if failure.get("argument_errors") else UNEXPECTED
        # `results` holds the items of a loop: the first failed one carries the reason
        failed_items = [item for item in failure.get("results", []) if item.get("failed")]
        if failed_items and failed_items[0].get("fault"):
            return failed_outcome(step, failed_items[0])
        errors = failure.get("argument_errors") or [failure.get("msg") or "no message"]
        fault = {"code": code, "wanted": "", "found": "; ".join(map(str, errors)), "cure": ""}
    row = classify(str(fault["code"]))
    return {
        "step": step,
        "outcome": OUTCOME_OF_CLASS[row["class"]],
        "code": fault["code"],
        "class": row["class"],
        "reason": failure.get("msg")
        if failure.get("fault")
        else f"{fault['code']}: {fault['found']}",
        "cure": fault.get("cure") or row["cure"],
        "fault": fault,
    }
