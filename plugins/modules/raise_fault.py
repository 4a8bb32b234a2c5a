#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: raise_fault
short_description: Fail a task with a code of the fault table
version_added: 0.1.0
description:
  - Ends the task as failed, with the same C(fault) that the modules of this collection return.
  - The module runs as an action plugin on the controller and opens no connection to the node.
options:
  code:
    description: The code, a row of C(faults.yml).
    type: str
    required: true
  wanted:
    description: What was asked for.
    type: str
    default: ''
  found:
    description: What was there instead.
    type: str
    default: ''
  cure:
    description: What to do next. Where empty the cure of the fault table applies.
    type: str
    default: ''
  details:
    description: Plain data that helps to understand the fault. Never a secret.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Fails in check mode as well.
  diff_mode:
    support: none
    description: It changes nothing.
  idempotent:
    support: full
    description: It changes nothing.
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: Refuse a node without a network card to boot from
  barewright.metal.raise_fault:
    code: PXE_MAC_UNKNOWN
    wanted: the MAC address of a network card that boots
    found: the BMC names none and pxe_macs is not set
  when: not pxe_macs | default([])
"""

RETURN = r"""
fault:
  description: The fault, with the keys code, wanted, found, cure and details.
  returned: always
  type: dict
"""
