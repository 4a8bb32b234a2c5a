# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""What the ramdisk promises, on a machine with 512 MB and a first port that leads nowhere."""

from __future__ import annotations

from collections.abc import Callable

import yaml

from tests.machine.images.guest import BootServer, Guest, artefact

MAC = "52:54:00:77:00:02"
TOKEN = "s3cret-t0ken"
# Four times what was measured on a quiet machine.
BOOT_SECONDS = 80
END_SECONDS = 40


def _arguments(server: BootServer) -> list[str]:
    folder = artefact("ramdisk")
    options = yaml.safe_load((folder / "manifest.yml").read_text())["command_line"]
    options += f" barewright.url={server.guest_url} barewright.token={TOKEN}"
    return [
        *("-m", "512", "-kernel", str(folder / "vmlinuz"), "-initrd", str(folder / "initrd")),
        *("-append", f"{options} BOOTIF=01-{MAC.replace(':', '-').upper()}"),
        *("-netdev", "hubport,id=dead,hubid=1"),
        *("-device", "e1000e,netdev=dead,mac=52:54:00:77:00:01,romfile="),
        *("-device", f"virtio-net-pci,netdev=net0,mac={MAC},romfile="),
    ]


def _welcome(key: str) -> tuple[int, dict[str, object]]:
    return 200, {"node": "alpha", "window_id": "w1", "authorized_keys": [key]}


def test_a_machine_checks_in_hides_its_token_and_goes_down(
    start: Callable[..., Guest], boot_server: BootServer, key: str
) -> None:
    boot_server.answers = [(503, {}), _welcome(key)]
    guest = start(*_arguments(boot_server))
    guest.await_ssh(BOOT_SECONDS)

    first, second = boot_server.check_ins
    assert first == second, "the same keys on every try"
    assert sorted(second["macs"]) == ["52:54:00:77:00:01", MAC]
    assert second["token"] == TOKEN
    assert second["boot_mode"] == "bios"
    assert second["addresses"]
    assert second["identity_key"].startswith("-----BEGIN PUBLIC KEY-----\n")
    shown = guest.ssh("cat /run/barewright/keys/ssh_host_ed25519_key.pub")
    assert second["ssh_host_key"] in shown

    facts = guest.ssh(
        "cd /run/barewright; cat node window_id url; ls -A /home /etc/ssh; "
        "stat -c %s /etc/machine-id; python3 -c 'import cryptography'; hostname"
    ).split()
    assert facts[:3] == ["alpha", "w1", boot_server.guest_url]
    assert facts[-2:] == ["0", "alpha"]
    assert not [name for name in facts if name.startswith("ssh_host")]

    everywhere = "/proc/cmdline /run /var/log /tmp /root /etc"
    found = guest.ssh(
        f"grep -rl {TOKEN} {everywhere} 2>/dev/null; dmesg | grep {TOKEN}", check=False
    )
    assert found == ""
    assert "barewright.token=redacted" in guest.ssh("cat /proc/cmdline")
    assert TOKEN not in guest.console.read_text(errors="replace")

    guest.ssh("poweroff")
    assert guest.await_end(END_SECONDS) == 0


def test_a_refused_machine_lets_nobody_in_and_obeys_its_power_button(
    start: Callable[..., Guest], boot_server: BootServer, key: str
) -> None:
    boot_server.answers = [(403, {"fault": {"code": "BOOT_TOKEN_INVALID", "message": "no"}})]
    guest = start(*_arguments(boot_server))
    guest.await_console("refused with BOOT_TOKEN_INVALID", BOOT_SECONDS)
    assert not guest.answers_ssh()
    guest.press_power_button()
    assert guest.await_end(END_SECONDS) == 0
    assert len(boot_server.check_ins) == 1
    assert "power button pressed" in guest.console.read_text(errors="replace")
