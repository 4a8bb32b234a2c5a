# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault

ARGUMENTS = {
    "code": {"type": "str", "required": True},
    "wanted": {"type": "str", "default": ""},
    "found": {"type": "str", "default": ""},
    "cure": {"type": "str", "default": ""},
    "details": {"type": "dict", "default": {}},
}


class ActionModule(ActionBase):
    """Fail with a fault; see the module of the same name for the options."""

    _requires_connection = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        del tmp
        _dummy, arguments = self.validate_argument_spec(ARGUMENTS)
        code = arguments.pop("code")
        return {**result, **Fault(code, **arguments).to_result()}
