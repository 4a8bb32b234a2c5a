#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_inventory
short_description: Read what a machine is made of, on the machine
version_added: 0.1.0
description:
  - Reads the hardware in the same shape that M(barewright.metal.bmc_info) returns it in, from the
    files of the kernel. No command is run and nothing is changed.
  - The memory is what is installed, as the memory devices of SMBIOS tell it, and not what the
    kernel was left with.
  - The display of a management processor does not count as a GPU.
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
  - module: barewright.metal.disk_info
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: Read the hardware
  barewright.metal.node_inventory:
  register: machine

- name: Show the serial number
  ansible.builtin.debug:
    var: machine.inventory.system.serial_number
"""

RETURN = r"""
inventory:
  description: The hardware. Unknown is null, none is an empty list.
  returned: success
  type: dict
  contains:
    source:
      description: V(in_band), because it was read on the machine.
      type: str
    system:
      description: C(uuid) (lower case), C(serial_number), C(manufacturer), C(model) and C(sku).
      type: dict
    firmware:
      description:
        - C(vendor), C(version), C(boot_mode) (V(uefi) or V(bios)), and C(secure_boot) with
          C(supported) and C(enabled).
      type: dict
    bmc:
      description: Null; the machine does not ask its BMC.
      type: dict
    cpu:
      description: C(sockets), C(cores), C(threads), C(model) and C(architecture).
      type: dict
    memory:
      description: C(size_bytes).
      type: dict
    nics:
      description:
        - C(name), C(mac), C(permanent_mac), C(link_up), C(speed_mbps), C(pxe_capable) and
          C(driver) of every Ethernet card. C(link_up) is null while the interface is down.
      type: list
      elements: dict
    disks:
      description:
        - C(name), C(path), C(by_id), C(by_path), C(model), C(serial_number), C(wwn),
          C(size_bytes), C(bus), C(rotational), C(read_only), C(logical_sector_bytes) and
          C(physical_sector_bytes) of every whole disk and NVMe namespace.
      type: list
      elements: dict
    gpus:
      description: C(vendor), C(model) and C(pci_address) of every GPU and accelerator.
      type: list
      elements: dict
fault:
  description: What went wrong, with C(code), C(wanted), C(found), C(cure) and C(details).
  returned: failure
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.barewright.metal.plugins.module_utils.inventory import read_inventory


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    module.exit_json(changed=False, inventory=read_inventory())


if __name__ == "__main__":
    main()
