#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_diagnose
short_description: See on the machine whether it is sound and has what its pool asks for
version_added: 0.1.0
description:
  - Compares the hardware with a minimum, and looks for hardware errors in the log of the kernel.
  - A machine that lacks something fails with fault code V(DIAGNOSTICS_FAILED), and all of it named.
options:
  minimum:
    description: What the machine must have at least. Left out is not checked.
    type: dict
    default: {}
    suboptions:
      memory_bytes:
        description: Bytes of memory.
        type: int
      threads:
        description: CPU threads.
        type: int
      disks:
        description: Number of disks.
        type: int
      links:
        description: Number of network cards that have a link.
        type: int
attributes:
  check_mode:
    support: full
    description: It only reads.
  diff_mode:
    support: none
    description: It changes nothing.
  idempotent:
    support: full
    description: It changes nothing.
seealso:
  - module: barewright.metal.node_inventory
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: Refuse a machine with less than 64 GiB of memory or two disks
  barewright.metal.node_diagnose:
    minimum:
      memory_bytes: 68719476736
      disks: 2
"""

RETURN = r"""
shortages:
  description: What the machine has less of than the minimum, a sentence each.
  returned: always
  type: list
  elements: str
hardware_errors:
  description: Messages of the kernel that tell of failed hardware.
  returned: always
  type: list
  elements: str
fault:
  description: What went wrong, with C(code), C(wanted), C(found), C(cure) and C(details).
  returned: failure
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.barewright.metal.plugins.module_utils.diagnose import (
    hardware_errors,
    judge,
    shortages,
)
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.inventory import read_inventory


def read_kernel_log() -> list[str]:
    """The records of ``/dev/kmsg`` so far, one string each."""
    records = []
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                records.append(os.read(descriptor, 8192).decode("utf-8", "replace"))
            except BrokenPipeError:  # this record was overwritten meanwhile; the next is there
                continue
            except BlockingIOError:
                return records
    finally:
        os.close(descriptor)


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "minimum": {
                "type": "dict",
                "default": {},
                "options": {
                    "memory_bytes": {"type": "int"},
                    "threads": {"type": "int"},
                    "disks": {"type": "int"},
                    "links": {"type": "int"},
                },
            },
        },
        supports_check_mode=True,
    )
    lacking = shortages(read_inventory(), module.params["minimum"])
    errors = hardware_errors(read_kernel_log())
    found = {"shortages": lacking, "hardware_errors": errors}
    try:
        judge(lacking, errors)
    except Fault as fault:
        module.fail_json(**fault.to_result(), **found)
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
