# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIGTERM as an exception, so that the session on the BMC is deleted on that path too."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Terminated(BaseException):
    """The process was told to end. Not an Exception: nothing that retries may swallow it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


@contextlib.contextmanager
def cleanup_on_termination() -> Iterator[None]:
    """Let the body unwind on SIGTERM, SIGINT and SIGHUP, then let the signal do what it would have.

    Further signals are ignored while the body unwinds; its clean-up must be bounded. Outside the
    main thread signals never arrive, and nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(number: int, frame: FrameType | None) -> NoReturn:
        for each in previous:
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(number)

    previous = {each: signal.getsignal(each) for each in _SIGNALS}
    # A signal that was ignored on purpose (nohup) or is handled outside Python stays as it is.
    previous = {
        each: handler for each, handler in previous.items() if handler not in (signal.SIG_IGN, None)
    }
    for each in previous:
        signal.signal(each, unwind)
    try:
        yield
    except Terminated as ended:
        _restore(previous)
        os.kill(os.getpid(), ended.number)
        raise SystemExit(128 + ended.number) from None
    finally:
        _restore(previous)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Hold signals back for the body: a session that just began must be known before we may die.

    SIGALRM is among them, by which Ansible's ``timeout`` keyword ends a task.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_SIGNALS, signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _restore(handlers: Mapping[signal.Signals, object]) -> None:
    for each, handler in handlers.items():
        signal.signal(each, handler)  # type: ignore[arg-type]  # what getsignal gave
