# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: boot_server
short_description: The boot server of the site, as the inventory describes it
version_added: 0.1.0
description:
  - The first host of the group C(site_services), or C(localhost) where there is none. Its variables
    are its own, whether they are set for it, for its group or for all hosts.
  - The connection is returned because the variables of a step playbook, which are those of the
    node, would win over those of a host that a task is delegated to.
options:
  _terms:
    description: Not used.
    type: list
    elements: str
author:
  - Barewright contributors (@barewright)
"""

EXAMPLES = r"""
- name: Close the boot window
  barewright.metal.boot_entry:
    root: "{{ boot_server.root }}"
    node: "{{ inventory_hostname }}"
    window_state: closed
  delegate_to: "{{ boot_server.host }}"
  vars:
    boot_server: "{{ lookup('barewright.metal.boot_server') }}"
    ansible_connection: "{{ boot_server.connection }}"
    ansible_python_interpreter: "{{ boot_server.python }}"
"""

RETURN = r"""
_raw:
  description:
    - A dictionary with C(host), C(root) (its folder), C(url) (how machines reach it; null when
      neither its address nor its base URL is set), C(connection) and C(python).
  type: list
  elements: dict
"""

from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase


class LookupModule(LookupBase):
    """See the documentation above."""

    def run(
        self, terms: list[str], variables: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """One dictionary."""
        self.set_options(var_options=variables, direct=kwargs)
        if variables is None:
            raise AnsibleLookupError("the lookup needs the variables of a task")
        members = self._templar.template(variables["groups"]).get("site_services") or ["localhost"]
        host = str(members[0])
        own = variables["hostvars"][host]
        local = own.get("ansible_connection", "local" if host == "localhost" else "ssh") == "local"
        address = own.get("boot_server_address")
        port = own.get("boot_server_http_port", 8080)
        return [
            {
                "host": host,
                "root": own.get("boot_server_root", "/var/lib/barewright/boot"),
                "url": own.get("boot_server_base_url")
                or (f"http://{address}:{port}" if address else None),
                "connection": "local" if local else own.get("ansible_connection", "ssh"),
                "python": own.get(
                    "ansible_python_interpreter",
                    own["ansible_playbook_python"] if local else "auto_silent",
                ),
            }
        ]
