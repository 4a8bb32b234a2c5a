# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Commands inside a rack, and the network that they find."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.integration.rack.conftest import PATIENCE_SECONDS, Traces, cli, wait_until
from virtual_rack.rack import Rack


def inside(rack: Rack, *argv: str) -> str:
    done = rack.exec(argv, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    return str(done.stdout)


def test_a_command_has_our_directory_environment_and_streams(rack: Rack, tmp_path: Path) -> None:
    done = rack.exec(
        ["sh", "-c", 'pwd; echo "$GREETING"; cat; echo problem >&2'],
        cwd=tmp_path,
        env={**os.environ, "GREETING": "hello"},
        input="from outside\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{tmp_path}\nhello\nfrom outside\n"
    assert done.stderr == "problem\n"


def test_a_command_ends_as_it_ends_without_a_rack(rack: Rack) -> None:
    assert rack.exec(["sh", "-c", "exit 7"]).returncode == 7
    assert rack.exec(["sh", "-c", "kill -TERM $$"]).returncode == -signal.SIGTERM
    assert rack.exec(["sh", "-c", "kill -KILL $$"]).returncode == -signal.SIGKILL
    missing = rack.exec(["no-such-command"], stderr=subprocess.PIPE, text=True)
    assert missing.returncode == 127
    assert "no-such-command" in missing.stderr


def test_signals_reach_the_command(rack: Rack) -> None:
    script = 'trap "echo caught; exit 3" {}; echo ready; while :; do sleep 0.1; done'
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        process = rack.popen(
            ["sh", "-c", script.format(number.name.removeprefix("SIG"))],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.communicate(timeout=15)[0] == "caught\n"
        assert process.returncode == 3


def test_a_command_dies_with_whoever_ran_it(rack: Rack) -> None:
    before = Traces(rack).processes
    process = rack.popen(["sleep", "1000"])
    wait_until(lambda: Traces(rack).processes == before + 1, "the command runs")
    process.kill()
    process.wait()
    wait_until(lambda: Traces(rack).processes == before, "the command is dead")


def test_orphans_are_reaped(rack: Rack) -> None:
    inside(rack, "sh", "-c", "for i in 1 2 3; do (sleep 0.1 &) ; done")
    time.sleep(0.5)
    assert "(zombie)" not in inside(rack, "sh", "-c", "cat /proc/[0-9]*/status")


def test_a_command_sees_the_processes_and_interfaces_of_the_rack_only(rack: Rack) -> None:
    assert "virtual_rack.supervisor" in inside(rack, "cat", "/proc/1/cmdline").split("\0")
    numbers = [name for name in inside(rack, "ls", "/proc").split() if name.isdigit()]
    # The supervisor, two BMCs, the one of the light machines, and this ls.
    assert len(numbers) == 5
    assert set(inside(rack, "ls", "/sys/class/net").split()) == {"br0", "lo"}


def test_nothing_leaves_the_rack(rack: Rack) -> None:
    addresses = json.loads(inside(rack, "ip", "-json", "address"))
    assert {link["ifname"] for link in addresses} == {"lo", "br0"}
    assert inside(rack, "ip", "route", "show", "default") == ""
    assert inside(rack, "ip", "-6", "route", "show", "default") == ""
    for setting in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        assert inside(rack, "cat", f"/proc/sys/net/{setting}") == "0\n"


def test_the_ports_of_a_boot_server_are_free(rack: Rack) -> None:
    script = """
import socket
for kind, port in [(socket.SOCK_DGRAM, 67), (socket.SOCK_DGRAM, 69), (socket.SOCK_DGRAM, 4011),
                   (socket.SOCK_DGRAM, 53), (socket.SOCK_STREAM, 80), (socket.SOCK_STREAM, 8080)]:
    socket.socket(socket.AF_INET, kind).bind(("10.77.0.1", port))
socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).bind(("::", 547))
"""
    rack.exec([sys.executable, "-c", script], check=True)


def test_a_neighbour_hears_a_router_at_once_and_learns_no_way_out(rack: Rack) -> None:
    # A cable to a computer of its own, as a machine would be; it asks when its link comes up.
    script = """
set -e
ip link add cable type veth peer name plug
ip link set cable master br0 up
unshare --net sleep 1000 > /dev/null 2>&1 & other=$!
trap "kill $other" EXIT
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.05; done
ip link set plug netns $other
nsenter --net=/proc/$other/ns/net sh -c '
    ip link set lo up
    ip link set plug up
    for i in $(seq 100); do
        ip -6 -o address show dev plug scope global | grep -q fd00:77: && break
        sleep 0.1
    done
    ip -6 -o address show dev plug scope global
    echo routes
    ip -6 route show default
    ip address add 10.77.9.9/16 dev plug
    "$0" -c "import socket; socket.create_connection((\\"10.77.1.1\\", 443), 5)" && echo BMC found
' "$1"
"""
    said = inside(rack, "sh", "-c", script, "sh", sys.executable)
    addresses, _, rest = said.partition("routes\n")
    assert "fd00:77:" in addresses
    assert rest == "BMC found\n"


def test_a_running_bmc_shows_a_certificate_of_the_rack(rack: Rack) -> None:
    script = """
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
with socket.create_connection(("10.77.1.1", 443)) as connection:
    with context.wrap_socket(connection, server_hostname="10.77.1.1") as encrypted:
        print(encrypted.version())
"""
    said = inside(rack, sys.executable, "-c", script, str(rack.layout.ca_certificate))
    assert said.startswith("TLSv1.")


def test_exec_of_the_command_line_is_the_same(rack: Rack) -> None:
    done = cli(
        "exec", "--dir", rack.layout.directory, "--", "sh", "-c", "ip -br link; exit 5", check=False
    )
    assert done.returncode == 5
    assert "br0" in done.stdout
