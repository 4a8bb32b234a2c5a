# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Whole wipes of plain files and loop devices, read afterwards from outside."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.barewright.metal.plugins.module_utils.disks import Disk
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.wipe.evidence import fault_of
from ansible_collections.barewright.metal.plugins.module_utils.wipe.plan import make_plan
from ansible_collections.barewright.metal.plugins.module_utils.wipe.run import (
    Request,
    plan_evidence,
    wipe,
)
from ansible_collections.barewright.metal.plugins.module_utils.wipe.tools import (
    SEARCH_PATH,
    Tools,
)

MIB = 1 << 20
MACHINE = {"uuid": None, "serial_number": "M1", "manufacturer": None, "model": None, "sku": None}


def run(
    disks: Sequence[Disk],
    level: str,
    *,
    method: str | None = None,
    verify: str = "sampled",
    tools: Tools | None = None,
    hidden: Sequence[Disk] = (),
    timeout_seconds: float = 60.0,
) -> dict[str, Any]:
    tools = tools or Tools()
    request = Request("op-1", level, verify, "seed", timeout_seconds)
    plans = make_plan(disks, hidden, level, method, tools)
    return wipe(plans, request, MACHINE, tools, lambda _done, _total, _text: None)


def row_of(evidence: Mapping[str, Any], disk: Disk) -> dict[str, Any]:
    return next(row for row in evidence["disks"] if row["path"] == disk.path)


def content(disk: Disk) -> bytes:
    path = disk.path if stat.S_ISREG(os.stat(disk.path).st_mode) else backing_file(disk)
    return Path(path).read_bytes()


def backing_file(disk: Disk) -> str:
    return Path(f"/sys/block/{disk.name}/loop/backing_file").read_text().strip()


def fake_tool(directory: Path, name: str, script: str) -> Tools:
    """Tools of which one is replaced by a shell script."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Tools(f"{directory}:{SEARCH_PATH}")


@pytest.mark.parametrize("sector_bytes", [512, 4096])
@pytest.mark.parametrize("verify", ["sampled", "full"])
def test_clear_leaves_nothing_but_zeroes(make_file_disk, sector_bytes, verify):
    disk = make_file_disk(40 * MIB + sector_bytes, sector_bytes, serial_number="S1")
    evidence = run([disk], "clear", verify=verify)
    assert content(disk).strip(b"\0") == b""
    row = row_of(evidence, disk)
    assert evidence["complete"]
    assert row["erased"]
    assert row["method"] == "overwrite"
    assert row["verified"]["result"] == "passed"
    assert row["verified"]["found"] == "zeroes"
    assert evidence["sanitization"] == "Clear"


@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_write_zeroes_of_a_block_device_leaves_nothing_but_zeroes(make_loop_disk, sector_bytes):
    disk = make_loop_disk(40 * MIB, sector_bytes)
    evidence = run([disk], "clear", verify="full")
    row = row_of(evidence, disk)
    assert row["erased"], row
    assert row["method"] == "write_zeroes"
    assert row["logical_sector_bytes"] == sector_bytes
    assert content(disk).strip(b"\0") == b""


def test_evidence_has_every_field_of_a_certificate(make_file_disk):
    disk = make_file_disk(8 * MIB, serial_number="S1", model="Model", manufacturer="Maker")
    evidence = run([disk], "clear")
    row = row_of(evidence, disk)
    assert evidence["operation_id"] == "op-1"
    assert evidence["started_at"].endswith("Z")
    assert evidence["finished_at"] >= evidence["started_at"]
    assert evidence["tool"]["name"] == "barewright.metal.disk_wipe"
    assert evidence["machine"]["serial_number"] == "M1"
    assert (row["manufacturer"], row["model"], row["serial_number"]) == ("Maker", "Model", "S1")
    assert row["media_type"] == "unknown"
    assert row["size_bytes"] == 8 * MIB
    assert row["technique"] == "overwrite with zeroes"
    assert row["tool"]["name"] == "Linux"
    assert row["verified"]["mode"] == "sampled"
    assert row["verified"]["regions"]
    assert row["finished_at"] >= row["started_at"]


def gpt_image(path: str) -> None:
    """Two partitions, by the tool that everybody uses; it asks a device for its sector size."""
    subprocess.run(
        ["sgdisk", "-n", "1:0:+20M", "-n", "2:0:+16M", path], check=True, capture_output=True
    )


@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_quick_leaves_no_table_at_either_end_and_no_signature(make_loop_disk, sector_bytes):
    disk = make_loop_disk(96 * MIB, sector_bytes)
    gpt_image(disk.path)
    subprocess.run(
        ["mke2fs", "-q", "-F", "-E", f"offset={MIB}", disk.path, "16M"],
        check=True,
        capture_output=True,
    )
    os.sync()
    before = content(disk)
    assert before.count(b"EFI PART") == 2
    assert before[MIB + 0x438 : MIB + 0x43A] == b"\x53\xef"

    evidence = run([disk], "quick")

    row = row_of(evidence, disk)
    after = content(disk)
    assert row["erased"], row
    assert row["verified"]["mode"] == "metadata"
    assert b"EFI PART" not in after
    assert after[:MIB].strip(b"\0") == b""
    assert after[-MIB:].strip(b"\0") == b""
    assert after[MIB + 0x438 : MIB + 0x43A] == b"\0\0"
    assert "gpt" in [signature["type"].lower() for signature in row["signatures"]]
    # what makes it quick: data between the borders is still there, and it is not called Clear
    assert after[48 * MIB : 52 * MIB] == before[48 * MIB : 52 * MIB]
    assert evidence["sanitization"] is None


def test_quick_clears_the_backup_table_of_a_smaller_image(make_file_disk, tmp_path):
    disk = make_file_disk(96 * MIB)
    image = tmp_path / "image"
    image.write_bytes(bytes(40 * MIB))
    gpt_image(str(image))
    with open(disk.path, "r+b") as stream:
        stream.write(image.read_bytes())
    assert content(disk)[40 * MIB - 512 :].startswith(b"EFI PART")

    evidence = run([disk], "quick")

    assert evidence["complete"], evidence["disks_not_erased"]
    assert b"EFI PART" not in content(disk)


def test_read_only_disk_is_named_and_the_others_are_erased(make_loop_disk):
    locked = make_loop_disk(8 * MIB, read_only=True, name="locked")
    free = make_loop_disk(8 * MIB, name="free")
    before = content(locked)

    evidence = run([locked, free], "clear")

    assert not evidence["complete"]
    assert evidence["disks_seen"] == [locked.path, free.path]
    assert evidence["disks_erased"] == [free.path]
    assert [row["reason_code"] for row in evidence["disks_not_erased"]] == ["READ_ONLY"]
    assert content(locked) == before
    assert content(free).strip(b"\0") == b""
    fault = fault_of(evidence)
    assert fault is not None
    assert fault.code == "WIPE_INCOMPLETE"
    assert locked.path in fault.found


def test_mounted_disk_is_named_and_left_alone(make_loop_disk, tmp_path):
    disk = make_loop_disk(16 * MIB)
    subprocess.run(["mke2fs", "-q", "-F", disk.path], check=True, capture_output=True)
    target = tmp_path / "mounted"
    target.mkdir()
    mounted = subprocess.run(["mount", disk.path, str(target)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting is not permitted here")
    try:
        evidence = run([disk], "clear")
        assert list(target.iterdir()), "its file system still has lost+found"
    finally:
        subprocess.run(["umount", str(target)], check=True)
    row = row_of(evidence, disk)
    assert row["reason_code"] == "BUSY"
    assert not row["erased"]


def test_hidden_namespace_makes_the_wipe_incomplete(make_file_disk):
    hidden = Disk(
        name="nvme0 namespace 2",
        path="/dev/nvme0",
        bus="nvme",
        size_bytes=0,
        logical_sector_bytes=512,
        physical_sector_bytes=512,
        read_only=False,
        namespace_id=2,
        controllers=("nvme0",),
    )
    evidence = run([make_file_disk(8 * MIB)], "clear", hidden=[hidden])
    assert not evidence["complete"]
    assert evidence["disks_not_erased"][0]["path"] == "nvme0 namespace 2"
    assert evidence["disks_not_erased"][0]["reason_code"] == "NOT_ATTACHED"


def test_a_machine_without_disks_is_not_called_erased():
    evidence = run([], "clear")
    fault = fault_of(evidence)
    assert fault is not None
    assert fault.code == "WIPE_INCOMPLETE"


@pytest.mark.parametrize("method", ["scsi_sanitize_overwrite", "ata_secure_erase_enhanced"])
@pytest.mark.parametrize("was_empty", [False, True])
def test_a_tool_that_exits_0_and_did_nothing_is_found_out(
    make_file_disk, tmp_path, method, was_empty
):
    disk = make_file_disk(32 * MIB)
    if was_empty:
        Path(disk.path).write_bytes(bytes(32 * MIB))
    for name in ("sg_sanitize", "sg_turs", "hdparm"):
        tools = fake_tool(tmp_path / "tools", name, "exit 0")

    evidence = run([disk], "purge", method=method, tools=tools)

    row = row_of(evidence, disk)
    assert not row["erased"]
    assert row["reason_code"] == "NOT_VERIFIED"
    assert row["verified"]["result"] == "failed"
    fault = fault_of(evidence)
    assert fault is not None
    assert fault.code == "WIPE_NOT_VERIFIED"


def test_a_tool_that_fails_is_named_with_its_words(make_file_disk, tmp_path):
    disk = make_file_disk(32 * MIB)
    tools = fake_tool(tmp_path / "tools", "sg_sanitize", "echo 'Illegal request' >&2; exit 5")
    evidence = run([disk], "purge", method="scsi_sanitize_block", tools=tools)
    row = row_of(evidence, disk)
    assert row["reason_code"] == "METHOD_FAILED"
    assert "Illegal request" in row["reason"]


def test_a_tool_that_hangs_does_not_hold_the_others_or_the_deadline(make_file_disk, tmp_path):
    hanging = make_file_disk(32 * MIB, name="hanging")
    pid_file = tmp_path / "pid"
    tools = fake_tool(tmp_path / "tools", "sg_sanitize", f"echo $$ > {pid_file}; exec sleep 600")
    began = time.monotonic()
    evidence = run(
        [hanging], "purge", method="scsi_sanitize_block", tools=tools, timeout_seconds=2.0
    )
    assert time.monotonic() - began < 20
    row = row_of(evidence, hanging)
    assert row["reason_code"] == "TIMED_OUT"
    time.sleep(0.2)
    state = Path(f"/proc/{pid_file.read_text().strip()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_an_erase_that_stopped_short_is_found_out(make_file_disk, tmp_path):
    disk = make_file_disk(64 * MIB)
    script = f"dd if=/dev/zero of={disk.path} bs=1M count=60 conv=notrunc status=none"
    tools = fake_tool(tmp_path / "tools", "sg_sanitize", script)
    fake_tool(tmp_path / "tools", "sg_turs", "exit 0")
    evidence = run([disk], "purge", method="scsi_sanitize_block", tools=tools)
    assert row_of(evidence, disk)["reason_code"] == "NOT_VERIFIED"


def test_a_single_sector_that_was_left_is_found_by_a_full_read_back(make_file_disk, tmp_path):
    disk = make_file_disk(64 * MIB)
    script = (
        f"dd if=/dev/zero of={disk.path} bs=1M count=64 conv=notrunc status=none; "
        f"printf secret | dd of={disk.path} bs=512 seek=70001 conv=notrunc status=none"
    )
    tools = fake_tool(tmp_path / "tools", "sg_sanitize", script)
    fake_tool(tmp_path / "tools", "sg_turs", "exit 0")
    evidence = run([disk], "purge", method="scsi_sanitize_block", tools=tools, verify="full")
    row = row_of(evidence, disk)
    assert row["reason_code"] == "NOT_VERIFIED"
    assert str(70001 * 512 // (4 * MIB) * 4 * MIB) in row["reason"]


def test_a_cryptographic_erase_may_leave_noise_but_nothing_of_before(make_file_disk, tmp_path):
    disk = make_file_disk(32 * MIB)
    tools = fake_tool(
        tmp_path / "tools",
        "sg_sanitize",
        f"dd if=/dev/urandom of={disk.path} bs=1M count=32 conv=notrunc status=none",
    )
    fake_tool(tmp_path / "tools", "sg_turs", "exit 0")
    evidence = run([disk], "purge", method="scsi_sanitize_crypto", tools=tools)
    row = row_of(evidence, disk)
    assert row["erased"], row
    assert row["verified"]["found"] == "nothing of what was there before"
    assert evidence["sanitization"] == "Purge"


def test_purge_without_a_command_names_every_disk_and_touches_none(make_file_disk):
    disks = [make_file_disk(8 * MIB, name=name, serial_number=name) for name in ("one", "two")]
    before = [content(disk) for disk in disks]
    with pytest.raises(Fault) as caught:
        run(disks, "purge")
    assert caught.value.code == "PURGE_NOT_SUPPORTED"
    assert [row["serial_number"] for row in caught.value.details["disks"]] == ["one", "two"]
    assert [content(disk) for disk in disks] == before


def test_a_method_weaker_than_the_level_is_refused(make_file_disk):
    disk = make_file_disk(8 * MIB)
    with pytest.raises(Fault) as caught:
        run([disk], "purge", method="overwrite")
    assert caught.value.code == "WIPE_METHOD_UNSUITABLE"


def test_plan_has_the_shape_of_the_evidence_and_changes_nothing(make_file_disk):
    disk = make_file_disk(8 * MIB)
    before = content(disk)
    tools = Tools()
    request = Request(None, "clear", "sampled", "seed", 60.0)
    planned = plan_evidence(make_plan([disk], [], "clear", None, tools), request, MACHINE)
    assert content(disk) == before
    done = run([disk], "clear")
    assert planned.keys() == done.keys()
    assert planned["disks"][0].keys() == done["disks"][0].keys()
    assert planned["disks"][0]["method"] == "overwrite"


def test_two_paths_to_one_disk_are_erased_one_after_the_other(make_file_disk, tmp_path):
    disk = make_file_disk(32 * MIB, wwn="0x5000c500a1b2c3d4")
    other = tmp_path / "other"
    os.link(disk.path, other)
    twin = Disk(**{**disk.__dict__, "name": "other", "path": str(other)})
    evidence = run([disk, twin], "clear")
    assert evidence["complete"], evidence["disks_not_erased"]
    first, second = evidence["disks"]
    assert second["started_at"] >= first["finished_at"]
