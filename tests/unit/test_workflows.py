# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A step exists once; a job playbook and its workflow list the same steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / "workflows").glob("*.yml"))
STEPS = sorted((ROOT / "playbooks" / "steps").glob("*.yml"))
# what the runner service does around a run, a job playbook does by these two
BOOKKEEPING = ("open_job", "close_job")
ADDRESS = {"ramdisk": "ramdisk_address", "host": "host_address"}
DESTROYS = ("wipe", "stream_image")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def step_names(path: Path) -> list[str]:
    return [Path(play["ansible.builtin.import_playbook"]).stem for play in load(path)]


def place_of(step: str) -> str:
    """Where a step playbook says that it works: site, ramdisk or host."""
    [play] = load(ROOT / "playbooks" / "steps" / f"{step}.yml")
    variables = play["vars"]
    if variables["ansible_connection"] == "local":
        return "site"
    [place] = [name for name, key in ADDRESS.items() if key in variables["ansible_host"]]
    return place


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_the_job_runs_the_steps_of_its_workflow_in_their_order(path):
    workflow = load(path)
    listed = [step["use"] for step in workflow["steps"] + workflow["cleanup"]]
    assert workflow["name"] == path.stem
    job = step_names(ROOT / "playbooks" / path.name)
    assert job == [BOOKKEEPING[0], *listed, BOOKKEEPING[1]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_the_job_gives_its_steps_the_variables_of_the_workflow(path):
    workflow = load(path)
    given = [
        {key: value for key, value in play["vars"].items() if key != "job_name"}
        for play in load(ROOT / "playbooks" / path.name)
    ]
    listed = [step.get("vars", {}) for step in workflow["steps"] + workflow["cleanup"]]
    assert given == [{}, *listed, {}]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_step_works_where_the_workflow_says(path):
    workflow = load(path)
    for step in workflow["steps"] + workflow["cleanup"]:
        assert step["on"] == place_of(step["use"]), step["use"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_that_makes_a_node_ready_has_an_attested_wipe(path):
    workflow = load(path)
    if workflow["serves"] in ("releasing", "commissioning", "retiring"):
        assert any(step.get("attested") for step in workflow["steps"])
    for step in workflow["steps"]:
        assert bool(step.get("destructive")) == (step["use"] in DESTROYS)


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_a_step_ends_in_its_result_on_both_ways(path):
    [play] = load(path)
    assert not {"run_once", "serial", "any_errors_fatal"} & set(play)
    if path.stem == "close_job":  # it has no next step to tell anything
        return
    blocks = [task for task in play["tasks"] if "rescue" in task]
    assert len(blocks) == 1
    ends = [blocks[0]["rescue"][-1]]
    if path.stem != "open_job":  # the role says how the job goes on
        ends.append(blocks[0]["block"][-1])
    for end in ends:
        assert end["barewright.metal.step_result"]["step"] == path.stem


def test_every_step_is_used_by_a_workflow():
    used = {step["use"] for path in WORKFLOWS for step in load(path)["steps"]}
    used |= {step["use"] for path in WORKFLOWS for step in load(path)["cleanup"]}
    assert used | set(BOOKKEEPING) == {path.stem for path in STEPS}


def test_the_boot_entry_is_cleaned_up_in_all_but_enroll_inspect_and_power():
    without = {path.stem for path in WORKFLOWS if not load(path)["cleanup"]}
    assert without == {"enroll", "inspect", "power"}
