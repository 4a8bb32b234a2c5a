#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_record
short_description: Read or change the record that playbook runs keep of a node
version_added: 0.1.0
description:
  - Each node has one YAML file in the state folder that the variable C(barewright_state_dir) names.
  - Without O(set) the module reads. With it the record is changed by a JSON merge patch (RFC 7396).
  - A file that is there and is no record is a fault, never an empty record.
  - The module runs as an action plugin on the controller and opens no connection to the node.
options:
  set:
    description:
      - What to merge into the record. A null value removes its key; lists replace.
    type: dict
    default: {}
  unique:
    description:
      - Dotted paths whose values no other record of the folder may share, such as V(pxe_macs).
      - Empty values never match.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Returns the record as it would be and writes nothing.
  diff_mode:
    support: full
    description: Shows the record before and after.
  idempotent:
    support: full
    description: A patch that is already in the record changes nothing.
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: Read the record
  barewright.metal.node_record:
  register: node

- name: Remember the network cards that boot
  barewright.metal.node_record:
    set:
      pxe_macs: ["52:54:00:77:00:01"]
    unique: [pxe_macs]
"""

RETURN = r"""
record:
  description: The record after the change, or as it would be in check mode.
  returned: success
  type: dict
  sample: {version: 1, node: alpha, phase: ready}
"""
