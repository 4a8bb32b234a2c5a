# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A baseboard management controller: Redfish over HTTPS and IPMI 2.0, in front of a machine.

`state` is what a BMC knows and does, whatever protocol asked; `redfish` and `resources` speak HTTP,
`ipmi` and `commands` speak RMCP+; `journal` writes down every request; `host` listens.
"""
