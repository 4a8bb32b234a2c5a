#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: disk_wipe
short_description: Erase every disk of a machine, and prove it by reading it back
version_added: 0.1.0
description:
  - Erases all disks and NVMe namespaces of a machine that runs from memory, side by side.
  - A method is chosen for every disk before the first one is touched. It is the strongest that
    the disk advertises for the level; a weaker one is never taken instead. If that method fails
    or the read-back does, the next one of the same level is tried, and both are in the evidence.
  - No exit status is believed. Marks are planted on the disk before, and the disk is read back
    past the page cache after; only what was read decides.
  - A disk that cannot be erased, because it is write protected, in use, hidden or broken, does not
    keep the others from it. It is named with the reason, and the task fails.
  - The work runs detached on the machine; the task follows it and prints its progress.
  - Refuses to run on a machine whose root file system is on a disk.
options:
  level:
    description:
      - V(quick) overwrites both ends of each disk, its partition tables, the borders of its
        partitions and every signature, and reads that back. Most data stays readable for whoever
        looks for it. It is neither Clear nor Purge.
      - V(clear) overwrites all that can be addressed, as Clear of NIST SP 800-88 Rev. 2.
      - V(purge) uses a command of the disk that reaches all of its medium, as Purge of NIST
        SP 800-88 Rev. 2; NVMe sanitize or format, ATA sanitize or enhanced secure erase, SCSI
        sanitize. If a disk advertises none, no disk is touched and the task fails with fault code
        V(PURGE_NOT_SUPPORTED).
    type: str
    choices: [quick, clear, purge]
    required: true
  scope:
    description: Which disks are erased.
    type: str
    choices: [all]
    default: all
  method:
    description:
      - Name of the one method to use on every disk, whether or not the disk advertises it. It must
        be of the level or stronger. M(barewright.metal.disk_info) lists what a disk advertises.
    type: str
    choices:
      - nvme_sanitize_block
      - nvme_sanitize_overwrite
      - nvme_sanitize_crypto
      - nvme_format_user_data
      - nvme_format_crypto
      - ata_sanitize_block
      - ata_sanitize_overwrite
      - ata_sanitize_crypto
      - ata_secure_erase_enhanced
      - scsi_sanitize_block
      - scsi_sanitize_overwrite
      - scsi_sanitize_crypto
      - write_zeroes
      - overwrite
      - ata_secure_erase
      - metadata
  verify:
    description:
      - How much is read back at the levels V(clear) and V(purge).
      - V(sampled) reads both ends and two places in each of 64 to 500 subsections, chosen by a
        seed that is in the evidence.
      - V(full) reads everything.
    type: str
    choices: [sampled, full]
    default: sampled
  timeout_seconds:
    description:
      - Total time limit of the work, from its start. Within it, each disk has a limit of its own,
        from its estimate or from its size and measured speed.
    type: int
    default: 604800
extends_documentation_fragment:
  - barewright.metal.operation
attributes:
  check_mode:
    support: full
    description: >-
      Returns the plan in the shape of the evidence, and fails for disks that could not be erased.
      No disk is opened for writing.
  diff_mode:
    support: none
    description: What is on the disks is not shown; the evidence says what was done.
  idempotent:
    support: partial
    description: >-
      A finished O(operation_id) returns its result and changes nothing. Under another id the disks
      are erased again.
seealso:
  - module: barewright.metal.disk_info
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: Erase all disks before the machine is given back
  barewright.metal.disk_wipe:
    level: clear
    operation_id: wipe-2026-01-31-alpha
  register: wipe

- name: Show what was erased, and how
  ansible.builtin.debug:
    msg: "{{ item.path }}: {{ item.technique }}, {{ item.verified.found }}"
  loop: "{{ wipe.evidence.disks }}"
  loop_control:
    label: "{{ item.path }}"
"""

RETURN = r"""
operation_id:
  description: The id under which a further task attaches to the same work.
  returned: always
  type: str
evidence:
  description:
    - What was done, disk by disk. It also lies on the machine, under
      C(/run/barewright/operations), in the directory of the operation.
  returned: success, in check mode, and when a disk was not erased
  type: dict
  contains:
    evidence_version:
      description: The version of this shape.
      type: int
    operation_id:
      description: The operation; null in check mode if none was given.
      type: str
    level:
      description: The level that was asked for.
      type: str
    sanitization:
      description: V(Clear), V(Purge), or null for V(quick).
      type: str
    verify:
      description: V(sampled) or V(full).
      type: str
    started_at:
      description: When it began, RFC 3339 in UTC; null in check mode.
      type: str
    finished_at:
      description: When it ended; null in check mode.
      type: str
    tool:
      description: C(name) and C(version) of this module.
      type: dict
    machine:
      description: C(uuid), C(serial_number), C(manufacturer), C(model) and C(sku).
      type: dict
    disks:
      description:
        - One row for each disk. Its identity as in an inventory, C(manufacturer),
          C(firmware_version), C(media_type), C(namespace_id), C(method), C(technique), C(tool),
          C(started_at), C(finished_at), C(verified) (C(mode), C(seed), C(regions) as offset and
          length, C(regions_count), C(bytes_read), C(found), C(result)), C(signatures) found before
          a quick wipe, failed C(attempts), C(erased), C(reason_code) and C(reason).
      type: list
      elements: dict
    disks_seen:
      description: Every disk of the machine.
      type: list
      elements: str
    disks_erased:
      description: Those that were erased and read back.
      type: list
      elements: str
    disks_not_erased:
      description: C(path), C(serial_number), C(reason_code) and C(reason) of the others.
      type: list
      elements: dict
    complete:
      description: Whether every disk that was seen is erased.
      type: bool
evidence_path:
  description: The file of the evidence on the machine.
  returned: when disks were erased
  type: str
fault:
  description: What went wrong, with C(code), C(wanted), C(found), C(cure) and C(details).
  returned: failure
  type: dict
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.barewright.metal.plugins.module_utils import operation
from ansible_collections.barewright.metal.plugins.module_utils.disks import (
    read_disks,
    runs_from_memory,
)
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.inventory import read_system
from ansible_collections.barewright.metal.plugins.module_utils.wipe.evidence import (
    fault_of,
    store,
)
from ansible_collections.barewright.metal.plugins.module_utils.wipe.features import (
    find_hidden_namespaces,
)
from ansible_collections.barewright.metal.plugins.module_utils.wipe.methods import LEVELS, METHODS
from ansible_collections.barewright.metal.plugins.module_utils.wipe.plan import (
    DiskPlan,
    make_plan,
)
from ansible_collections.barewright.metal.plugins.module_utils.wipe.run import (
    Request,
    plan_evidence,
    wipe,
)
from ansible_collections.barewright.metal.plugins.module_utils.wipe.tools import Tools

ARGUMENT_SPEC: dict[str, Any] = {
    "level": {"type": "str", "choices": list(LEVELS), "required": True},
    "scope": {"type": "str", "choices": ["all"], "default": "all"},
    "method": {"type": "str", "choices": [method.name for method in METHODS]},
    "verify": {"type": "str", "choices": ["sampled", "full"], "default": "sampled"},
    **operation.argument_spec(),
    "timeout_seconds": {"type": "int", "default": 604800},
}


class Wipe:
    """One wipe of this machine, from its plan to its evidence."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._parameters = parameters
        self._tools = Tools()
        self._plans: list[DiskPlan] = []
        self.request = Request(
            operation_id=parameters["operation_id"],
            level=parameters["level"],
            verify=parameters["verify"],
            seed=os.urandom(16).hex(),
            timeout_seconds=float(parameters["timeout_seconds"]),
        )

    def prepare(self) -> None:
        """Choose a method for every disk. Faults: NOT_A_RAMDISK, those of ``make_plan``."""
        if not runs_from_memory():
            raise Fault(
                "NOT_A_RAMDISK",
                wanted="a machine that runs from memory, to erase all of its disks",
                found="a root file system on a disk",
            )
        disks = read_disks()
        hidden = find_hidden_namespaces(disks, self._tools)
        self._plans = make_plan(
            disks, hidden, self.request.level, self._parameters["method"], self._tools
        )

    def plan(self) -> dict[str, Any]:
        """The result of check mode."""
        self.prepare()
        evidence = plan_evidence(self._plans, self.request, read_system())
        result: dict[str, Any] = {"changed": True, "evidence": evidence}
        refused = [row for row in evidence["disks_not_erased"] if row["reason_code"]]
        if refused or not evidence["disks"]:
            fault = fault_of({**evidence, "disks_not_erased": refused})
            result.update(fault.to_result() if fault else {})
        return result

    def start(self) -> dict[str, Any]:
        """Start the operation, attach to it, or return what it left."""
        request = self.request
        return operation.start(
            str(request.operation_id),
            {
                "level": request.level,
                "scope": self._parameters["scope"],
                "method": self._parameters["method"],
                "verify": request.verify,
            },
            self._work,
            label="disk_wipe",
            prepare=self.prepare,
            work_ended=self._parameters["work_ended"],
        )

    def _work(self, progress: operation.Progress) -> dict[str, Any]:
        def report(done_bytes: int, total_bytes: int, text: str) -> None:
            progress.update(
                phase="erasing", done_bytes=done_bytes, total_bytes=total_bytes, text=text
            )

        evidence = wipe(self._plans, self.request, read_system(), self._tools, report)
        result: dict[str, Any] = {
            "changed": True,
            "evidence": evidence,
            "evidence_path": store(evidence, str(self.request.operation_id)),
        }
        fault = fault_of(evidence)
        return {**result, **fault.to_result()} if fault else result


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    parameters = dict(module.params)
    if not module.check_mode:
        parameters["operation_id"] = parameters["operation_id"] or operation.new_id("disk_wipe")
    try:
        work = Wipe(parameters)
        if module.check_mode:
            result = work.plan()
        else:
            started = work.start()
            result = {"changed": not started["operation"]["attached"], **started}
    except Fault as fault:
        module.fail_json(**fault.to_result())
    if result.get("failed"):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
