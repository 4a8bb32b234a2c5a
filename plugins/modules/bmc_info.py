#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: bmc_info
short_description: Read what the BMC knows of a machine
version_added: 0.1.0
description:
  - Reads the power state, the boot override, what the BMC can do, and an inventory of the machine.
  - The inventory has the shape that M(barewright.metal.node_inventory) returns from the machine
    itself. What is unknown is null, and what there is none of is an empty list.
  - A part that the BMC does not deliver leaves its values unknown and is named in RV(incomplete).
  - IPMI knows little more than the name plate of a machine, no network cards and no disks.
extends_documentation_fragment:
  - barewright.metal.bmc
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
  - module: barewright.metal.bmc_power
"""

EXAMPLES = r"""
- name: Ask the BMC
  barewright.metal.bmc_info:
    address: "{{ bmc_address }}"
    username: "{{ bmc_username }}"
    password: "{{ bmc_password }}"
    ca_path: /etc/ssl/bmc-ca.pem
  delegate_to: localhost
  register: bmc

- name: Show the MAC addresses
  ansible.builtin.debug:
    msg: "{{ bmc.inventory.nics | default([], true) | map(attribute='mac') }}"
"""

RETURN = r"""
power_state:
  description: V(on), V(off) or V(unknown).
  returned: success
  type: str
boot_override:
  description: The boot override, as M(barewright.metal.bmc_boot_device) returns it.
  returned: success
  type: dict
  sample: {device: none, enabled: disabled, mode: uefi}
capabilities:
  description: What the BMC offers.
  returned: success
  type: dict
  contains:
    power:
      description: Power actions, each with the BMC's own name for it.
      type: dict
    boot_devices:
      description: Devices that M(barewright.metal.bmc_boot_device) can set.
      type: list
      elements: str
    boot_modes:
      description: Firmware modes that an override can name. Empty when the BMC does not say.
      type: list
      elements: str
  sample:
    power: {'on': 'On', force_off: ForceOff}
    boot_devices: [none, pxe, disk]
    boot_modes: [uefi, bios]
secure_boot:
  description: Whether the firmware knows Secure Boot and whether it is on. Null is unknown.
  returned: success
  type: dict
  sample: {supported: true, enabled: false}
inventory:
  description: The machine.
  returned: success
  type: dict
  contains:
    source:
      description: Always V(out_of_band).
      type: str
    system:
      description: uuid, serial_number, manufacturer, model and sku. Placeholders are null.
      type: dict
    firmware:
      description: vendor, version, boot_mode (V(uefi) or V(bios)) and secure_boot.
      type: dict
    bmc:
      description: model, firmware_version and uuid of the BMC, or null.
      type: dict
    cpu:
      description: sockets, cores, threads, model and architecture, all sockets together.
      type: dict
    memory:
      description: size_bytes.
      type: dict
    nics:
      description:
        - Network cards with name, mac, permanent_mac, link_up, speed_mbps, pxe_capable and driver.
      type: list
      elements: dict
    disks:
      description:
        - Disks with name, path, by_id, by_path, model, serial_number, wwn, size_bytes, bus,
          rotational, read_only, logical_sector_bytes and physical_sector_bytes.
      type: list
      elements: dict
    gpus:
      description: Graphics processors with vendor, model and pci_address.
      type: list
      elements: dict
incomplete:
  description: Resources that could not be read, each with resource and reason.
  returned: success
  type: list
  elements: dict
drivers:
  description: The driver of each concern.
  returned: success
  type: dict
  sample: {power: ipmi, boot: redfish, inspect: redfish}
system:
  description: The system behind the BMC, null with IPMI.
  returned: success
  type: str
fault:
  description: What went wrong, with the keys code, wanted, found, cure and details.
  returned: failure
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.barewright.metal.plugins.module_utils.bmc.module import run_module
from ansible_collections.barewright.metal.plugins.module_utils.bmc.operations import (
    info_argument_spec,
    run_info,
)


def main() -> None:
    run_module(AnsibleModule(info_argument_spec(), supports_check_mode=True), run_info)


if __name__ == "__main__":
    main()
