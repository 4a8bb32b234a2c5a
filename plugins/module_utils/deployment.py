# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a running system knows of its deployment."""

from __future__ import annotations

import json
from typing import Any

from .fault import Fault


def parse_deployment(text: str | None) -> dict[str, Any] | None:
    """``{node, deploy_id}`` from the text of the seed's file; None where there is no file.

    Raises ``NODE_NOT_RUNNING_DEPLOYED_SYSTEM`` for a file that no seed wrote.
    """
    if text is None:
        return None
    try:
        deploy = json.loads(text)
    except ValueError:
        deploy = None
    if not isinstance(deploy, dict) or not isinstance(deploy.get("deploy_id"), str):
        raise Fault(
            "NODE_NOT_RUNNING_DEPLOYED_SYSTEM",
            wanted="a deployment in /etc/barewright/deploy.json",
            found=repr(text[:200]),
        )
    return deploy


def demand(deploy: dict[str, Any] | None, deploy_id: str) -> None:
    """Raise ``NODE_NOT_RUNNING_DEPLOYED_SYSTEM`` unless ``deploy`` is ``deploy_id``."""
    found = "a system that was never deployed" if deploy is None else deploy["deploy_id"]
    if found != deploy_id:
        raise Fault(
            "NODE_NOT_RUNNING_DEPLOYED_SYSTEM", wanted=f"deployment {deploy_id}", found=found
        )
