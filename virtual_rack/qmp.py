# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A client of the QEMU Machine Protocol (QMP), as much of it as a BMC needs."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any


class QmpError(Exception):
    """QEMU refused a command, did not answer in time, or is gone."""


class QmpClient:
    """A QMP connection over a connected socket.

    A thread of its own reads; there `on_event` is called with every event
    (`{"event": …, "data": …}`), and `on_end` once, when QEMU has closed the connection.
    """

    def __init__(
        self,
        connection: socket.socket,
        on_event: Callable[[dict[str, Any]], None],
        on_end: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._on_event = on_event
        self._on_end = on_end
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="qmp", daemon=True)

    def start(self, timeout_seconds: float) -> None:
        """Take the greeting and leave the negotiation mode.

        Raises:
            QmpError: QEMU ended or said nothing in that time.
        """
        self._reader.start()
        self._answer("greeting", timeout_seconds)
        self.execute("qmp_capabilities", timeout_seconds=timeout_seconds)

    def execute(self, command: str, *, timeout_seconds: float = 10.0, **arguments: object) -> Any:
        """What QEMU returned for a command.

        Raises:
            QmpError: as said there.
        """
        message: dict[str, object] = {"execute": command}
        if arguments:
            message["arguments"] = arguments
        with self._sending:
            try:
                self._connection.sendall(json.dumps(message).encode() + b"\n")
            except OSError as error:
                raise QmpError(f"{command}: QEMU is gone ({error.strerror})") from error
            answer = self._answer(command, timeout_seconds)
        if "error" in answer:
            raise QmpError(f"{command}: {answer['error'].get('desc', answer['error'])}")
        return answer.get("return")

    def close(self) -> None:
        """End the connection; QEMU itself is left alone."""
        with contextlib.suppress(OSError):  # QEMU was first.
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._connection.close()

    def _answer(self, command: str, timeout_seconds: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=timeout_seconds)
        except queue.Empty:
            raise QmpError(f"{command}: no answer within {timeout_seconds:g} s") from None
        if answer is None:
            self._answers.put(None)
            raise QmpError(f"{command}: QEMU is gone")
        return answer

    def _read(self) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    message = json.loads(line)
                    if "event" in message:
                        self._on_event(message)
                    else:
                        self._answers.put(message)
        except OSError:
            pass  # A QEMU that is killed may leave a reset connection; the end is told below.
        finally:
            self._answers.put(None)
            self._on_end()
