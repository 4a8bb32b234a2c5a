# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

from ansible_collections.barewright.metal.plugins.module_utils.inventory_compare import differences

DOCUMENTATION = r"""
name: inventory_differences
short_description: Name where two inventories of a machine disagree
version_added: 0.1.0
description:
  - Compares what a BMC says of a machine with what was read on the machine.
  - What one side does not know (null) is no disagreement. What the machine has beyond the BMC's
    list is none either, since BMCs do not see every add-in card.
positional: _input
options:
  _input:
    description: The inventory that M(barewright.metal.bmc_info) returned.
    type: dict
    required: true
  in_band:
    description: The inventory that M(barewright.metal.node_inventory) returned.
    type: dict
    required: true
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: Name the disagreements
  ansible.builtin.debug:
    msg: "{{ bmc.inventory | barewright.metal.inventory_differences(machine.inventory) }}"
"""

RETURN = r"""
_value:
  description: A dictionary for each disagreement, with the keys field, out_of_band, in_band, text.
  type: list
  elements: dict
"""


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Name and function of each."""
        return {"inventory_differences": differences}
