# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: Barewright contributors
"""Start a program so that it outlives whoever starts it, and stop exactly that program again.

For hosts, containers and namespaces without systemd. The pid file says which process it is: its
pid alone could be another's by now, its start time and the boot id together cannot::

    {pid, start_ticks, boot_id, fingerprint}

``start`` does nothing while the process lives and was started with the same command and the same
contents of the files named by ``--fingerprint-file``; otherwise it stops the old process first.
With ``--respawn`` the process is a keeper that starts the program again whenever it ends.
The answer on standard output is ``{changed, action: none|start|restart|stop, pid}``.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STARTED_AFTER_SECONDS = 0.5
LOG_TAIL_BYTES = 2048


class KeepError(Exception):
    """The process could not be started or stopped; the text says why."""


def boot_id() -> str:
    """The id of this boot of the kernel: start times of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold blanks and parentheses of its own; what follows never does.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def fingerprint(command: Sequence[str], files: Sequence[Path]) -> str:
    """Digest of everything that a running process was started from."""
    digest = hashlib.sha256()
    for word in command:
        digest.update(word.encode() + b"\0")
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def read_pid_file(path: Path) -> dict[str, Any] | None:
    """What the pid file says about a process that is alive; None otherwise."""
    try:
        known = json.loads(path.read_bytes())
        alive = known["boot_id"] == boot_id() and start_ticks(known["pid"]) == known["start_ticks"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return known if alive else None


def write_pid_file(path: Path, content: dict[str, Any]) -> None:
    """Replace the pid file atomically."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w") as stream:
        json.dump(content, stream)
        stream.write("\n")
    os.replace(temporary, path)


def spawn(command: Sequence[str], log: Path, respawn: bool) -> int:
    """Start ``command`` in a session of its own, its parent already gone; return its pid."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            grandchild = os.fork()
            if grandchild == 0:
                run(command, log, respawn)
            os.write(writer, str(grandchild).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as stream:
        return int(stream.read())


def run(command: Sequence[str], log: Path, respawn: bool) -> None:
    """Become ``command``, or its keeper; never returns."""
    code = 127
    try:
        os.chdir("/")
        os.umask(0o022)
        null = os.open(os.devnull, os.O_RDONLY)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        # Whoever starts us may ignore signals (nohup); the program shall have the usual ones.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        if respawn:
            code = keep(command)
        else:
            os.execvp(command[0], list(command))
    except OSError as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    finally:
        os._exit(code)


def keep(command: Sequence[str]) -> int:
    """Run ``command`` again and again until SIGTERM; exit status when it does not even start."""
    process: subprocess.Popen[bytes] | None = None
    ended = False

    def end(_number: int, _frame: Any) -> None:
        nonlocal ended
        ended = True
        if process is not None:
            process.terminate()

    signal.signal(signal.SIGTERM, end)
    first = True
    while True:
        began = time.monotonic()
        process = subprocess.Popen(command, preexec_fn=die_with_parent)
        # The signal may have come while there was nothing to pass it on to.
        if ended:
            process.terminate()
        code = process.wait()
        short = time.monotonic() - began < STARTED_AFTER_SECONDS
        if ended or (first and short and code != 0):
            return 0 if ended else code
        first = False
        if short:
            time.sleep(1.0)


def die_with_parent() -> None:
    """PR_SET_PDEATHSIG: without its keeper the program would be nobody's."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def start(pid_file: Path, log: Path, command: Sequence[str], wanted: str, respawn: bool) -> int:
    """Start ``command``; its pid, once it has lived for a moment."""
    # Where the program's words begin: what an earlier one wrote is not its fault.
    offset = log.stat().st_size if log.exists() else 0
    pid = spawn(command, log, respawn)
    ticks = start_ticks(pid)
    write_pid_file(
        pid_file,
        {"pid": pid, "start_ticks": ticks, "boot_id": boot_id(), "fingerprint": wanted},
    )
    until = time.monotonic() + 2 * STARTED_AFTER_SECONDS
    while ticks is not None and time.monotonic() < until:
        time.sleep(0.05)
        if start_ticks(pid) != ticks:
            ticks = None
    if ticks is None:
        with log.open("rb") as stream:
            stream.seek(max(offset, log.stat().st_size - LOG_TAIL_BYTES))
            said = stream.read().decode(errors="replace").strip()
        pid_file.unlink()
        raise KeepError(f"{command[0]} ended at once, and said: {said or 'nothing'}")
    return pid


def stop(known: dict[str, Any], timeout_seconds: float) -> None:
    """End the process: SIGTERM, and SIGKILL when that was not enough."""
    pid = int(known["pid"])
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            # From here on the descriptor cannot mean another process.
            if start_ticks(pid) != known["start_ticks"]:
                return
            for number, patience in ((signal.SIGTERM, timeout_seconds), (signal.SIGKILL, 5.0)):
                signal.pidfd_send_signal(descriptor, number)
                if select.select([descriptor], [], [], patience)[0]:
                    return
        finally:
            os.close(descriptor)
        raise KeepError(f"process {pid} does not end")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: see ``--help``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("verb", choices=["start", "stop"])
    parser.add_argument("--pid-file", type=Path, required=True)
    parser.add_argument("--log", type=Path, help="file that gets the program's output")
    parser.add_argument("--respawn", action="store_true", help="start it again when it ends")
    parser.add_argument("--fingerprint-file", type=Path, action="append", default=[])
    parser.add_argument("--timeout-seconds", type=float, default=5.0, help="patience of stop")
    parser.add_argument("--plan", action="store_true", help="say what would be done")
    parser.usage = "%(prog)s {start,stop} [options] -- PROGRAM [ARGUMENT ...]"
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    options, command = parser.parse_args(words[:end]), words[end + 1 :]
    known = read_pid_file(options.pid_file)
    pid = known["pid"] if known else None
    action = "none"
    try:
        if options.verb == "start":
            if not command or options.log is None:
                parser.error("start needs --log and a command")
            wanted = fingerprint([str(options.respawn), *command], options.fingerprint_file)
            if known is None or known["fingerprint"] != wanted:
                action = "restart" if known else "start"
        elif known:
            action = "stop"
        if not options.plan:
            if known and action in ("restart", "stop"):
                stop(known, options.timeout_seconds)
                pid = None
            if action in ("start", "restart"):
                pid = start(options.pid_file, options.log, command, wanted, options.respawn)
            elif options.verb == "stop":
                options.pid_file.unlink(missing_ok=True)
    except (KeepError, OSError) as error:
        sys.exit(str(error))
    print(json.dumps({"changed": action != "none", "action": action, "pid": pid}))


if __name__ == "__main__":
    main()
