#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: disk_info
short_description: List the disks of a machine and what they can do
version_added: 0.1.0
description:
  - Lists every whole disk and every NVMe namespace with its stable names, its partitions, what
    keeps it in use, and the erase methods that it advertises.
  - Loop, RAM, zram, device-mapper and md devices, floppies and CD drives are no disks.
  - Chooses the root disk if hints are given.
options:
  hints:
    description:
      - Hints that choose the root disk; it must fit all of them, and be the only one that does.
      - Keys are V(serial_number), V(wwn), V(model), V(size_bytes), V(min_size_bytes),
        V(max_size_bytes), V(rotational), V(by_path) and V(name).
      - With an empty dictionary the machine must have exactly one disk.
    type: dict
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
  - module: barewright.metal.disk_wipe
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: List the disks
  barewright.metal.disk_info:
  register: machine

- name: See which disk an image would go to
  barewright.metal.disk_info:
    hints:
      rotational: false
      min_size_bytes: 400000000000
"""

RETURN = r"""
disks:
  description: The disks, in the order of their names.
  returned: always, unless reading them failed
  type: list
  elements: dict
  contains:
    name:
      description: The kernel's name.
      type: str
    path:
      description: The device.
      type: str
    by_id:
      description: The link by model and serial number, if udev made one.
      type: str
    by_path:
      description: The link by the place in the machine, if udev made one.
      type: str
    links:
      description: All links.
      type: list
      elements: str
    manufacturer:
      description: The manufacturer, where the disk tells one.
      type: str
    model:
      description: The model.
      type: str
    serial_number:
      description: The serial number.
      type: str
    firmware_version:
      description: The version of the disk's firmware.
      type: str
    wwn:
      description: The world wide name, V(0x…) or V(eui.…).
      type: str
    size_bytes:
      description: The capacity.
      type: int
    bus:
      description: V(nvme), V(scsi), V(sas), V(sata), V(virtio), V(usb), V(mmc) or null.
      type: str
    media_type:
      description: V(magnetic disk), V(flash memory), V(virtual disk) or V(unknown).
      type: str
    rotational:
      description: Whether the kernel takes the medium for a rotating one.
      type: bool
    read_only:
      description: Whether the disk is write protected.
      type: bool
    logical_sector_bytes:
      description: The smallest unit of reading and writing.
      type: int
    physical_sector_bytes:
      description: The unit that the medium has inside.
      type: int
    namespace_id:
      description: The number of an NVMe namespace.
      type: int
    controllers:
      description: The NVMe controllers that lead to it.
      type: list
      elements: str
    partitions:
      description: C(name), C(path), C(start_bytes) and C(size_bytes) of its partitions.
      type: list
      elements: dict
    holders:
      description:
        - What keeps the disk or a partition of it in use; C(device), C(kind) (V(mount), V(swap)
          or V(device)) and C(name).
      type: list
      elements: dict
    capabilities:
      description: The erase methods that the disk advertises, strongest of a level first.
      type: list
      elements: str
hidden_namespaces:
  description:
    - NVMe namespaces without a block device, because they are not attached or the kernel does not
      know their format; C(controller) and C(namespace_id). A null C(namespace_id) means that the
      controller does not list its namespaces.
  returned: always, unless reading the disks failed
  type: list
  elements: dict
root_disk:
  description: The disk that the hints choose, as a row of RV(disks) without its details.
  returned: when hints are given and choose one
  type: dict
fault:
  description: What went wrong, with C(code), C(wanted), C(found), C(cure) and C(details).
  returned: failure
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.barewright.metal.plugins.module_utils.disks import Disk, read_disks
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.hints import find_root_disk
from ansible_collections.barewright.metal.plugins.module_utils.wipe.features import (
    find_hidden_namespaces,
    read_features,
)
from ansible_collections.barewright.metal.plugins.module_utils.wipe.methods import (
    advertised_methods,
)
from ansible_collections.barewright.metal.plugins.module_utils.wipe.tools import Tools


def describe(disk: Disk, tools: Tools) -> dict[str, Any]:
    """The disk's row with its capabilities."""
    methods = advertised_methods(disk.bus, read_features(disk, tools))
    return {**disk.describe(), "capabilities": [method.name for method in methods]}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec={"hints": {"type": "dict"}}, supports_check_mode=True)
    disks = read_disks()
    tools = Tools()
    result: dict[str, Any] = {
        "disks": [describe(disk, tools) for disk in disks],
        "hidden_namespaces": [
            {"controller": hidden.controllers[0], "namespace_id": hidden.namespace_id}
            for hidden in find_hidden_namespaces(disks, tools)
        ],
    }
    hints = module.params["hints"]
    try:
        if hints is not None:
            result["root_disk"] = find_root_disk(disks, hints).identity()
    except Fault as fault:
        module.fail_json(**fault.to_result(), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
