# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The programs of role boot_server as modules: they are files of a role, not of a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FILES = Path(__file__).resolve().parents[4] / "roles/boot_server/files"


def load(name: str) -> ModuleType:
    """``roles/boot_server/files/<name>.py``, once."""
    full_name = f"barewright_boot_server_{name}"
    if full_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(full_name, FILES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # dataclasses look their module up by its name.
        sys.modules[full_name] = module
        spec.loader.exec_module(module)
    return sys.modules[full_name]
