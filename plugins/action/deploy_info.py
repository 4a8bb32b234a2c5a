# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the module of the same name on the machine."""

from __future__ import annotations

from ansible_collections.barewright.metal.plugins.plugin_utils.node_action import NodeAction


class ActionModule(NodeAction):
    """See the module of the same name for the options."""
