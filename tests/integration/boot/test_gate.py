# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Role boot_server in process mode, dnsmasq included, on a real network of two namespaces."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.barewright.metal.plugins.module_utils import boot
from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline
from tests.integration.boot.network import (
    SERVER_ADDRESS,
    SERVER_LINK,
    ProvisioningNetwork,
    provisioning_network,
)

BIOS, UEFI, UEFI_TOO, HTTP = 0, 7, 9, 16
BASE = f"http://{SERVER_ADDRESS}:8080"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl test"


class BootServer:
    """A running boot server, told about nodes as module boot_entry does."""

    def __init__(self, network: ProvisioningNetwork, root: Path) -> None:
        self.network = network
        self.root = root
        self.folder = root / "boot"

    def play(self, *arguments: str) -> dict[str, int]:
        """Run the role; the counters of its host."""
        done = self.network.on_server(
            str(Path(sys.executable).with_name("ansible-playbook")),
            *("--inventory", str(self.root / "hosts.yml")),
            *arguments,
            str(Path(__file__).with_name("boot_server.yml")),
            # Who is root in a user namespace has root's home by name, and may not write into it.
            env={
                **os.environ,
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_REMOTE_TMP": str(self.root / "ansible"),
            },
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        recap = done.stdout.rpartition("PLAY RECAP")[2]
        words = [word.split("=") for word in recap.split() if "=" in word]
        return {key: int(value) for key, value in words}

    def entry(self, **options: Any) -> dict[str, Any] | None:
        """Do what module boot_entry does, and wait for the receiver's gate."""
        request = boot.EntryRequest.of(options)
        folder = boot.BootFolder(self.folder)
        with folder.locked():
            others = folder.entries()
            current = others.pop(request.node, None)
            entry = boot.plan(current, request, others, datetime.now(UTC))
            if entry is None:
                folder.remove(request.node)
            else:
                folder.write(entry)
        folder.await_gate(request.node, entry, request.opens, Deadline(15))
        return entry

    def open(self, node: str, seconds: int = 600, **options: Any) -> dict[str, Any] | None:
        """Open a window for a node."""
        window = {
            "duration_seconds": seconds,
            "kernel": "ramdisk/vmlinuz",
            "initrd": "ramdisk/initrd.img",
            "authorized_keys": [KEY],
        }
        return self.entry(node=node, window_state="renewed", window=window, **options)

    def processes(self) -> dict[str, Any]:
        """The pid files, by program."""
        return {
            path.stem: json.loads(path.read_text())
            for path in (self.folder / "run").glob("*.process")
        }


@pytest.fixture(scope="module")
def server() -> Iterator[BootServer]:
    if not Path("/usr/sbin/dnsmasq").exists() or not Path("/usr/lib/ipxe").is_dir():
        pytest.skip("dnsmasq-base and ipxe are not installed")
    # Not a folder of pytest's: another user must be able to come in.
    with tempfile.TemporaryDirectory(prefix="barewright-gate-") as name:
        Path(name).chmod(0o755)
        yield from running_server(Path(name))


def running_server(root: Path) -> Iterator[BootServer]:
    """The role's boot server below ``root``, in a network of its own."""
    payload = root / "vmlinuz"
    payload.write_bytes(b"kernel")
    hosts = {
        "all": {
            "hosts": {
                "boot": {
                    "ansible_connection": "local",
                    "ansible_python_interpreter": sys.executable,
                    "boot_server_root": str(root / "boot"),
                    "boot_server_mode": "process",
                    "boot_server_interface": SERVER_LINK,
                    "boot_server_address": SERVER_ADDRESS,
                    "boot_server_netmask": "255.255.0.0",
                    "boot_server_dhcp_range": "10.78.200.1,10.78.200.50",
                    "boot_server_install_packages": False,
                    "boot_server_files": [{"src": str(payload), "dest": "ramdisk/vmlinuz"}],
                    "boot_server_python": sys.executable,
                }
            }
        }
    }
    (root / "hosts.yml").write_text(json.dumps(hosts))
    with provisioning_network() as network:
        found = BootServer(network, root)
        found.play()
        yield found


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether the condition becomes true in time: dnsmasq reads its files after the signal."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def test_unknown_machine_gets_no_answer(server: BootServer) -> None:
    assert server.network.boot("52:54:00:78:ff:01", BIOS) == {"answered": False}
    assert "error" in server.network.tftp("10.78.99.1", "undionly.kpxe")


def test_known_machine_without_window_gets_its_address_and_nothing_to_boot(
    server: BootServer,
) -> None:
    mac = "52:54:00:78:01:01"
    server.entry(node="closed", macs=[mac], address="10.78.1.1")
    for arch in (BIOS, UEFI, HTTP):
        granted = server.network.boot(mac, arch)
        assert (granted["address"], granted["boot_file"]) == ("10.78.1.1", "")
        assert granted["vendor_class"] == ""
    assert server.network.boot(mac, ipxe=True)["boot_file"] == ""
    assert "error" in server.network.tftp("10.78.1.1", "snponly.efi")


def test_open_window_offers_each_loader_by_every_protocol(server: BootServer) -> None:
    mac = "52:54:00:78:02:01"
    server.open("opened", macs=[mac], address="10.78.2.1")
    assert until(lambda: server.network.boot(mac, BIOS).get("boot_file") == "undionly.kpxe")
    for arch in (UEFI, UEFI_TOO):
        assert server.network.boot(mac, arch)["boot_file"] == "snponly.efi"
    by_http = server.network.boot(mac, HTTP)
    assert by_http["boot_file"] == f"{BASE}/v1/loader/opened/snponly.efi"
    assert by_http["vendor_class"] == "HTTPClient"
    loader = server.network.boot(mac, ipxe=True)
    assert loader["boot_file"] == f"{BASE}/boot.ipxe"
    assert loader["ipxe_options"].startswith("b00101")
    assert not loader["router"]
    assert server.network.tftp("10.78.2.1", "undionly.kpxe").get("size_bytes", 0) > 50_000


def test_address_stays_the_same_whoever_asks_on_the_machine(server: BootServer) -> None:
    mac = "52:54:00:78:03:01"
    server.open("steady", macs=[mac], address="10.78.3.1")
    assert until(lambda: bool(server.network.boot(mac).get("granted")))
    addresses = {
        server.network.boot(mac, BIOS)["address"],
        server.network.boot(mac, ipxe=True)["address"],
    }
    server.entry(node="steady", window_state="closed")
    # DHCP starts anew when a window closes; a machine asks again until it is answered
    assert until(lambda: bool(server.network.boot(mac, UEFI).get("granted")))
    addresses.add(server.network.boot(mac, UEFI)["address"])
    assert addresses == {"10.78.3.1"}


def test_any_card_of_a_node_finds_it(server: BootServer) -> None:
    first, second = "52:54:00:78:04:01", "52:54:00:78:04:02"
    server.open("twocards", macs=[first, second], address="10.78.4.1")
    for mac in (first, second):
        assert until(lambda mac=mac: server.network.boot(mac).get("boot_file") == "undionly.kpxe")
        assert server.network.boot(mac)["address"] == "10.78.4.1"


def test_closing_the_window_shuts_dhcp_tftp_and_http(server: BootServer) -> None:
    mac = "52:54:00:78:05:01"
    server.open("shut", macs=[mac], address="10.78.5.1")
    assert until(lambda: server.network.boot(mac).get("boot_file") == "undionly.kpxe")
    server.entry(node="shut", window_state="closed")
    assert until(lambda: server.network.boot(mac).get("boot_file") == "")
    assert "error" in server.network.tftp("10.78.5.1", "undionly.kpxe")
    for path in (f"/v1/boot/{mac}", "/v1/loader/shut/snponly.efi"):
        done = server.network.on_client("curl", "-s", "-w", "%{http_code}", BASE + path)
        assert done.stdout.endswith("404")


def test_window_that_runs_out_shuts_the_gate_by_itself(server: BootServer) -> None:
    mac = "52:54:00:78:06:01"
    server.open("expiring", seconds=6, macs=[mac], address="10.78.6.1")
    assert until(lambda: server.network.boot(mac).get("boot_file") == "undionly.kpxe")
    assert until(lambda: server.network.boot(mac).get("boot_file") == "", 10)
    assert "error" in server.network.tftp("10.78.6.1", "undionly.kpxe")


def test_removed_node_is_unknown_again(server: BootServer) -> None:
    mac = "52:54:00:78:07:01"
    server.entry(node="leaving", macs=[mac])
    assert until(lambda: bool(server.network.boot(mac).get("granted")))
    assert server.network.boot(mac)["address"].startswith("10.78.200.")
    server.entry(node="leaving", state="absent")
    assert until(lambda: not server.network.boot(mac)["answered"])


def test_second_run_of_the_role_changes_nothing_and_restarts_nothing(server: BootServer) -> None:
    before = server.processes()
    assert server.play()["changed"] == 0
    assert server.processes() == before


def test_check_mode_plans_a_restart_and_does_not_restart(server: BootServer) -> None:
    before = server.processes()
    counters = server.play("--check", "--diff", "--extra-vars", "boot_server_router=10.78.0.254")
    # The configuration; what is made of it can only be planned from the file that is there.
    assert counters["changed"] == 1
    assert server.processes() == before


def test_changed_configuration_restarts_only_what_it_concerns(server: BootServer) -> None:
    mac = "52:54:00:78:08:01"
    server.entry(node="routed", macs=[mac], address="10.78.8.1")
    before = server.processes()
    server.play("--extra-vars", "boot_server_router=10.78.0.254")
    after = server.processes()
    assert after["receiver"] == before["receiver"]
    assert after["dnsmasq"]["pid"] != before["dnsmasq"]["pid"]
    assert until(lambda: server.network.boot(mac).get("router") is True)


def test_files_are_served_to_machines(server: BootServer) -> None:
    done = server.network.on_client("curl", "-s", f"{BASE}/files/ramdisk/vmlinuz")
    assert done.stdout == "kernel"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_dnsmasq_runs_without_root_by_the_capabilities_of_its_unit(
    server: BootServer, tmp_path: Path
) -> None:
    """What barewright-dnsmasq.service does: another user, three capabilities, no more."""
    server.play("--extra-vars", "verb=stop")
    assert server.processes() == {}
    capabilities = "+net_admin,+net_bind_service,+net_raw"
    setpriv = shutil.which("setpriv") or "setpriv"
    server.network.on_server("chown", "-R", "65534:65534", str(server.folder), check=True)
    unprivileged = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]
    bounded = [*unprivileged, f"--inh-caps=-all,{capabilities}", f"--ambient-caps={capabilities}"]
    receiver = [
        *("/usr/bin/python3", str(server.folder / "bin" / "boot_receiver.py")),
        *("--root", str(server.folder), "--listen", SERVER_ADDRESS, "--base-url", BASE),
        *("--dnsmasq-pid-file", str(server.folder / "run" / "dnsmasq.pid")),
    ]
    dnsmasq = ["/usr/sbin/dnsmasq", "-k", f"--conf-file={server.folder}/etc/dnsmasq.conf"]
    for name, command, how in (
        ("receiver", [*unprivileged, "--inh-caps=-all", *receiver], []),
        ("dnsmasq", [*bounded, *dnsmasq], ["--respawn"]),
    ):
        done = server.network.on_server(
            *("/usr/bin/python3", str(server.folder / "bin" / "keep_process.py"), "start"),
            *("--pid-file", str(tmp_path / name), "--log", str(tmp_path / f"{name}.log")),
            *(*how, "--", *command),
        )
        assert done.returncode == 0, done.stderr
    mac = "52:54:00:78:09:01"
    server.open("unprivileged", macs=[mac], address="10.78.9.1")
    assert until(lambda: server.network.boot(mac).get("boot_file") == "undionly.kpxe")
