# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an action plugin reads from the variables of its task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.state_folder import (
    Record,
    read_record,
)


def state_dir_or_none(templar: Any, task_vars: dict[str, Any]) -> str | None:
    """The state folder of this run, None where the inventory names none.

    ``templar`` is the action plugin's own: the values of ``task_vars`` are not rendered yet.
    """
    value = templar.template(task_vars.get("barewright_state_dir"))
    return str(Path(str(value)).expanduser()) if value else None


def state_dir_of(templar: Any, task_vars: dict[str, Any]) -> str:
    """The state folder of this run. Raises ``STATE_UNUSABLE`` when the inventory names none.

    Read from the host's own variables, so that a delegated task still finds the node's record.
    """
    folder = state_dir_or_none(templar, task_vars)
    if folder is None:
        raise Fault(
            "STATE_UNUSABLE",
            wanted="the variable barewright_state_dir (a folder on the controller)",
            found="it is not set",
            cure="set it for all hosts in the inventory, as inventories/example does",
        )
    return folder


def other_records(state_dir: str, host: str) -> Iterator[tuple[str, Record]]:
    """Name and record of every other node in the folder."""
    for path in sorted(Path(state_dir).glob("[!.]*.yml")):
        if path.stem != host:
            yield path.stem, read_record(state_dir, path.stem)
