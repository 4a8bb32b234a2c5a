# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A provisioning network of two namespaces: a boot server on one end, a network card on the other.

Works for root and for an ordinary user (then in a user namespace); everything in it ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SERVER_ADDRESS = "10.78.0.1"
CLIENT_ADDRESS = "10.78.9.9"
SERVER_LINK = "provision"
CLIENT_LINK = "card"


class ProvisioningNetwork:
    """The two ends, by the process that holds each namespace open."""

    def __init__(self, server_pid: int, client_pid: int, user: bool) -> None:
        self._enter_server = ["nsenter", f"--target={server_pid}", "--net", "--pid", "--mount"]
        self._enter_client = ["nsenter", f"--target={client_pid}", "--net"]
        if user:
            self._enter_server += ["--user", "--preserve-credentials"]
            self._enter_client += ["--user", "--preserve-credentials"]

    def on_server(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command where the boot server lives."""
        return subprocess.run(
            [*self._enter_server, *command], text=True, capture_output=True, **options
        )

    def on_client(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command where the machine lives."""
        return subprocess.run(
            [*self._enter_client, *command], text=True, capture_output=True, **options
        )

    def _client(self, *arguments: str) -> dict[str, Any]:
        program = str(Path(__file__).with_name("pxe_client.py"))
        done = self.on_client(sys.executable, program, *arguments, check=True, timeout=60)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def boot(self, mac: str, arch: int = 0, *, ipxe: bool = False) -> dict[str, Any]:
        """What DHCP grants a card with this MAC address."""
        extra = ["--ipxe"] if ipxe else []
        return self._client("boot", CLIENT_LINK, mac, "--arch", str(arch), *extra)

    def tftp(self, address: str, name: str) -> dict[str, Any]:
        """What TFTP gives a card with this address."""
        self.on_client("ip", "address", "replace", f"{address}/16", "dev", CLIENT_LINK, check=True)
        return self._client("fetch", SERVER_ADDRESS, name, address)


@contextlib.contextmanager
def provisioning_network() -> Iterator[ProvisioningNetwork]:
    """Build the network; end it with every process in it."""
    user = os.geteuid() != 0
    identity = ["--user", "--map-root-user"] if user else []
    with contextlib.ExitStack() as stack:

        def hold(command: list[str]) -> int:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert process.stdin is not None
            assert process.stdout is not None
            # Without its input the holder ends, and with the last process the namespace.
            stack.callback(process.wait)
            stack.callback(process.stdin.close)
            assert process.stdout.readline().strip() == "ready"
            return process.pid

        holder = ["sh", "-c", "echo ready; exec cat"]
        unshare = hold(
            [
                "unshare",
                *identity,
                "--net",
                "--pid",
                "--fork",
                "--mount-proc",
                "--kill-child",
                *holder,
            ]
        )
        # unshare itself stays outside of the pid namespace that it made.
        children = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
        server = int(children[0])
        enter = ["nsenter", f"--target={server}", "--net"]
        if user:
            enter += ["--user", "--preserve-credentials"]
        client = hold([*enter, "unshare", "--net", *holder])
        network = ProvisioningNetwork(server, client, user)
        for command in (
            f"ip link add {SERVER_LINK} type veth peer name {CLIENT_LINK}",
            f"ip link set {CLIENT_LINK} netns {client}",
            f"ip address add {SERVER_ADDRESS}/16 dev {SERVER_LINK}",
            f"ip link set {SERVER_LINK} up",
            "ip link set lo up",
        ):
            subprocess.run([*enter, *command.split()], check=True)
        for command in (
            f"ip address add {CLIENT_ADDRESS}/16 dev {CLIENT_LINK}",
            f"ip link set {CLIENT_LINK} up",
        ):
            network.on_client(*command.split(), check=True)
        yield network
