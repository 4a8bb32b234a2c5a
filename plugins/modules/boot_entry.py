#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: boot_entry
short_description: Tell a boot server which machine may boot from the network, and when
version_added: 0.1.0
description:
  - Runs on the host of a boot server that role P(barewright.metal.boot_server#role) set up.
  - A node's entry names its network cards and its address. Only while the entry's boot window is
    open do DHCP, TFTP and HTTP offer the machine something to boot; else it is left to its disk.
  - After a change the module waits until the receiver has taken the entry over, and fails with
    C(BOOT_SERVER_DOWN) when it does not.
options:
  root:
    description: Folder of the boot server.
    type: path
    required: true
  node:
    description: Name of the node (RFC 1123).
    type: str
    required: true
  state:
    description: Whether the boot server shall know the node.
    type: str
    choices: [present, absent]
    default: present
  macs:
    description:
      - MAC addresses of the network cards that the machine may boot from. Any of them finds it.
      - Needed for a new entry. Without the option an entry keeps its own.
      - A MAC address of another entry is refused with C(BOOT_MAC_CONFLICT).
    type: list
    elements: str
  address:
    description:
      - The address that DHCP always gives to these cards. An empty string removes it.
      - Needed to open a window.
      - An address of another entry is refused with C(BOOT_ADDRESS_CONFLICT).
    type: str
  rejoin_token_sha256:
    description:
      - SHA-256, in hex, of the token by which the deployed system says that it is up.
      - An empty string removes it.
    type: str
  window:
    description: What an open boot window offers.
    type: dict
    suboptions:
      duration_seconds:
        description: How long the window stays open, at most 600.
        type: int
        default: 600
      kernel:
        description: Path below C(files) of the boot server, or an HTTP address.
        type: str
        required: true
      initrd:
        description: Path below C(files) of the boot server, or an HTTP address.
        type: str
        required: true
      command_line:
        description: Kernel command line. The receiver adds its own address, the token and the card.
        type: str
        default: ''
      authorized_keys:
        description: SSH public keys that the ramdisk lets in.
        type: list
        elements: str
        required: true
  window_state:
    description:
      - V(open) keeps an open window that offers the same, and opens one otherwise.
      - V(renewed) opens a new window, with its full time, whatever was there before.
      - V(closed) closes it. Where there is no entry there is nothing to close.
      - Without the option the window is left as it is.
    type: str
    choices: [open, renewed, closed]
  timeout_seconds:
    description: How long the receiver may take to follow.
    type: int
    default: 10
attributes:
  check_mode:
    support: full
    description: Returns the entry as it would be; a new window's id and times are made up then.
  diff_mode:
    support: full
    description: Shows the entry before and after.
  idempotent:
    support: partial
    description: Fully, but for O(window_state=renewed), which always opens a new window.
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: Let alpha boot the ramdisk during the next ten minutes
  barewright.metal.boot_entry:
    root: /var/lib/barewright/boot
    node: alpha
    macs: ["52:54:00:77:00:01"]
    address: 10.77.2.1
    window_state: renewed
    window:
      kernel: ramdisk/vmlinuz
      initrd: ramdisk/initrd.img
      command_line: console=ttyS0
      authorized_keys: ["ssh-ed25519 AAAA... barewright"]
  register: boot

- name: Leave alpha to its disk from now on
  barewright.metal.boot_entry:
    root: /var/lib/barewright/boot
    node: alpha
    window_state: closed
"""

RETURN = r"""
window_id:
  description: The id of the entry's newest boot window, null where it never had one.
  returned: success
  type: str
  sample: 7d4e0c3a2f4b4c1d9a7be2c1f0d35e8b
entry:
  description: The entry as it is now, or would be in check mode; null where there is none.
  returned: success
  type: dict
  contains:
    node:
      description: Name of the node.
      type: str
    macs:
      description: MAC addresses that find the node.
      type: list
      elements: str
    address:
      description: The address that DHCP gives, or null.
      type: str
    rejoin_token_sha256:
      description: SHA-256 of the rejoin token, or null.
      type: str
    window:
      description:
        - The newest window, or null.
        - C(window_id), C(opened_at), C(expires_at), C(closed_at), and what it offers.
      type: dict
"""

from datetime import UTC, datetime

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.barewright.metal.plugins.module_utils.boot import (
    BootFolder,
    EntryRequest,
    plan,
)
from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault

ARGUMENTS = {
    "root": {"type": "path", "required": True},
    "node": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "macs": {"type": "list", "elements": "str"},
    "address": {"type": "str"},
    "rejoin_token_sha256": {"type": "str", "no_log": False},
    "window": {
        "type": "dict",
        "options": {
            "duration_seconds": {"type": "int", "default": 600},
            "kernel": {"type": "str", "required": True},
            "initrd": {"type": "str", "required": True},
            "command_line": {"type": "str", "default": ""},
            "authorized_keys": {
                "type": "list",
                "elements": "str",
                "required": True,
                "no_log": False,
            },
        },
    },
    "window_state": {"type": "str", "choices": ["open", "renewed", "closed"]},
    "timeout_seconds": {"type": "int", "default": 10},
}


def ensure_entry(options, check_mode):
    """Bring the entry to what ``options`` ask for; the module's result."""
    request = EntryRequest.of(options)
    deadline = Deadline(options["timeout_seconds"])
    folder = BootFolder(options["root"])
    with folder.locked():
        others = folder.entries()
        before = others.pop(request.node, None)
        after = plan(before, request, others, datetime.now(UTC))
        if after != before and not check_mode:
            if after is None:
                folder.remove(request.node)
            else:
                folder.write(after)
    if not check_mode and (after != before or request.opens):
        folder.await_gate(request.node, after, request.opens, deadline)
    return {
        "changed": after != before,
        "diff": {"before": before or {}, "after": after or {}},
        "entry": after,
        "window_id": ((after or {}).get("window") or {}).get("window_id"),
    }


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = ensure_entry(module.params, module.check_mode)
    except Fault as fault:
        module.fail_json(**fault.to_result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
