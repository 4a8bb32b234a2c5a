#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: bmc_power
short_description: Power a machine on, off, through a cycle or reset it
version_added: 0.1.0
description:
  - Reads the power state, sends what is needed, and succeeds when the wanted state is observed.
  - A command that the BMC accepted is never sent again. One that it refused for the moment
    (HTTP 409 or 503, a machine in its self-test) is repeated until the time limit.
  - A power state that is neither on nor off is unknown. It is never treated as off; the module
    waits for a known one.
extends_documentation_fragment:
  - barewright.metal.bmc
options:
  state:
    description:
      - V(on) and V(off) do nothing when the machine is there already.
      - V(cycled) switches the machine off, waits until it is observed to be off, and switches it
        on. A machine that is off is switched on.
      - V(reset) sends one bare reset to a machine that is on. What came of it cannot be read back,
        so the intent is stored in the record of the node first (with C(barewright_state_dir)), and
        it is never sent again with unknown outcome. The fault is then C(OUTCOME_UNKNOWN).
    type: str
    required: true
    choices: ['on', 'off', cycled, reset]
  shutdown:
    description:
      - How to stop a running system.
      - V(forced) cuts the power (or resets) at once.
      - V(graceful) asks the operating system. When the BMC does not offer that, the fault is
        C(GRACEFUL_NOT_OFFERED); when the system does not obey, C(POWER_NOT_REACHED).
      - V(graceful_then_forced) asks first, and forces it when that is not offered or not obeyed
        within O(graceful_timeout_seconds). RV(shutdown) then says so.
    type: str
    default: forced
    choices: [forced, graceful, graceful_then_forced]
  graceful_timeout_seconds:
    description:
      - How long O(shutdown=graceful_then_forced) waits for the operating system.
    type: int
    default: 120
attributes:
  check_mode:
    support: full
    description: Reads the state and returns the plan.
  diff_mode:
    support: full
    description: Shows the power state, and the commands in between.
  idempotent:
    support: partial
    description: With O(state=cycled) and O(state=reset) every run acts.
seealso:
  - module: barewright.metal.bmc_boot_device
  - module: barewright.metal.bmc_info
"""

EXAMPLES = r"""
- name: Switch the machine on
  barewright.metal.bmc_power:
    address: "{{ bmc_address }}"
    username: "{{ bmc_username }}"
    password: "{{ bmc_password }}"
    ca_path: /etc/ssl/bmc-ca.pem
    state: 'on'
  delegate_to: localhost

- name: Shut it down, by force if the system does not obey within a minute
  barewright.metal.bmc_power:
    address: "{{ bmc_address }}"
    username: "{{ bmc_username }}"
    password: "{{ bmc_password }}"
    tls_fingerprint: "{{ bmc_tls_fingerprint }}"
    state: 'off'
    shutdown: graceful_then_forced
    graceful_timeout_seconds: 60
  delegate_to: localhost
  register: stopped

- name: Cycle the power by IPMI
  barewright.metal.bmc_power:
    address: "{{ bmc_address }}"
    username: "{{ bmc_username }}"
    password: "{{ bmc_password }}"
    driver: ipmi
    state: cycled
  delegate_to: localhost
"""

RETURN = r"""
power_state:
  description: The state observed at the end, V(on) or V(off). In check mode the one to expect.
  returned: success
  type: str
  sample: 'on'
power_state_before:
  description: The state observed at the start, V(on) or V(off).
  returned: success
  type: str
  sample: 'off'
commands:
  description:
    - What was sent, in order, by the names of the BMC. In check mode what would be sent.
  returned: success
  type: list
  elements: str
  sample: [ForceOff, 'On']
shutdown:
  description: How the system was stopped.
  returned: success
  type: dict
  contains:
    requested:
      description: The value of O(shutdown).
      type: str
    used:
      description: V(graceful) or V(forced), null when nothing had to be stopped.
      type: str
    reason:
      description: Why it was forced although a graceful way was asked for, null otherwise.
      type: str
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
    power_argument_spec,
    run_power,
)


def main() -> None:
    run_module(AnsibleModule(power_argument_spec(), supports_check_mode=True), run_power)


if __name__ == "__main__":
    main()
