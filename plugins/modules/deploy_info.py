#!/usr/bin/python
# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: deploy_info
short_description: Ask a running system which deployment it is
version_added: 0.1.0
description:
  - Reads what the seed wrote to C(/etc/barewright/deploy.json).
  - With O(deploy_id), another deployment, or a system that was never deployed, fails with fault
    code V(NODE_NOT_RUNNING_DEPLOYED_SYSTEM).
options:
  deploy_id:
    description: The deployment that the system must be.
    type: str
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
  - module: barewright.metal.node_seed
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: See that the system is the one that was deployed
  barewright.metal.deploy_info:
    deploy_id: "{{ node.record.deploy.deploy_id }}"
"""

RETURN = r"""
deploy:
  description: C(node) and C(deploy_id); null on a system that was never deployed.
  returned: success
  type: dict
fault:
  description: What went wrong, with C(code), C(wanted), C(found), C(cure) and C(details).
  returned: failure
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.barewright.metal.plugins.module_utils.deployment import (
    demand,
    parse_deployment,
)
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault

DEPLOY_FILE = Path("/etc/barewright/deploy.json")


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={"deploy_id": {"type": "str"}},
        supports_check_mode=True,
    )
    try:
        text = DEPLOY_FILE.read_text(encoding="utf-8") if DEPLOY_FILE.exists() else None
        deploy = parse_deployment(text)
        if module.params["deploy_id"]:
            demand(deploy, module.params["deploy_id"])
    except Fault as fault:
        module.fail_json(**fault.to_result())
    module.exit_json(changed=False, deploy=deploy)


if __name__ == "__main__":
    main()
