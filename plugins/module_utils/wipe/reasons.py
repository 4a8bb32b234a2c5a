# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a disk was not erased: a code out of a fixed table, and a sentence."""

from __future__ import annotations

REASONS = {
    "READ_ONLY": "the disk is write protected",
    "BUSY": "the disk or a partition of it is in use",
    "NO_CAPACITY": "the disk reports no capacity",
    "NOT_ATTACHED": "the NVMe namespace has no block device here",
    "NO_METHOD": "the disk advertises no command of the level",
    "FROZEN": "the firmware froze the ATA security commands until the next power cycle",
    "LOCKED": "the disk is locked with an ATA password that is not ours",
    "METHOD_FAILED": "the erase command failed",
    "UNREADABLE": "the disk, or a part of it, cannot be read",
    "UNWRITABLE": "the disk, or a part of it, cannot be written",
    "NOT_VERIFIED": "the command reported success, and data is still there",
    "TIMED_OUT": "the erase did not end in time",
}


class DiskRefused(Exception):  # noqa: N818  a refusal is no error of ours
    """A disk could not be erased. ``code`` is a key of ``REASONS``."""

    def __init__(self, code: str, detail: str = "") -> None:
        self.code = code
        self.text = f"{REASONS[code]}: {detail}" if detail else REASONS[code]
        super().__init__(f"{code}: {self.text}")
