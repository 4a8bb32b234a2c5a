# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts the module of the same name on the machine and follows its work."""

from __future__ import annotations

from ansible_collections.barewright.metal.plugins.modules.disk_wipe import ARGUMENT_SPEC
from ansible_collections.barewright.metal.plugins.plugin_utils.node_action import DetachedAction


class ActionModule(DetachedAction):
    """See the module of the same name for the options."""

    ARGUMENT_SPEC = ARGUMENT_SPEC
