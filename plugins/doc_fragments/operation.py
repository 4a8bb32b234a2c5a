# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation shared by the modules whose work is detached from the connection."""

from __future__ import annotations


class ModuleDocFragment:
    """Options of ``module_utils/operation.py``'s ``argument_spec()``."""

    DOCUMENTATION = r"""
options:
  operation_id:
    description:
      - Names this piece of work on the machine, under C(/run/barewright/operations).
      - A second start with the same id and the same parameters attaches to the work that is
        running, or returns the result of the work that ended; with other parameters it fails
        with fault code V(OPERATION_ID_REUSED).
      - A fresh id is made when this is omitted, which gives up the possibility to attach.
    type: str
  timeout_seconds:
    description:
      - Total time limit of the work, from its start.
    type: int
    default: 3600
  unreachable_seconds:
    description:
      - How long the machine may be unreachable while the work runs, before the task fails with
        fault code V(NODE_UNREACHABLE). The work itself goes on.
    type: int
    default: 60
  work_ended:
    description:
      - Where the machine posts a notice once the work has ended. It is sent once, and a failure
        to deliver it changes nothing.
    type: dict
    suboptions:
      url:
        description: Base URL of the boot server; C(/v1/work-ended) is added.
        type: str
        required: true
      node:
        description: Name of the node that the notice is about.
        type: str
        required: true
"""
