# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The life of two machines, from a BMC address to a running system and back."""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.machine.life.conftest import HERE, MIB, Site

# Four times what the longest of them takes on a quiet machine.
pytestmark = pytest.mark.timeout(900)

MARK = b"what a tenant left behind"
NODES = ("alpha", "beta")
# where marks are planted on every disk: both ends, and between them
ENDS = (0, -4096)
MIDDLE = (300 * MIB + 512, 700 * MIB)
DISK_MIB = {0: 3072, 1: 1024}
FAULTY_PORT = 8081
STRANGER = {"mac": "52:54:00:77:00:99"}


def plant_everywhere(site: Site) -> None:
    for node in NODES:
        for index, size_mib in DISK_MIB.items():
            for offset in (*ENDS, *MIDDLE):
                site.plant(node, index, offset % (size_mib * MIB), MARK)


def marks_left(site: Site, offsets: tuple[int, ...]) -> list[tuple[str, int, int]]:
    return [
        (node, index, offset)
        for node in NODES
        for index, size_mib in DISK_MIB.items()
        for offset in offsets
        if site.read(node, index, offset % (size_mib * MIB), len(MARK)) == MARK
    ]


def power_effects(site: Site, node: str) -> list[str]:
    return [effect for effect in site.effects(node) if effect.startswith("power: ")]


@pytest.fixture(scope="module")
def faulty(site: Site) -> Iterator[dict[str, Any]]:
    """The image of a bad server: its description, and the process that serves it."""
    # a disk with a real GPT, whose partition cannot be compressed
    path = site.directory / "faulty.raw"
    path.write_bytes(bytes(24 * MIB))
    subprocess.run(["sgdisk", "--new=1:2048:0", path], check=True, stdout=subprocess.DEVNULL)
    with path.open("r+b") as disk:
        disk.seek(MIB)
        disk.write(os.urandom(22 * MIB))
    body = path.read_bytes()
    process = site.rack.popen(
        [sys.executable, HERE / "image_server.py", "10.77.0.1", str(FAULTY_PORT), path],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    yield {
        "sha256": hashlib.sha256(body).hexdigest(),
        "size_bytes": len(body),
        "raw_size_bytes": len(body),
        "compression": "none",
        "process": process,
    }
    process.kill()
    process.wait()


def at(faulty: dict[str, Any], habit: str, **other: Any) -> dict[str, Any]:
    image = {key: value for key, value in faulty.items() if key != "process"}
    return {**image, "url": f"http://10.77.0.1:{FAULTY_PORT}/{habit}", **other}


def test_enroll_needs_nothing_but_the_bmc_and_switches_nothing(site: Site) -> None:
    site.must("barewright.metal.enroll")
    assert site.record("alpha")["phase"] == site.record("beta")["phase"] == "enrolled"
    assert site.record("alpha")["pxe_macs"] == ["52:54:00:77:00:01"]
    assert [power_effects(site, node) for node in NODES] == [[], []]


def test_a_second_enroll_changes_nothing(site: Site) -> None:
    job = site.must("barewright.metal.enroll")
    assert [job.count(node, "changed") for node in NODES] == [0, 0]


def test_a_job_that_does_not_start_from_this_phase_touches_nothing(site: Site) -> None:
    job = site.run("barewright.metal.deploy")
    assert job.code != 0
    assert site.record("alpha")["fault"]["code"] == "PHASE_REFUSED"
    assert [power_effects(site, node) for node in NODES] == [[], []]


def test_inspect_reads_on_the_machine_what_the_rack_is_made_of(site: Site) -> None:
    plant_everywhere(site)
    site.must("barewright.metal.inspect")
    for node, serials in (("alpha", {"A-NVME", "A-VIRTIO"}), ("beta", {"B-SATA", "B-SCSI"})):
        record = site.record(node)
        assert record["phase"] == "inspected"
        disks = record["inspection"]["in_band"]["disks"]
        assert {disk["serial_number"] for disk in disks} == serials
        assert record["pins"]["ramdisk_host_key"].startswith("ssh-ed25519 ")
    modes = {node: site.record(node)["inspection"]["in_band"]["firmware"] for node in NODES}
    assert (modes["alpha"]["boot_mode"], modes["beta"]["boot_mode"]) == ("uefi", "bios")
    sectors = {
        disk["serial_number"]: disk["logical_sector_bytes"]
        for disk in site.record("alpha")["inspection"]["in_band"]["disks"]
    }
    assert sectors == {"A-NVME": 512, "A-VIRTIO": 4096}


def test_a_second_inspect_finds_the_ramdisk_up_and_switches_nothing(site: Site) -> None:
    before = [power_effects(site, node) for node in NODES]
    job = site.must("barewright.metal.inspect")
    assert [job.count(node, "changed") for node in NODES] == [0, 0]
    assert [power_effects(site, node) for node in NODES] == before
    assert before == [["power: off→on"], ["power: off→on"]]


def test_a_machine_that_its_bmc_describes_differently_is_refused(site: Site) -> None:
    site.edit("alpha", lambda record: record["inspection"]["out_of_band"]["nics"].append(STRANGER))
    job = site.run("barewright.metal.inspect", "--limit", "alpha")
    assert job.code != 0
    fault = site.record("alpha")["fault"]
    assert fault["code"] == "INSPECTION_MISMATCH"
    assert STRANGER["mac"] in fault["reason"]
    site.edit("alpha", lambda record: record["inspection"]["out_of_band"]["nics"].pop())


def test_a_machine_with_less_than_its_pool_asks_for_is_not_commissioned(site: Site) -> None:
    job = site.run("barewright.metal.commission", "-e", '{"commission_minimum": {"disks": 3}}')
    assert job.code != 0
    for node in NODES:
        assert site.record(node)["fault"]["code"] == "DIAGNOSTICS_FAILED"
        assert site.record(node)["phase"] == "commissioning"
        assert "wipe" not in site.record(node)


def test_commission_clears_the_ends_of_every_disk_and_powers_off(site: Site) -> None:
    site.must("barewright.metal.commission")
    assert [site.record(node)["phase"] for node in NODES] == ["ready", "ready"]
    assert marks_left(site, ENDS) == []
    assert [power_effects(site, node)[-1] for node in NODES] == ["power: on→off"] * 2
    evidence = site.record("alpha")["wipe"]
    assert (evidence["level"], evidence.get("sanitization")) == ("quick", None)


def test_a_second_commission_changes_nothing(site: Site) -> None:
    job = site.must("barewright.metal.commission")
    assert [job.count(node, "changed") for node in NODES] == [0, 0]


def test_check_mode_predicts_a_deploy_and_switches_nothing(site: Site) -> None:
    before = [power_effects(site, node) for node in NODES]
    records = [site.record(node) for node in NODES]
    job = site.must("barewright.metal.deploy", "--check", "--diff")
    assert "predicted" in job.output
    assert [power_effects(site, node) for node in NODES] == before
    assert [site.record(node) for node in NODES] == records


def bad_pairs() -> list[Any]:
    """What alpha gets, what beta gets, and the fault codes that must come of it."""
    nvme, virtio, sata = ({"serial_number": name} for name in ("A-NVME", "A-VIRTIO", "B-SATA"))
    return [
        pytest.param(
            ("missing", {}, nvme, "IMAGE_NOT_FOUND"),
            ("short", {}, sata, "IMAGE_TRUNCATED"),
            id="missing-short",
        ),
        pytest.param(
            ("flipped", {}, nvme, "IMAGE_DIGEST_MISMATCH"),
            ("whole", {"sha256": "0" * 64}, sata, "IMAGE_DIGEST_MISMATCH"),
            id="flipped-digest",
        ),
        pytest.param(
            ("whole", {"raw_size_bytes": 4096 * MIB}, nvme, "IMAGE_TOO_LARGE"),
            ("whole", {}, {"serial_number": "NOBODY"}, "ROOT_DISK_NO_MATCH"),
            id="large-no-disk",
        ),
        pytest.param(
            ("whole", {}, virtio, "IMAGE_SECTOR_SIZE_MISMATCH"),
            ("whole", {}, {"min_size_bytes": 1}, "ROOT_DISK_AMBIGUOUS"),
            id="sector-two-disks",
        ),
    ]


@pytest.mark.parametrize(("alpha", "beta"), bad_pairs())
def test_a_bad_image_or_hint_is_named_and_leaves_no_partition_table(
    site: Site, faulty: dict[str, Any], alpha: Any, beta: Any
) -> None:
    cases = {
        node: {"image": at(faulty, habit, **other), "root_disk": hints}
        for node, (habit, other, hints, _) in zip(NODES, (alpha, beta), strict=True)
    }
    job = site.run(
        "barewright.metal.deploy",
        "-e",
        json.dumps(
            {
                "cases": cases,
                "deploy_image": "{{ cases[inventory_hostname].image }}",
                "deploy_root_disk": "{{ cases[inventory_hostname].root_disk }}",
            }
        ),
    )
    assert job.code != 0
    for node, wanted in zip(NODES, (alpha[3], beta[3]), strict=True):
        record = site.record(node)
        assert record["fault"]["code"] == wanted, job.output[-6000:]
        assert record["phase"] == "deploying"
    assert not site.has_partition_table("alpha", 0)
    assert not site.has_partition_table("alpha", 1, sector=4096)
    assert not site.has_partition_table("beta", 0)
    assert not site.has_partition_table("beta", 1)


def test_power_lost_in_the_middle_of_a_write_is_named_and_leaves_no_partition_table(
    site: Site, faulty: dict[str, Any]
) -> None:
    process = faulty["process"]
    deploy = site.start(
        "barewright.metal.deploy",
        "--limit",
        "alpha",
        "-e",
        json.dumps({"deploy_image": at(faulty, "slow"), "deploy_unreachable_seconds": 10}),
    )
    assert process.stdout.readline() == "reading\n"
    site.must("barewright.metal.power", "--limit", "alpha", "-e", "power_state=off")
    job = site.finish(deploy)
    assert job.code != 0
    assert job.count("alpha", "unreachable") == 0
    assert site.record("alpha")["fault"]["code"] == "NODE_UNREACHABLE", job.output[-6000:]
    assert site.record("alpha")["phase"] == "deploying"
    assert not site.has_partition_table("alpha", 0)


def test_deploy_ends_with_a_login_to_the_system_that_was_deployed(site: Site) -> None:
    site.must("barewright.metal.deploy")
    for node, address in (("alpha", "10.77.2.1"), ("beta", "10.77.2.2")):
        record = site.record(node)
        assert record["phase"] == "deployed"
        assert "fault" not in record
        assert site.ssh(node, "hostname").strip() == node
        assert address in site.ssh(node, "ip -4 -brief address")
        running = json.loads(site.ssh(node, "cat /etc/barewright/deploy.json"))
        assert running["deploy_id"] == record["deploy"]["deploy_id"]
        host_key = site.ssh(node, "cat /etc/ssh/ssh_host_ed25519_key.pub").split()[:2]
        assert " ".join(host_key) == record["pins"]["host_key"]


def test_a_second_deploy_changes_nothing(site: Site) -> None:
    before = [power_effects(site, node) for node in NODES]
    job = site.must("barewright.metal.deploy")
    assert [job.count(node, "changed") for node in NODES] == [0, 0]
    assert [power_effects(site, node) for node in NODES] == before


def test_another_image_on_a_deployed_node_is_refused(site: Site, faulty: dict[str, Any]) -> None:
    job = site.run(
        "barewright.metal.deploy", "-e", json.dumps({"deploy_image": at(faulty, "whole")})
    )
    assert job.code != 0
    assert {site.record(node)["fault"]["code"] for node in NODES} == {"DEPLOY_DIFFERS"}
    assert {site.record(node)["phase"] for node in NODES} == {"deployed"}


def test_inspecting_a_deployed_node_is_refused_since_it_would_switch_it_off(site: Site) -> None:
    assert site.run("barewright.metal.inspect").code != 0
    assert {site.record(node)["fault"]["code"] for node in NODES} == {"PHASE_REFUSED"}
    assert site.ssh("alpha", "echo up").strip() == "up"


def test_a_tenant_leaves_marks_that_can_be_read_from_outside(site: Site) -> None:
    for node, disk in (("alpha", "/dev/vda"), ("beta", "/dev/disk/by-id/*B-SCSI")):
        site.ssh(node, f"echo '{MARK.decode()}' | sudo tee /root/mark >/dev/null; sync")
        site.ssh(node, f"printf '{MARK.decode()}' | sudo dd of=$(echo {disk}) bs=1M seek=700")
    assert marks_left(site, (700 * MIB,))


def test_a_disk_that_the_inspection_saw_and_the_wipe_did_not_is_named(site: Site) -> None:
    gone = {"serial_number": "PULLED-OUT"}
    site.edit("beta", lambda record: record["inspection"]["in_band"]["disks"].append(gone))
    assert site.run("barewright.metal.release", "--limit", "beta").code != 0
    record = site.record("beta")
    assert record["fault"]["code"] == "WIPE_INCOMPLETE"
    assert "PULLED-OUT" in record["fault"]["reason"]
    assert record["phase"] == "releasing"
    site.edit("beta", lambda record: record["inspection"]["in_band"]["disks"].pop())


def test_release_erases_every_disk_and_powers_off(site: Site) -> None:
    site.must("barewright.metal.release")
    assert marks_left(site, (*ENDS, *MIDDLE)) == []
    for node in NODES:
        record = site.record(node)
        assert record["phase"] == "ready"
        assert "deploy" not in record
        assert record["wipe"]["complete"] is True
        assert record["wipe"]["sanitization"] == "Clear"
        assert power_effects(site, node)[-1] == "power: on→off"
        for index in DISK_MIB:
            with site.rack.disk(node, index).open("rb") as disk:
                content = mmap.mmap(disk.fileno(), 0, access=mmap.ACCESS_READ)
            assert content.find(MARK) == -1
            content.close()


def test_a_second_release_changes_nothing(site: Site) -> None:
    job = site.must("barewright.metal.release")
    assert [job.count(node, "changed") for node in NODES] == [0, 0]


def test_power_was_never_sent_twice(site: Site) -> None:
    for node in NODES:
        effects = power_effects(site, node)
        assert all(first != second for first, second in itertools.pairwise(effects))


def test_no_bmc_session_is_left_open(site: Site) -> None:
    for node in NODES:
        effects = site.effects(node)
        assert effects.count("session: opened") == effects.count("session: closed")
