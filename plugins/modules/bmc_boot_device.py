#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: bmc_boot_device
short_description: Choose what a machine boots from next
version_added: 0.1.0
description:
  - Sets the boot override of the BMC. Device, persistence and firmware mode are sent together and
    read back; success means that the BMC shows what was asked for.
  - What counts in the end is what booted. Some BMCs show an override and boot the disk all the
    same.
extends_documentation_fragment:
  - barewright.metal.bmc
options:
  device:
    description:
      - The device to boot from. V(none) takes the override away.
    type: str
    required: true
    choices: [none, pxe, disk, cd, usb, bios_setup, uefi_http]
  persistence:
    description:
      - V(once) is for the next boot, V(continuous) for every boot until it is taken away.
        Ignored with O(device=none).
    type: str
    default: once
    choices: [once, continuous]
  mode:
    description:
      - Firmware mode of the boot. When left out it is kept as the BMC reports it. Better name it,
        many machines boot in another mode than they did before once an override is set.
    type: str
    choices: [uefi, bios]
attributes:
  check_mode:
    support: full
    description: Reads the override and returns the one that would be set.
  diff_mode:
    support: full
    description: Shows the override before and after.
  idempotent:
    support: full
    description:
      - Nothing is sent when the BMC shows what is asked for. An override of V(once) is gone after
        one boot, the next run sets it again.
seealso:
  - module: barewright.metal.bmc_power
"""

EXAMPLES = r"""
- name: Boot from the network once, in UEFI mode
  barewright.metal.bmc_boot_device:
    address: "{{ bmc_address }}"
    username: "{{ bmc_username }}"
    password: "{{ bmc_password }}"
    ca_path: /etc/ssl/bmc-ca.pem
    device: pxe
    mode: uefi
  delegate_to: localhost

- name: Credentials for all BMC tasks at once
  module_defaults:
    group/barewright.metal.bmc:
      address: "{{ bmc_address }}"
      username: "{{ bmc_username }}"
      password: "{{ bmc_password }}"
  delegate_to: localhost
  block:
    - name: Let the machine boot from its own configuration again
      barewright.metal.bmc_boot_device:
        device: none
"""

RETURN = r"""
boot_override:
  description: The override that was read back. In check mode the one to expect.
  returned: success
  type: dict
  contains:
    device:
      description: One of the choices of O(device), or the BMC's own word for another one.
      type: str
    enabled:
      description: V(once), V(continuous) or V(disabled).
      type: str
    mode:
      description: V(uefi), V(bios), or null when the BMC does not say.
      type: str
  sample: {device: pxe, enabled: once, mode: uefi}
boot_override_before:
  description: The override that was found, in the same shape.
  returned: success
  type: dict
payloads:
  description:
    - The forms of the request that were accepted, V(complete) or V(minimal) (without the mode, as
      some BMCs want it). Empty when nothing was sent.
  returned: success
  type: list
  elements: str
driver:
  description: The driver that did the work.
  returned: success
  type: str
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
    boot_device_argument_spec,
    run_boot_device,
)


def main() -> None:
    run_module(
        AnsibleModule(boot_device_argument_spec(), supports_check_mode=True), run_boot_device
    )


if __name__ == "__main__":
    main()
