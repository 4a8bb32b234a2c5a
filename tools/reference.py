# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Writes ``docs/reference.md`` from the code: workflows, modules, roles and fault codes.

``reference.py`` writes it, ``reference.py --check`` fails when it is not what the code says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    text = "\n".join(lines()) + "\n"
    if not check:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.read_text(encoding="utf-8") == text:
        return 0
    print("docs/reference.md is not what the code says: run make reference", file=sys.stderr)
    return 1


def lines() -> Iterator[str]:
    """The page, line by line."""
    yield "<!-- SPDX-License-Identifier: Apache-2.0 -->"
    yield "<!-- Copyright: Barewright contributors -->"
    yield "<!-- Written by `make reference`. -->"
    yield "# Reference"
    yield ""
    yield "Options and return values: `ansible-doc barewright.metal.NAME`, `ansible-doc -t role`."
    yield from workflows()
    yield from modules()
    yield from roles()
    yield from faults()


def workflows() -> Iterator[str]:
    """Which steps make up a job, and where each works."""
    yield from heading("Jobs", "job", "node is then", "steps", "cleanup")
    for path in sorted((ROOT / "workflows").glob("*.yml")):
        workflow = read_yaml(path)
        steps = [f"{step['use']} ({step['on']})" for step in workflow["steps"]]
        cleanup = [f"{step['use']} ({step['on']})" for step in workflow["cleanup"]]
        yield row(
            f"`{workflow['name']}`", workflow["serves"] or "", ", ".join(steps), ", ".join(cleanup)
        )


def modules() -> Iterator[str]:
    """What each module is for."""
    yield from heading("Modules", "module", "what it does")
    for path in sorted((ROOT / "plugins" / "modules").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        documentation = yaml.safe_load(text.split('DOCUMENTATION = r"""')[1].split('"""')[0])
        yield row(f"`{documentation['module']}`", documentation["short_description"])


def roles() -> Iterator[str]:
    """Every role's entry points."""
    yield from heading("Roles", "role", "tasks", "what they do")
    for path in sorted((ROOT / "roles").glob("*/meta/argument_specs.yml")):
        for name, specification in read_yaml(path)["argument_specs"].items():
            yield row(f"`{path.parts[-3]}`", f"`{name}`", specification["short_description"])


def faults() -> Iterator[str]:
    """Every fault code with its class, cause and cure."""
    yield from heading("Faults", "code", "class", "cause", "cure")
    for fault in read_yaml(ROOT / "faults.yml"):
        yield row(f"`{fault['code']}`", fault["class"], fault["cause"], fault["cure"])


def heading(title: str, *columns: str) -> Iterator[str]:
    """A section that is one table."""
    yield ""
    yield f"## {title}"
    yield ""
    yield row(*columns)
    yield "|" + "---|" * len(columns)


def row(*cells: str) -> str:
    """One line of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|").strip() for cell in cells) + " |"


def read_yaml(path: Path) -> Any:
    """The content of a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
