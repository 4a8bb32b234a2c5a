#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_seed
short_description: Write the cloud-init seed of an installed system to its disk
version_added: 0.1.0
description:
  - Writes a NoCloud seed into the partition of the root disk that holds a vfat file system called
    C(CIDATA). When there is none, a partition of 8 MiB is made at the end of the disk, after the
    backup GPT was moved there.
  - The SSH host key of the system (Ed25519) is made on the machine and kept while the
    O(instance_id) stays the same. Its public half is returned, so that it can be pinned before the
    system boots for the first time.
  - With O(rejoin), the seed brings a systemd unit that tells the boot server of every boot.
  - The files are JSON, which is YAML. They are described in C(docs/seed.md).
options:
  root_disk:
    description:
      - Hints that choose the disk; it must fit all of them, and be the only one that does.
      - Keys are V(serial_number), V(wwn), V(model), V(size_bytes), V(min_size_bytes),
        V(max_size_bytes), V(rotational), V(by_path) and V(name).
      - Without hints the machine must have exactly one disk.
    type: dict
    default: {}
  instance_id:
    description: Identity of this installation; another one makes cloud-init start anew.
    type: str
    required: true
  hostname:
    description: Host name without a domain.
    type: str
    required: true
  fqdn:
    description: Host name with its domain.
    type: str
  user_data:
    description:
      - Cloud-config that is merged into the seed's own. Lists under C(write_files) and C(runcmd)
        come before the seed's own entries.
      - The keys C(ssh_keys), C(ssh_genkeytypes) and C(ssh_deletekeys) belong to the seed.
    type: dict
    default: {}
  network_config:
    description:
      - Network configuration, version 2. Without it cloud-init uses DHCP on the first interface.
    type: dict
  rejoin:
    description: Whom the installed system tells of its boots.
    type: dict
    suboptions:
      url:
        description: Base URL of the boot server.
        type: str
        required: true
      node:
        description: Name of the node.
        type: str
        required: true
      deploy_id:
        description: Identity of the deployment; also written to C(/etc/barewright/deploy.json).
        type: str
        required: true
      token:
        description:
          - Token that the boot server knows the node by. One is made on the machine when this is
            omitted, and kept while the O(instance_id) stays the same; only its digest is returned.
        type: str
attributes:
  check_mode:
    support: full
    description: Reads the disk and the seed on it, and makes no key.
  diff_mode:
    support: full
    description: Shows the files without keys, passwords, tokens and contents of files.
  idempotent:
    support: full
    description: A seed that says the same already is left alone.
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: Write the seed of the installed system
  barewright.metal.node_seed:
    root_disk:
      serial_number: S4EVNX0R123456
    instance_id: i-20260131T120000
    hostname: alpha
    fqdn: alpha.example.org
    user_data:
      users:
        - name: operator
          sudo: ALL=(ALL) NOPASSWD:ALL
          ssh_authorized_keys:
            - ssh-ed25519 AAAA… operator
    network_config:
      version: 2
      ethernets:
        lan:
          match:
            macaddress: "52:54:00:77:00:01"
          addresses: [10.77.2.1/16]
    rejoin:
      url: http://10.77.0.1:8080
      node: alpha
      deploy_id: 0f3c-i-20260131T120000
  register: seed
"""

RETURN = r"""
ssh_host_public_key:
  description: Type and key of the system's SSH host key; null in check mode while it is not made.
  returned: success
  type: str
  sample: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI…
rejoin_token_sha256:
  description: SHA-256 of the rejoin token, in hex; null without O(rejoin) or while it is not made.
  returned: success
  type: str
host_key_kept:
  description: Whether the host key was in the seed of the same instance already.
  returned: success
  type: bool
partition:
  description: The seed's partition.
  returned: success
  type: dict
  contains:
    number:
      description: Number in the partition table.
      type: int
    offset_bytes:
      description: Where it begins on the disk.
      type: int
    size_bytes:
      description: Its size.
      type: int
    created:
      description: Whether it was made by this task.
      type: bool
root_disk:
  description: Identity of the disk, as a row of an inventory.
  returned: success
  type: dict
fault:
  description: What went wrong, with C(code), C(wanted), C(found), C(cure) and C(details).
  returned: failure
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.barewright.metal.plugins.module_utils import seed
from ansible_collections.barewright.metal.plugins.module_utils.block_device import BlockDevice
from ansible_collections.barewright.metal.plugins.module_utils.disks import read_disks
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.hints import find_root_disk

ARGUMENT_SPEC: dict[str, Any] = {
    "root_disk": {"type": "dict", "default": {}},
    "instance_id": {"type": "str", "required": True},
    "hostname": {"type": "str", "required": True},
    "fqdn": {"type": "str"},
    "user_data": {"type": "dict", "default": {}},
    "network_config": {"type": "dict"},
    "rejoin": {
        "type": "dict",
        "options": {
            "url": {"type": "str", "required": True},
            "node": {"type": "str", "required": True},
            "deploy_id": {"type": "str", "required": True},
            "token": {"type": "str", "no_log": True},
        },
    },
}


def request_of(parameters: dict[str, Any]) -> seed.SeedRequest:
    """The request that the module's parameters describe."""
    rejoin = parameters["rejoin"]
    return seed.SeedRequest(
        instance_id=parameters["instance_id"],
        hostname=parameters["hostname"],
        fqdn=parameters["fqdn"] or None,
        user_data=parameters["user_data"],
        network_config=parameters["network_config"],
        rejoin=seed.Rejoin(**rejoin) if rejoin else None,
    )


def write_seed(
    path: str, request: seed.SeedRequest, check_mode: bool, with_diff: bool
) -> dict[str, Any]:
    """Make the disk at ``path`` hold the seed. Returns the module's result without the disk."""
    request.check()
    with seed.scratch_directory() as scratch, BlockDevice(path, writable=not check_mode) as device:
        place = seed.find_place(device)
        before = seed.read_files(device, place, scratch)
        kept = seed.secrets_in(before, request)
        if check_mode and kept is None:
            known, after = None, seed.render(request, seed.PLACEHOLDERS)
        else:
            known = seed.make_secrets(kept, request, scratch)
            after = seed.render(request, known)
        changed = before != after
        if changed and not check_mode:
            seed.write(device, place, after, scratch)
    result = {
        "changed": changed,
        "ssh_host_public_key": known and seed.public_key(known),
        "rejoin_token_sha256": seed.token_sha256(known) if known and request.rejoin else None,
        "host_key_kept": kept is not None,
        "partition": {
            "number": place.number,
            "offset_bytes": place.offset,
            "size_bytes": place.size_bytes,
            "created": not place.exists,
        },
    }
    if with_diff:
        result["diff"] = {
            "before": seed.shown(before),
            "after": seed.shown(after),
            "before_header": f"seed on {path}",
            "after_header": f"seed on {path}",
        }
    return result


def main() -> None:
    """Entry point."""
    # no_log keeps the parameters out of the machine's system log; user data may hold passwords.
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True, no_log=True)
    invocation = {"module_args": {**module.params, "user_data": sorted(module.params["user_data"])}}
    try:
        disk = find_root_disk(read_disks(), module.params["root_disk"])
        result = write_seed(disk.path, request_of(module.params), module.check_mode, module._diff)
    except Fault as fault:
        module.fail_json(invocation=invocation, **fault.to_result())
    module.exit_json(invocation=invocation, root_disk=disk.identity(), **result)


if __name__ == "__main__":
    main()
