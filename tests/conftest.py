# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Makes ``ansible_collections.barewright.metal`` importable and visible to Ansible's commands."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent


def _collections_directory() -> Path:
    """The folder that holds ``ansible_collections/barewright/metal``.

    ansible-test and an installed collection lie in such a folder already; a plain checkout gets
    a link under ``.cache``.
    """
    if ROOT.parts[-3:] == ("ansible_collections", "barewright", "metal"):
        return ROOT.parents[2]
    collections = ROOT / ".cache" / "collections"
    link = collections / "ansible_collections" / "barewright" / "metal"
    link.parent.mkdir(parents=True, exist_ok=True)
    # The workers of pytest-xdist come here at the same time.
    with contextlib.suppress(FileExistsError):
        link.symlink_to(os.path.relpath(ROOT, link.parent), target_is_directory=True)
    return collections


COLLECTIONS = _collections_directory()
if str(COLLECTIONS) not in sys.path:
    sys.path.insert(0, str(COLLECTIONS))
os.environ.setdefault("ANSIBLE_COLLECTIONS_PATH", str(COLLECTIONS))
if (ROOT / "ansible.cfg").is_file():
    os.environ.setdefault("ANSIBLE_CONFIG", str(ROOT / "ansible.cfg"))
# Tests start what was installed with the Python that runs them, and what Debian keeps out of the
# PATH of ordinary users, however pytest itself was started.
os.environ["PATH"] = os.pathsep.join(
    [
        str(Path(sys.executable).parent),
        os.environ.get("PATH", os.defpath),
        *("/usr/local/sbin", "/usr/sbin", "/sbin"),
    ]
)

# How long an example takes says more about who else is at work on the machine than about the code.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

# A shell that starts us in the background makes us ignore Ctrl-C, and with us all that tests start,
# those programs included whose answer to Ctrl-C is tested.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)
