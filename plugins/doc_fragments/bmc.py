# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """Options, requirements and notes that all BMC modules share."""

    DOCUMENTATION = r"""
options:
  address:
    description:
      - Name or IP address of the BMC.
    type: str
    required: true
  port:
    description:
      - Port of O(driver) on the BMC. 443 for C(redfish) and 623 for C(ipmi) when left out.
    type: int
  ports:
    description:
      - Ports by driver, for a BMC that is reached on unusual ports by more than one driver.
    type: dict
    default: {}
  username:
    description:
      - Account on the BMC.
    type: str
    required: true
  password:
    description:
      - Password of the account. It is tried once; a wrong one ends the task with the fault
        C(BMC_AUTH_FAILED), so that the account is not locked.
    type: str
    required: true
  driver:
    description:
      - The driver for every concern that O(drivers) does not bind otherwise, C(redfish) or C(ipmi).
    type: str
    default: redfish
  drivers:
    description:
      - Drivers by concern. Concerns are C(power), C(boot) and C(inspect).
      - A node may, for instance, bind C(ipmi) to C(power) and leave the rest to C(redfish).
    type: dict
    default: {}
  system_id:
    description:
      - The system behind the BMC, as the last part of its Redfish address. Needed when there is
        more than one; the fault C(SYSTEM_AMBIGUOUS) lists them.
    type: str
  validate_certs:
    description:
      - Verify the certificate of the BMC. Ignored when O(tls_fingerprint) is set.
    type: bool
    default: true
  ca_path:
    description:
      - File with the CA certificates in PEM form that may have signed the certificate of the BMC.
        The CAs that Python's C(requests) trusts when left out.
    type: path
  tls_fingerprint:
    description:
      - SHA-256 of the certificate of the BMC, 64 hexadecimal digits with or without colons.
        Exactly this certificate is then accepted, whoever signed it and whatever name it has.
    type: str
  privilege_level:
    description:
      - Privilege of IPMI sessions. When left out V(administrator) is asked for, then V(operator).
    type: str
    choices: [administrator, operator, user]
  timeout_seconds:
    description:
      - Total time limit of the task, waiting for other tasks on the same BMC included.
    type: int
    default: 300
  lock_dir:
    description:
      - Folder on the controller for the lock files by which tasks on one BMC wait for each other.
        C(~/.cache/barewright/bmc) when left out.
    type: path
requirements:
  - python >= 3.11
  - sushy >= 5.0 for the driver C(redfish)
  - pyghmi >= 1.5.60 for the driver C(ipmi)
notes:
  - The work is done in the controller, in process, when the connection of the task is local
    (C(connection=local) or C(delegate_to=localhost)) and it neither becomes another user nor runs
    asynchronously. Everywhere else the module runs, with the same result.
  - One session is opened per task and driver, and deleted on every path, also when the task is
    ended by a signal or a time limit.
  - A failed task returns C(fault) with C(code), C(wanted), C(found), C(cure) and C(details). The
    codes are in C(faults.yml) of the collection.
author:
  - Barewright contributors (@barewright)
"""
