# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Run a command inside the namespaces of a rack, as a program of its own:

    python -I -S enter.py PID START_TICKS -- COMMAND…

PID is the supervisor's, START_TICKS when it started (`virtual_rack.process.start_ticks`), so that
another process that got the same number later is never entered. The command has the working
directory, environment, standard streams and signals of this program, and its end is the end of this
program: the same exit code, or death by the same signal. It dies when this program or the rack
dies; what it leaves in the background lives until the rack ends.

Imports the standard library only, and nothing of this package, to start in a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys

# linux/sched.h, linux/prctl.h
_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1

_FORWARDED = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
}
# siginfo.si_code of what the terminal sends; it has sent it to the command as well.
_SI_KERNEL = 0x80
_NOT_STARTED = 125
_NOT_FOUND = 127


def _started(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The second field, the name in parentheses, may hold anything; starttime is the 22nd.
        return int(file.read().rpartition(")")[2].split()[19])


def _enter(pid: int, start_ticks: int) -> None:
    supervisor = os.pidfd_open(pid)
    # Only after the descriptor is open the number cannot come to mean another process.
    if _started(pid) != start_ticks:
        raise ProcessLookupError
    kinds = _CLONE_NEWNET | _CLONE_NEWPID | _CLONE_NEWNS
    if os.stat(f"/proc/{pid}/ns/user").st_ino != os.stat("/proc/self/ns/user").st_ino:
        kinds |= _CLONE_NEWUSER
    working_directory = os.getcwd()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(supervisor, kinds):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    os.close(supervisor)
    os.chdir(working_directory)


def _become(command: list[str], parent: int, mask: set[int | signal.Signals]) -> None:
    """In the child: be the command."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if select.select([parent], [], [], 0)[0]:
        os._exit(_NOT_STARTED)  # The parent died before it could have been noticed.
    # Python ignores it, and the command would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"virtual_rack: {command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(_NOT_FOUND)


def _end_like(status: int) -> int:
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


def main(arguments: list[str]) -> int:
    pid, start_ticks, separator, *command = arguments
    if separator != "--" or not command:
        raise SystemExit(__doc__)
    try:
        _enter(int(pid), int(start_ticks))
    except (ProcessLookupError, FileNotFoundError):
        print("virtual_rack: the rack is not up any more", file=sys.stderr)
        return _NOT_STARTED
    except OSError as error:
        print(f"virtual_rack: the rack cannot be entered: {error}", file=sys.stderr)
        return _NOT_STARTED
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED | {signal.SIGCHLD})
    ourselves = os.pidfd_open(os.getpid())
    child = os.fork()
    if not child:
        _become(command, ourselves, mask)
    while True:
        received = signal.sigwaitinfo(_FORWARDED | {signal.SIGCHLD})
        if received.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return _end_like(status)
        elif received.si_code != _SI_KERNEL:
            os.kill(child, received.si_signo)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
