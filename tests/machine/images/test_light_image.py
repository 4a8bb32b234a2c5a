# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""What the light image promises: its seed applied once, the disk used, the kernel replaceable."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.machine.images.guest import MIB, Guest, uefi, unpacked_image

MAC = "52:54:00:77:00:01"
# Four times what was measured on a quiet machine.
BOOT_SECONDS = 240
END_SECONDS = 80
DISK_MIB = 2048
SEED_OFFSET = 129 * MIB
"""Behind the first MiB and the EFI system partition of 128."""


def _write_seed(disk: Path, directory: Path, key: str) -> str:
    """Put a seed on the disk; returns the public host key that it gives the machine."""
    host_key = directory / "host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", host_key], check=True)
    public = host_key.with_suffix(".pub").read_text().strip()
    user: dict[str, Any] = {"name": "barewright", "shell": "/bin/bash"}
    user |= {"sudo": "ALL=(ALL) NOPASSWD:ALL", "ssh_authorized_keys": [key]}
    user_data = {
        "hostname": "alpha",
        "fqdn": "alpha.lab.example",
        "users": [user],
        "ssh_keys": {"ed25519_private": host_key.read_text(), "ed25519_public": public},
        "write_files": [{"path": "/etc/motto", "permissions": "0600", "content": "hello"}],
        "runcmd": [["sh", "-c", "echo ran >>/var/ran"]],
        "timezone": "UTC",
    }
    port = {
        "match": {"macaddress": MAC},
        "addresses": ["10.0.2.77/24"],
        "routes": [{"to": "0.0.0.0/0", "via": "10.0.2.2"}],
        "nameservers": {"addresses": ["10.0.2.3"]},
    }
    seed = directory / "seed"
    seed.mkdir()
    (seed / "meta-data").write_text('{"instance-id": "i1", "local-hostname": "alpha"}')
    (seed / "user-data").write_text("#cloud-config\n" + json.dumps(user_data))
    network = {"version": 2, "ethernets": {"uplink": port}}
    (seed / "network-config").write_text(json.dumps(network))
    files = [str(path) for path in seed.iterdir()]
    subprocess.run(["mcopy", "-o", "-i", f"{disk}@@{SEED_OFFSET}", *files, "::/"], check=True)
    return public


def _arguments(disk: Path, firmware: Sequence[str], device: Sequence[str]) -> list[str]:
    return [
        *("-m", "1024", *firmware),
        *("-drive", f"if=none,id=d0,file={disk},format=raw,cache=unsafe,discard=unmap"),
        *device,
        *("-device", f"virtio-net-pci,netdev=net0,mac={MAC},romfile="),
    ]


def test_a_seeded_machine_is_itself_under_either_firmware_and_on_any_bus(
    start: Callable[..., Guest], tmp_path: Path, key: str
) -> None:
    disk = tmp_path / "disk.raw"
    unpacked_image("image-light", disk, DISK_MIB)
    # What image_stream and node_seed do on a machine; growpart needs no more of it.
    subprocess.run(["sgdisk", "-e", str(disk)], check=True, capture_output=True)
    host_key = _write_seed(disk, tmp_path, key)
    scsi = ["-device", "virtio-scsi-pci,id=s0", "-device", "scsi-hd,bus=s0.0,drive=d0"]
    login = {"user": "barewright", "guest_address": "10.0.2.77"}
    guest = start(*_arguments(disk, [], scsi), **login)
    guest.await_ssh(BOOT_SECONDS)
    assert host_key.split()[1] in guest.scan_host_key()

    guest.await_command("test -s /var/lib/barewright/final-instance-id", END_SECONDS)
    assert guest.ssh("hostname -f; sudo cat /etc/motto /var/ran").split() == [
        "alpha.lab.example",
        "helloran",
    ]
    assert "10.0.2.77/24" in guest.ssh("ip -br address")
    assert int(guest.ssh("df -B1 --output=size / | tail -n 1")) > (DISK_MIB - 300) * MIB
    assert guest.ssh("systemctl --failed --plain --no-legend") == ""
    assert "left out of user-data: timezone" in guest.console.read_text(errors="replace")
    assert guest.ssh("find /usr/lib/modules/*/kernel/sound -name '*.ko*'") == ""
    machine_id = guest.ssh("cat /etc/machine-id")
    # What a kernel upgrade runs last: it leaves a partition that starts.
    guest.ssh("sudo /etc/kernel/postinst.d/zz-barewright-esp 9.9 && sudo systemctl poweroff")
    assert guest.await_end(END_SECONDS) == 0

    nvme = ["-device", "nvme,serial=S1,drive=d0,bootindex=1"]
    again = start(*_arguments(disk, uefi(tmp_path), nvme), **login)
    again.await_ssh(BOOT_SECONDS)
    assert again.ssh("test -d /sys/firmware/efi && cat /etc/machine-id") == machine_id
    assert again.ssh("cat /var/ran") == "ran\n"
    again.press_power_button()
    assert again.await_end(END_SECONDS) == 0
