# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Servers that really power on, boot from the network and hold disks, without any hardware."""
