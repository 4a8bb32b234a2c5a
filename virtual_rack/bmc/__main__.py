# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The process of one BMC and its machine, or of all light ones; see `virtual_rack.machine`."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from virtual_rack.bmc.host import BmcHost, TlsFiles
from virtual_rack.bmc.state import make_bmc
from virtual_rack.layout import RackLayout
from virtual_rack.light import LightMachine, Scheduler
from virtual_rack.machine import Machine, MachineError
from virtual_rack.qemu import create_machine
from virtual_rack.spec import RackSpec, ServerSpec, SpecError, load_spec


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m virtual_rack.bmc", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--server", metavar="NAME", help="the BMC of this server")
    which.add_argument("--light", action="store_true", help="the BMCs of all light servers")
    parser.add_argument("--spec", type=Path, required=True, help="the spec file of the rack")
    parser.add_argument("--dir", type=Path, required=True, help="the directory of the rack")
    parser.add_argument("--ready-fd", type=int, required=True, help="is told when all listens")
    return parser.parse_args(argv)


def _listen(
    host: BmcHost, spec: RackSpec, server: ServerSpec, machine: Machine, layout: RackLayout
) -> None:
    bmc = make_bmc(server, machine, layout.journal(server.name))
    offered = server.bmc.protocols
    host.add(
        bmc,
        str(server.bmc.address),
        netmask=str(spec.network.address.netmask),
        redfish_port=server.bmc.redfish_port if "redfish" in offered else None,
        ipmi_port=server.bmc.ipmi_port if "ipmi" in offered else None,
        tls=TlsFiles(layout.certificate(server.name), layout.certificate_key(server.name)),
    )


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; 0 then, 1 when the start failed."""
    arguments = _arguments(argv)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    layout = RackLayout(arguments.dir)
    with contextlib.ExitStack() as stack:
        try:
            spec = load_spec(arguments.spec)
            machines: list[tuple[ServerSpec, Machine]] = []
            if arguments.light:
                scheduler = Scheduler()
                stack.callback(scheduler.close)
                for server in spec.of_kind("light"):
                    machines.append((server, LightMachine(server, scheduler)))
            else:
                server = spec.server(arguments.server)
                machines.append((server, create_machine(spec, server.name, layout)))
            for _, machine in machines:
                stack.callback(machine.close)
            host = BmcHost()
            stack.callback(host.close)
            for server, machine in machines:
                _listen(host, spec, server, machine, layout)
        except (SpecError, MachineError, OSError, ValueError) as error:
            print(f"virtual_rack.bmc: {error}", file=sys.stderr)
            return 1
        with os.fdopen(arguments.ready_fd, "w") as ready:
            ready.write("ready\n")
        stop.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
