# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The command line: `python -m virtual_rack up|down|status|console|exec|doctor`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from virtual_rack import accelerator
from virtual_rack.layout import RackLayout
from virtual_rack.rack import Rack, RackError, check_requirements
from virtual_rack.spec import SpecError, load_spec

DEFAULT_DIRECTORY = ".cache/rack"
DIRECTORY_VARIABLE = "VIRTUAL_RACK_DIR"
_LOOK_EVERY_SECONDS = 0.2


def _up(arguments: argparse.Namespace) -> int:
    rack = Rack(load_spec(arguments.spec), arguments.dir)
    parent_pid = os.getpid() if arguments.foreground else arguments.parent_pid
    if arguments.foreground:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupt)
    rack.up(parent_pid=parent_pid, fresh=arguments.fresh)
    print(f"rack {rack.spec.name} is up in {arguments.dir}")
    _print_status(rack)
    if arguments.foreground:
        sys.stdout.flush()
        _stay(rack)
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _stay(rack: Rack) -> None:
    supervisor = rack.supervisor()
    try:
        while supervisor is not None and supervisor.alive():
            time.sleep(_LOOK_EVERY_SECONDS)
    except KeyboardInterrupt:
        pass  # This is how it is meant to end.
    finally:
        rack.down()


def _down(arguments: argparse.Namespace) -> int:
    # Where nothing was ever started it is down.
    if RackLayout(arguments.dir).spec.exists():
        Rack.at(arguments.dir).down()
    return 0


def _status(arguments: argparse.Namespace) -> int:
    rack = Rack.at(arguments.dir)
    supervisor = rack.supervisor()
    if arguments.json:
        document = {
            "name": rack.spec.name,
            "up": supervisor is not None,
            "supervisor_pid": supervisor.pid if supervisor else None,
            "servers": [asdict(server) for server in rack.status()],
        }
        print(json.dumps(document, indent=2))
    elif supervisor is None:
        print(f"rack {rack.spec.name} is down")
    else:
        chosen = accelerator.read(rack.layout.accelerator) if _has_machines(rack) else None
        print(f"rack {rack.spec.name} is up (supervisor {supervisor.pid})")
        if chosen:
            print(f"guests run under {chosen.name}: {chosen.reason}")
        _print_status(rack)
    return 0 if supervisor else 3


def _has_machines(rack: Rack) -> bool:
    return bool(rack.spec.of_kind("machine"))


def _print_status(rack: Rack) -> None:
    for server in rack.status():
        bmc = "+".join(server.protocols) if server.bmc_running else "BMC HAS ENDED"
        power = server.power or "light"
        print(f"  {server.name:<20} {power:<6} {server.bmc_address:<15} {bmc}")


def _console(arguments: argparse.Namespace) -> int:
    rack = Rack.at(arguments.dir)
    server = rack.spec.server(arguments.name)
    if server.kind == "light":
        raise RackError(f"{server.name} is a light machine and has no console")
    output = sys.stdout.buffer
    log = rack.layout.console_log(server.name)
    log.touch()
    with log.open("rb") as file:
        lines = file.read().splitlines(keepends=True)
        output.write(b"".join(lines[-arguments.lines :] if arguments.lines else []))
        output.flush()
        while not arguments.no_follow:
            if text := file.read():
                output.write(text)
                output.flush()
            else:
                time.sleep(_LOOK_EVERY_SECONDS)
    return 0


def _exec(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise RackError("exec: which command?")
    argv = Rack.at(arguments.dir).command(command)
    os.execv(argv[0], argv)


def _doctor(_arguments: argparse.Namespace) -> int:
    check_requirements(machines=True)
    found = accelerator.probe()
    print(f"everything that a rack needs is here; guests run under {found.name}: {found.reason}")
    return 0


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--dir",
        type=Path,
        default=Path(os.environ.get(DIRECTORY_VARIABLE, DEFAULT_DIRECTORY)),
        help=f"directory of the rack (default: ${DIRECTORY_VARIABLE}, else {DEFAULT_DIRECTORY})",
    )
    parser = argparse.ArgumentParser(prog="virtual_rack", description="Servers without hardware.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=text, description=text, parents=[common])
        found.set_defaults(run=run)
        return found

    up = command("up", _up, "Start a rack and return when all its BMCs answer.")
    up.add_argument("spec", type=Path, help="YAML file that describes the rack")
    up.add_argument("--fresh", action="store_true", help="empty disks and firmware variables")
    life = up.add_mutually_exclusive_group()
    life.add_argument("--foreground", action="store_true", help="stay, and take it down at the end")
    life.add_argument("--parent-pid", type=int, help="take it down when this process ends")
    command("down", _down, "End a rack and everything in it.")
    status = command("status", _status, "Show the servers; exit code 3 when the rack is down.")
    status.add_argument("--json", action="store_true", help="print JSON")
    console = command("console", _console, "Follow the serial console of a server.")
    console.add_argument("name", help="server")
    console.add_argument("--lines", type=int, default=20, help="past lines to show (default: 20)")
    console.add_argument("--no-follow", action="store_true", help="end instead of waiting for more")
    run = command("exec", _exec, "Run a command in the rack's network, as its administrator.")
    run.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND…")
    command("doctor", _doctor, "Check that this computer has what a rack needs.")
    return parser


def main() -> int:
    arguments = _parser().parse_args()
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone; nothing may be flushed to it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (RackError, SpecError, OSError) as error:
        print(f"virtual_rack: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
