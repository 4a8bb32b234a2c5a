# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
import json
from typing import Any

import yaml
from ansible.plugins.action import ActionBase

from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.state_folder import (
    Record,
    folder_lock,
    merge_patch,
    read_record,
    update_record,
)
from ansible_collections.barewright.metal.plugins.plugin_utils.task_context import (
    other_records,
    state_dir_of,
)

ARGUMENTS = {
    "set": {"type": "dict", "default": {}},
    "unique": {"type": "list", "elements": "str", "default": []},
}


class ActionModule(ActionBase):
    """Read and change the node's record; see the module of the same name for the options."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        del tmp
        task_vars = task_vars or {}
        _dummy, arguments = self.validate_argument_spec(ARGUMENTS)
        host = str(task_vars["inventory_hostname"])
        try:
            state_dir = state_dir_of(self._templar, task_vars)
            # plain JSON data: Ansible's tagged strings cannot be written or compared as YAML
            patch = json.loads(json.dumps(arguments["set"]))
            with contextlib.ExitStack() as stack:
                # two nodes of one play must not both find a value free and take it
                if arguments["unique"] and not self._task.check_mode:
                    stack.enter_context(folder_lock(state_dir))
                before = read_record(state_dir, host)
                after = merge_patch(before, patch)
                refuse_shared(state_dir, host, after, arguments["unique"])
                if after != before and not self._task.check_mode:
                    before, after = update_record(state_dir, host, patch)
        except Fault as fault:
            return {**result, **fault.to_result()}
        result.update(changed=after != before, record=after)
        if self._task.diff and after != before:
            result["diff"] = {
                "before": yaml.safe_dump(before, sort_keys=False),
                "after": yaml.safe_dump(after, sort_keys=False),
                "before_header": f"record of {host}",
                "after_header": f"record of {host}",
            }
        return result


def refuse_shared(state_dir: str, host: str, record: Record, paths: list[str]) -> None:
    """Raise ``NODE_DUPLICATE`` when another record has a value that ``record`` has at ``paths``.

    A list counts by its items (any shared MAC is a clash). Empty values never match.
    """
    for path in paths:
        mine = values_at(record, path)
        if not mine:
            continue
        for other, theirs in other_records(state_dir, host):
            shared = sorted(mine & values_at(theirs, path))
            if shared:
                raise Fault(
                    "NODE_DUPLICATE",
                    wanted=f"{path} of {host} on no other node",
                    found=f"{', '.join(shared)} is also recorded for {other}",
                )


def values_at(record: Record, path: str) -> set[str]:
    """The non-empty values at the dotted ``path``, as strings in lower case."""
    value: Any = record
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    items = value if isinstance(value, list) else [value]
    return {str(item).lower() for item in items if item not in (None, "")}
