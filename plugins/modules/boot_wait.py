#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: boot_wait
short_description: Wait until a machine tells the boot server something
version_added: 0.1.0
description:
  - Runs on the host of a boot server and looks into the spool of its receiver.
  - A ramdisk checks in, a deployed system rejoins, and detached work says that it ended.
  - When the token of the awaited check-in was used with a second key, the module fails with
    C(BOOT_TOKEN_REUSED).
options:
  root:
    description: Folder of the boot server.
    type: path
    required: true
  node:
    description: Name of the node.
    type: str
    required: true
  kind:
    description: What is awaited.
    type: str
    choices: [checkin, rejoin, work_ended]
    required: true
  window_id:
    description: Only a check-in in this boot window counts.
    type: str
  operation_id:
    description: Only the end of this operation counts.
    type: str
  deploy_id:
    description: Only a rejoin of this deployment counts.
    type: str
  after:
    description:
      - Only what the receiver got after this time counts (RFC 3339).
      - Take it from RV(now) of an earlier call, which is the clock of the same host.
    type: str
  timeout_seconds:
    description: How long to wait. With V(0) the module looks once and reports what it saw.
    type: int
    default: 600
attributes:
  check_mode:
    support: full
    description: Looks once and never waits, since nothing was done that a machine could answer to.
  diff_mode:
    support: none
    description: It changes nothing.
  idempotent:
    support: full
    description: It changes nothing.
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: Wait for the ramdisk
  barewright.metal.boot_wait:
    root: /var/lib/barewright/boot
    node: alpha
    kind: checkin
    window_id: "{{ boot.window_id }}"
  register: ramdisk

- name: Look whether the deployed system is up, without waiting
  barewright.metal.boot_wait:
    root: /var/lib/barewright/boot
    node: alpha
    kind: rejoin
    after: "{{ before_reboot.now }}"
    timeout_seconds: 0
"""

RETURN = r"""
arrived:
  description: Whether there is such an event. Always true where the module waited.
  returned: success
  type: bool
event:
  description:
    - The newest event that fits, null when there is none yet. It never holds a token.
  returned: success
  type: dict
  contains:
    kind:
      description: What happened.
      type: str
    node:
      description: Name of the node.
      type: str
    received_at:
      description: When the receiver got it, by its clock.
      type: str
    remote_address:
      description: Where it came from.
      type: str
    window_id:
      description: The boot window.
      type: str
      returned: for check-ins
    mac:
      description: The card that the machine booted from.
      type: str
      returned: for check-ins
    macs:
      description: All its cards.
      type: list
      elements: str
      returned: for check-ins
    product_uuid:
      description: UUID of the machine, lower case, or null.
      type: str
      returned: for check-ins
    ssh_host_key:
      description: SSH host key of the ramdisk.
      type: str
      returned: for check-ins
    identity_key:
      description: Identity key of the ramdisk (PEM).
      type: str
      returned: for check-ins
    boot_mode:
      description: V(uefi) or V(bios).
      type: str
      returned: for check-ins
    addresses:
      description: Addresses of the ramdisk.
      type: list
      elements: str
      returned: for check-ins
    boot_id:
      description: Boot id of the kernel.
      type: str
      returned: for rejoins
    deploy_id:
      description: The deployment that rejoined.
      type: str
      returned: for rejoins
    operation_id:
      description: The operation that ended.
      type: str
      returned: for ended work
now:
  description: The time on the host of the boot server, for O(after).
  returned: success
  type: str
  sample: "2026-01-31T12:00:00.123456Z"
"""

from datetime import UTC, datetime

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.barewright.metal.plugins.module_utils.boot import (
    EVENT_KINDS,
    BootFolder,
    EventFilter,
    await_event,
    check_node,
    parse_timestamp,
    timestamp,
)
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault

ARGUMENTS = {
    "root": {"type": "path", "required": True},
    "node": {"type": "str", "required": True},
    "kind": {"type": "str", "choices": list(EVENT_KINDS), "required": True},
    "window_id": {"type": "str"},
    "operation_id": {"type": "str"},
    "deploy_id": {"type": "str"},
    "after": {"type": "str"},
    "timeout_seconds": {"type": "int", "default": 600},
}


def wait_for_event(options, check_mode):
    """Look, or wait, for the event; the module's result."""
    after = options["after"]
    wanted = EventFilter(
        node=check_node(options["node"]),
        kind=options["kind"],
        window_id=options["window_id"],
        operation_id=options["operation_id"],
        deploy_id=options["deploy_id"],
        after=parse_timestamp(after) if after else None,
    )
    # Read before the first look: what comes in meanwhile is newer than this.
    now = timestamp(datetime.now(UTC))
    folder = BootFolder(options["root"])
    event = await_event(folder, wanted, 0 if check_mode else options["timeout_seconds"])
    return {"changed": False, "arrived": event is not None, "event": event, "now": now}


def main():
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = wait_for_event(module.params, module.check_mode)
    except Fault as fault:
        module.fail_json(**fault.to_result())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
