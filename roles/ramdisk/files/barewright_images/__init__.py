# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: Barewright contributors
"""What the roles ramdisk and image_build share: Debian root filesystems, a store of builds."""
