# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ansible_collections.barewright.metal.plugins.module_utils.bmc import termination

SETUP = f"""
import os, signal, sys, time
sys.path[:0] = {sys.path!r}
from ansible_collections.barewright.metal.plugins.module_utils.bmc.termination import (
    cleanup_on_termination, shielded,
)
"""


@contextmanager
def child(body: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs ``body`` and has printed its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", SETUP + textwrap.dedent(body)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_cleanup_runs_and_the_signal_still_ends_the_process(number: signal.Signals) -> None:
    body = """
        with cleanup_on_termination():
            try:
                print("ready", flush=True)
                time.sleep(30)
            finally:
                print("cleaned up", flush=True)
        print("went on", flush=True)
    """
    with child(body) as process:
        process.send_signal(number)
        output, _errors = process.communicate(timeout=10)
        assert output == "cleaned up\n"
        assert process.returncode == -number


def test_a_second_signal_does_not_cut_the_cleanup_short() -> None:
    body = """
        with cleanup_on_termination():
            try:
                print("ready", flush=True)
                time.sleep(30)
            finally:
                print("cleaning", flush=True)
                time.sleep(0.5)
                print("cleaned up", flush=True)
    """
    with child(body) as process:
        process.terminate()
        assert process.stdout is not None
        assert process.stdout.readline() == "cleaning\n"
        process.terminate()
        assert process.communicate(timeout=10)[0] == "cleaned up\n"


def test_a_shielded_block_is_finished_before_the_signal_counts() -> None:
    body = """
        with cleanup_on_termination():
            with shielded():
                print("ready", flush=True)
                time.sleep(0.5)
                print("noted", flush=True)
            time.sleep(30)
    """
    with child(body) as process:
        process.terminate()
        assert process.communicate(timeout=10)[0] == "noted\n"
        assert process.returncode == -signal.SIGTERM


def test_the_handler_of_the_surroundings_gets_its_signal() -> None:
    body = """
        def handler(number, frame):
            print("outer", flush=True)
            os._exit(7)
        signal.signal(signal.SIGTERM, handler)
        with cleanup_on_termination():
            print("ready", flush=True)
            time.sleep(30)
    """
    with child(body) as process:
        process.terminate()
        assert process.communicate(timeout=10)[0] == "outer\n"
        assert process.returncode == 7


def test_handlers_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with termination.cleanup_on_termination():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
