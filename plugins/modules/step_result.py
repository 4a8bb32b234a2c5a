#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: step_result
short_description: End a step for a node and say how it went on
version_added: 0.1.0
description:
  - Every step playbook ends in this module, once in its block and once in its rescue.
  - A step ends with V(advance), V(retry) or V(fail). A fault decides by its class in C(faults.yml),
    retryable faults retry, all others fail.
  - Inside a job (variable C(job_name) is set) a failed step stops the following steps of that
    node but not the cleanup; the job's last step fails the host. A step that is run alone fails
    the host at once.
  - The fault is written to the node's record.
  - The module runs as an action plugin on the controller and opens no connection to the node.
options:
  step:
    description: The key of the step, the name of its playbook.
    type: str
    required: true
  failure:
    description: The result of the task that failed, C(ansible_failed_result) in a rescue.
    type: dict
  predicted:
    description:
      - Set in check mode where the step did not look at the machine but predicted from the record.
    type: bool
    default: false
  data:
    description: What the step wants to tell whoever runs it.
    type: dict
    default: {}
  job:
    description:
      - What the following steps of the job go by. Set by the step that opens a job; becomes the
        facts C(job_stopped), C(job_opened) and C(job_nothing_to_do) and clears C(job_failure).
    type: dict
    suboptions:
      stopped:
        description: Whether the following steps are passed over.
        type: bool
        required: true
      opened:
        description: Whether the cleanup steps have something to clean up.
        type: bool
        required: true
      nothing_to_do:
        description: Whether the node is where the job leads to already.
        type: bool
        default: false
attributes:
  check_mode:
    support: full
    description: Returns the same result and writes nothing.
  diff_mode:
    support: none
    description: It changes no node.
  idempotent:
    support: full
    description: The same failure gives the same result.
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: A step
  hosts: nodes
  tasks:
    - name: Run the step
      block:
        - name: Do the work
          ansible.builtin.include_role:
            name: barewright.metal.power
            tasks_from: power_off
        - name: Advance
          barewright.metal.step_result:
            step: power_off
      rescue:
        - name: End the step with its fault
          barewright.metal.step_result:
            step: power_off
            failure: "{{ ansible_failed_result }}"
"""

RETURN = r"""
step_result:
  description:
    - Keys step and outcome (advance, retry or fail). For a fault also code, class, reason, cure and
      fault, else predicted and data.
  returned: always
  type: dict
"""
