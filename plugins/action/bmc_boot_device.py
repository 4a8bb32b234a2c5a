# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from ansible_collections.barewright.metal.plugins.module_utils.bmc.operations import (
    boot_device_argument_spec,
    run_boot_device,
)
from ansible_collections.barewright.metal.plugins.plugin_utils.bmc_action import BmcAction


class ActionModule(BmcAction):
    """See the module of the same name."""

    operation = staticmethod(run_boot_device)
    argument_spec = staticmethod(boot_device_argument_spec)
