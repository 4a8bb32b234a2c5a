# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Erasing disks so that it can be believed.

``methods`` is the table of what can be done, ``plan`` chooses from it by what each disk
advertises, ``erasers`` does it, ``verify`` reads the disk back, ``evidence`` writes it down, and
``run`` does all that for every disk of the machine at once.
"""
