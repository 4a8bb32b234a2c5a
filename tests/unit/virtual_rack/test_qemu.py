# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""What QEMU is told for one boot."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from virtual_rack.accelerator import Accelerator
from virtual_rack.layout import RackLayout
from virtual_rack.machine import BootDevice, BootOverride, FirmwareMode
from virtual_rack.programs import QEMU
from virtual_rack.qemu import boot_order, command_line, describe
from virtual_rack.spec import BootGroup, ServerSpec, parse_spec

pytestmark = pytest.mark.skipif(shutil.which(QEMU) is None, reason="QEMU is not installed")

TCG = Accelerator("tcg", "said by the test")


def server(**options: object) -> ServerSpec:
    document = {
        "name": "alpha",
        "bmc": {"address": "10.77.1.1", "username": "admin", "password": "x"},
        "nics": [{"mac": "52:54:00:77:00:01"}, {"mac": "52:54:00:77:00:02", "model": "e1000e"}],
        "disks": [
            {"bus": "virtio"},
            {"bus": "nvme", "logical_sector_bytes": 4096, "serial_number": "N-1"},
            {"bus": "scsi", "rotational": True, "wwn": "0x5000000000000123"},
            {"bus": "sata", "read_only": False},
        ],
    }
    return parse_spec({"name": "demo", "servers": [document | options]}).servers[0]


def boot(
    spec: ServerSpec,
    *,
    mode: FirmwareMode = "uefi",
    order: tuple[BootGroup, ...] = ("disk", "network"),
    first_disk: int = 0,
    accelerator: Accelerator = TCG,
) -> list[str]:
    return command_line(
        spec,
        RackLayout(Path("/rack, with comma")),
        accelerator,
        mode=mode,
        order=order,
        first_disk=first_disk,
        nvram=Path("/nvram.fd") if mode == "uefi" else None,
        qmp_descriptor=10,
        tap_descriptors=[11, 12][: len(spec.nics)],
    )


def values(argv: list[str], option: str) -> list[str]:
    return [value for name, value in itertools.pairwise(argv) if name == option]


def devices(argv: list[str]) -> dict[str, dict[str, Any]]:
    found = [json.loads(text) for text in values(argv, "-device") if text.startswith("{")]
    return {device["id"]: device for device in found}


def boot_devices(argv: list[str]) -> list[str]:
    """The devices in the order in which the firmware tries them."""
    found = devices(argv)
    return sorted(found, key=lambda name: int(found[name]["bootindex"]))


def test_disks_come_before_the_network_unless_the_network_is_asked_for() -> None:
    spec = server()
    disks = ["dev-disk0", "dev-disk1", "dev-disk2", "dev-disk3"]
    assert boot_devices(boot(spec)) == [*disks, "nic0", "nic1"]
    assert boot_devices(boot(spec, order=("network", "disk"))) == ["nic0", "nic1", *disks]


def test_a_boot_order_that_leaves_a_group_out_tries_it_last() -> None:
    order = boot_devices(boot(server(), order=("network",)))
    assert order[:2] == ["nic0", "nic1"]
    assert len(order) == 6


def test_a_bios_tries_the_disk_with_a_boot_loader_first() -> None:
    order = boot_devices(boot(server(), mode="bios", first_disk=2))
    assert order[:4] == ["dev-disk2", "dev-disk0", "dev-disk1", "dev-disk3"]


@pytest.mark.parametrize(
    ("device", "expected"), [("pxe", ("network", "disk")), ("disk", ("disk", "network"))]
)
def test_an_override_beats_the_configured_order(
    device: BootDevice, expected: tuple[BootGroup, ...]
) -> None:
    for configured in (["disk", "network"], ["network", "disk"]):
        spec = server(boot_order=configured)
        assert boot_order(spec, BootOverride(device)) == expected
        assert boot_order(spec, None) == tuple(configured)


def test_each_disk_is_what_the_spec_says() -> None:
    found = devices(boot(server()))
    assert found["dev-disk1"]["logical_block_size"] == 4096
    assert found["dev-disk1"]["serial"] == "N-1"
    assert found["dev-disk2"]["wwn"] == 0x5000000000000123
    assert found["dev-disk2"]["rotation_rate"] > 1
    assert found["dev-disk3"]["rotation_rate"] == 1
    drivers = [found[f"dev-disk{index}"]["driver"] for index in range(4)]
    assert drivers == ["virtio-blk-pci", "nvme", "scsi-hd", "ide-hd"]


def test_a_read_only_disk_is_read_only_to_qemu_itself() -> None:
    argv = boot(server(disks=[{"bus": "scsi", "read_only": True}, {"bus": "scsi"}]))
    nodes = {node["node-name"]: node for node in map(json.loads, values(argv, "-blockdev"))}
    assert nodes["disk0"]["read-only"] is True
    assert nodes["disk1"]["read-only"] is False


def test_every_boot_is_a_process_that_ends_at_a_reset() -> None:
    assert values(boot(server()), "-action") == ["reboot=shutdown,shutdown=poweroff"]


def test_the_firmware_is_the_one_of_this_boot() -> None:
    uefi, bios = boot(server()), boot(server(), mode="bios")
    assert "pflash0=code" in values(uefi, "-machine")[0]
    assert "pflash" not in values(bios, "-machine")[0]
    # OVMF brings its own virtio driver, and none for e1000e; SeaBIOS needs iPXE in both ROMs.
    assert devices(uefi)["nic0"]["romfile"] == ""
    assert "romfile" not in devices(uefi)["nic1"]
    assert "romfile" not in devices(bios)["nic0"]


def test_secure_boot_has_keys_and_memory_that_the_system_cannot_reach() -> None:
    argv = boot(server(secure_boot=True))
    assert "smm=on" in values(argv, "-machine")[0]
    assert "driver=cfi.pflash01,property=secure,value=on" in values(argv, "-global")
    assert any("OVMF_CODE_4M.ms.fd" in text for text in values(argv, "-blockdev"))
    # A boot in legacy mode of the same machine has nothing of it.
    assert "smm=off" in values(boot(server(secure_boot=True), mode="bios"), "-machine")[0]


def test_a_directory_with_a_comma_is_no_danger() -> None:
    argv = boot(server())
    (console,) = [text for text in values(argv, "-chardev") if "id=console" in text]
    assert "path=/rack,, with comma/servers/alpha/console.log" in console


def test_the_cpu_is_called_what_the_bmc_says_under_any_accelerator() -> None:
    spec = server(cpus=2)
    model = describe(spec).cpu.model
    for accelerator, cpu in ((TCG, "qemu64"), (Accelerator("kvm", ""), "host")):
        assert values(boot(spec, accelerator=accelerator), "-cpu") == [f"{cpu},model-id={model}"]
    assert describe(spec).cpu.cores == 2


def test_the_bmc_knows_the_same_hardware() -> None:
    hardware = describe(server(secure_boot=True, memory_mib=512))
    assert hardware.memory_bytes == 512 * 1024 * 1024
    assert hardware.firmware.secure_boot_supported
    assert hardware.firmware.secure_boot_enabled
    assert [nic.mac for nic in hardware.nics] == ["52:54:00:77:00:01", "52:54:00:77:00:02"]
    assert [disk.wwn is not None for disk in hardware.disks] == [False, False, True, True]
    assert hardware.disks[1].size_bytes == 4096 * 1024 * 1024
    assert not describe(server(firmware="bios")).firmware.secure_boot_supported
