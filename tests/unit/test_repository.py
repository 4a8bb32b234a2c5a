# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Rules that hold for the repository as a whole, whoever adds the next file."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

# What ships in the tarball of the collection. Everything else is Apache-2.0.
GPL_PARTS = (
    "changelogs/",
    "faults.yml",
    "galaxy.yml",
    "inventories/",
    "meta/",
    "playbooks/",
    "plugins/",
    "roles/",
    "workflows/",
)
# Formats without comments, texts for reading, and the licences themselves.
NO_HEADER_SUFFIXES = {".csv", ".json", ".jsonl", ".md", ".pem", ".pub", ".svg"}
NO_HEADER_FILES = {"COPYING", ".gitignore"}

# Written in two parts, so that this file does not break its own rule.
REGISTRY_HOSTS = re.compile(
    "|".join(
        re.escape(name + domain)
        for name, domain in (
            ("pypi", ".org"),
            ("pythonhosted", ".org"),
            ("deb.debian", ".org"),
            ("security.debian", ".org"),
            ("registry.npmjs", ".org"),
            ("galaxy.ansible", ".com"),
        )
    )
)

CODE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")


@cache
def repository_files() -> tuple[str, ...]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return tuple(sorted({name for name in listed.split("\0") if name and (ROOT / name).is_file()}))


@cache
def text_of(name: str) -> str | None:
    """The text of a file, ``None`` when it is no text."""
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def texts() -> Iterator[tuple[str, str]]:
    for name in repository_files():
        text = text_of(name)
        if text:
            yield name, text


def load_yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def module_names() -> set[str]:
    return {path.stem for path in (ROOT / "plugins/modules").glob("*.py")}


def role_names() -> set[str]:
    return {path.name for path in (ROOT / "roles").iterdir() if path.is_dir()}


def test_every_file_names_the_licence_of_its_part() -> None:
    wrong = []
    for name, text in texts():
        if name in NO_HEADER_FILES or name.startswith("LICENSES/"):
            continue
        if Path(name).suffix in NO_HEADER_SUFFIXES or text.startswith("$ANSIBLE_VAULT"):
            continue
        licence = "GPL-3.0-or-later" if name.startswith(GPL_PARTS) else "Apache-2.0"
        head = "\n".join(text.splitlines()[:8])
        if f"SPDX-License-Identifier: {licence}" not in head:
            wrong.append(f"{name}: wanted SPDX-License-Identifier: {licence}")
        elif "Copyright: Barewright contributors" not in head:
            wrong.append(f"{name}: wanted Copyright: Barewright contributors")
    assert wrong == []


def test_no_file_names_a_package_registry() -> None:
    assert [name for name, text in texts() if REGISTRY_HOSTS.search(text)] == []


def test_no_file_names_the_folder_of_this_checkout() -> None:
    assert [name for name, text in texts() if f"{ROOT}/" in text] == []


def test_nothing_is_left_open_in_the_code() -> None:
    mark = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    assert [name for name, text in texts() if mark.search(text)] == []


def test_collection_and_package_have_one_version() -> None:
    package = re.search(
        r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert package is not None
    assert load_yaml("galaxy.yml")["version"] == package[1]


def test_constraints_hold_pins_and_no_addresses() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    pin = re.compile(r"[a-z0-9.-]+==[^ @:/]+(?: ; .+)?")
    assert [line for line in pins if not pin.fullmatch(line) or "--hash" in line] == []


def test_every_debian_package_is_listed_once_with_its_reason() -> None:
    lines = (ROOT / "tools/debian-packages.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert [row for row in rows if len(row) != 2] == []
    names = [row[0] for row in rows]
    assert names == sorted(set(names))


# --- faults ------------------------------------------------------------------------------------


def fault_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = load_yaml("faults.yml")
    return rows


def _texts_of(node: ast.expr, constants: dict[str, str]) -> Iterator[str]:
    """What an expression may evaluate to, as far as it is written down in its file."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name) and node.id in constants:
        yield constants[node.id]
    elif isinstance(node, ast.IfExp):
        yield from _texts_of(node.body, constants)
        yield from _texts_of(node.orelse, constants)


def fault_codes_of_python(text: str) -> set[str]:
    """The codes that ``Fault("…")`` is called with in a Python file."""
    tree = ast.parse(text)
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }
    codes: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else None
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name == "Fault":
            codes.update(_texts_of(node.args[0], constants))
    return codes


def raised_faults(tasks: Any) -> Iterator[str]:
    """The codes in the ``raise_fault`` tasks of a task file or playbook."""
    if isinstance(tasks, list):
        for task in tasks:
            yield from raised_faults(task)
    elif isinstance(tasks, dict):
        for key, value in tasks.items():
            if key == "barewright.metal.raise_fault" and isinstance(value, dict):
                yield from CODE.findall(str(value.get("code", "")))
            else:
                yield from raised_faults(value)


def used_fault_codes() -> dict[str, str]:
    """Each code that plugins, roles and playbooks raise, with a file that does."""
    used: dict[str, str] = {}
    for name, text in texts():
        if name.startswith("plugins/") and name.endswith(".py"):
            codes = fault_codes_of_python(text)
        elif re.match(r"(roles/[^/]+/(tasks|handlers)|playbooks)/.*\.ya?ml$", name):
            codes = set(raised_faults(yaml.safe_load(text)))
        else:
            continue
        used.update(dict.fromkeys(codes, name))
    return used


def test_every_fault_that_is_raised_is_a_row_of_the_table() -> None:
    known = {row["code"] for row in fault_rows()}
    unknown = {code: name for code, name in used_fault_codes().items() if code not in known}
    assert unknown == {}


def test_every_row_of_the_fault_table_is_in_use() -> None:
    words: set[str] = set()
    for name, text in texts():
        if name.startswith(("plugins/", "roles/", "playbooks/")):
            words.update(CODE.findall(text))
    assert [row["code"] for row in fault_rows() if row["code"] not in words] == []


def test_fault_table_is_sorted_and_complete() -> None:
    rows = fault_rows()
    assert [row["code"] for row in rows] == sorted({row["code"] for row in rows})
    for row in rows:
        assert set(row) == {"code", "class", "cause", "cure"}, row
        assert CODE.fullmatch(row["code"]), row
        assert row["class"] in ("permanent", "retryable", "needs_operator"), row
        assert all(
            isinstance(row[key], str) and row[key].endswith(".") for key in ("cause", "cure")
        )


# --- plugins and roles -------------------------------------------------------------------------


@cache
def documented(plugin_type: str) -> dict[str, Any]:
    """What ``ansible-doc`` knows about the collection's plugins of a type, by full name."""
    ansible_doc = [sys.executable, "-m", "ansible", "doc", "--type", plugin_type]
    listed = _run_json([*ansible_doc, "--list", "--json", "barewright.metal"])
    if not listed:
        return {}
    return _run_json([*ansible_doc, "--json", *sorted(listed)])


def _run_json(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_ansible_doc_knows_every_module_whole() -> None:
    docs = documented("module")
    assert set(docs) == {f"barewright.metal.{name}" for name in module_names()}
    for name, doc in docs.items():
        for part in ("doc", "examples", "return"):
            assert doc.get(part), f"{name} has no {part}"
        for attribute in ("check_mode", "diff_mode"):
            assert doc["doc"].get("attributes", {}).get(attribute), f"{name}: {attribute} untold"
        assert doc["doc"]["version_added"], name


@pytest.mark.parametrize("plugin_type", ["callback", "filter", "inventory", "lookup", "test"])
def test_ansible_doc_knows_every_plugin(plugin_type: str) -> None:
    files = list((ROOT / "plugins" / plugin_type).glob("*.py"))
    docs = documented(plugin_type)
    assert bool(files) == bool(docs)
    for name, doc in docs.items():
        assert doc.get("doc"), f"{name} has no documentation"
        # A callback is switched on, not called.
        assert plugin_type == "callback" or doc.get("examples"), f"{name} has no examples"


def test_every_action_plugin_is_documented_by_a_module_of_its_name() -> None:
    actions = {path.stem for path in (ROOT / "plugins/action").glob("*.py")}
    assert actions - module_names() == set()


def test_action_group_bmc_holds_exactly_the_modules_that_talk_to_a_bmc() -> None:
    fragment = re.compile(r"^ *- barewright\.metal\.bmc$", re.MULTILINE)
    talking = {
        name
        for name in module_names()
        if fragment.search((ROOT / f"plugins/modules/{name}.py").read_text(encoding="utf-8"))
    }
    assert set(load_yaml("meta/runtime.yml")["action_groups"]["bmc"]) == talking


def test_roles_and_modules_never_share_a_name() -> None:
    assert role_names() & module_names() == set()


def test_every_role_says_what_it_is_and_which_variables_it_takes() -> None:
    for role in sorted(role_names()):
        directory = ROOT / "roles" / role
        assert load_yaml(f"roles/{role}/meta/main.yml"), role
        entries = load_yaml(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]
        tasks = {path.stem for path in (directory / "tasks").glob("*.yml")}
        assert set(entries) <= tasks, f"{role} documents entry points that it does not have"
        assert "main" not in tasks or "main" in entries, role
        for entry in entries.values():
            assert entry["short_description"], role


def test_what_playbooks_take_from_a_role_is_a_documented_entry_point() -> None:
    undocumented = []
    for path in sorted((ROOT / "playbooks").rglob("*.yml")):
        text = path.read_text(encoding="utf-8")
        for role, tasks_from in _included_roles(yaml.safe_load(text)):
            if "{" in role + tasks_from:
                continue
            specs = load_yaml(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]
            if tasks_from not in specs:
                undocumented.append(f"{path.relative_to(ROOT)}: {role}, {tasks_from}")
    assert undocumented == []


def _included_roles(node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, list):
        for item in node:
            yield from _included_roles(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("ansible.builtin.include_role", "ansible.builtin.import_role"):
                name = str(value["name"]).removeprefix("barewright.metal.")
                yield name, str(value.get("tasks_from", "main")).removesuffix(".yml")
            else:
                yield from _included_roles(value)


def test_nothing_in_a_role_needs_the_rack() -> None:
    wanted = re.compile(r"^\s*(?:import|from) virtual_rack\b", re.MULTILINE)
    assert [
        name for name, text in texts() if name.startswith("roles/") and wanted.search(text)
    ] == []
