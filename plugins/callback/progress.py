# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: stdout
short_description: One line for each step of each node
version_added: 0.1.0
description:
  - Shows a job as its steps, and for each node how the step ended and how long it took. A fault is
    shown in full, with what to do next.
  - Tasks that are not part of a step are shown when they fail or print a message.
options:
  times_file:
    description:
      - File to append one JSON line to for each finished step, with the keys job, step, title,
        node, outcome and seconds.
    type: path
    env:
      - name: BAREWRIGHT_TIMES_FILE
    ini:
      - section: barewright
        key: times_file
author:
  - Barewright contributors (@barewright)
"""

import json
import time
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    """See the documentation above."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "barewright.metal.progress"

    def __init__(self) -> None:
        super().__init__()
        self._title = ""
        self._shown_title = ""
        self._job = ""
        self._play_started = 0.0
        self._ended: set[tuple[str, str]] = set()
        self._causes: dict[str, str] = {}

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """A play is a step: remember its title and when it began."""
        self._title = str(play.get_name())
        self._job = str(play.get_variable_manager().get_vars(play=play).get("job_name", ""))
        self._play_started = time.monotonic()
        self._ended = set()

    def v2_runner_on_ok(self, result: Any) -> None:
        """Show the end of a step, and what a debug task says."""
        data = self._data(result)
        ended = data.get("step_result")
        host = result.host.get_name()
        if ended and "job_stopped" not in data.get("ansible_facts", {}):
            if ended["step"] != "open_job":
                self._show_step(host, ended)
        elif ended and ended["outcome"] != "advance":
            self._show_step(host, ended)
        elif result.task.action in ("debug", "ansible.builtin.debug") and "msg" in data:
            self._show_title()
            said = data["msg"] if isinstance(data["msg"], list) else [data["msg"]]
            for line in said:
                self._display.display(f"    {host:<12} {line}")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Show a failure that no step takes up: the step's own end shows all others."""
        if ignore_errors:
            return
        data = self._data(result)
        host = result.host.get_name()
        if self._job and not result.task.action.endswith("step_result"):
            # the rescue of the step shows the fault with its outcome
            self._causes[host] = str((data.get("fault") or {}).get("code", ""))
            return
        self._show_title()
        self._show_failure(host, data)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Show that a host could not be reached."""
        self._show_title()
        self._show_failure(result.host.get_name(), self._data(result))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """End with one line for the nodes that failed."""
        bad = sorted(set(stats.failures) | set(stats.dark))
        if bad:
            named = [f"{host} ({self._causes.get(host) or 'see above'})" for host in bad]
            self._display.display(f"failed: {', '.join(named)}", color="red")

    @staticmethod
    def _data(result: Any) -> dict[str, Any]:
        # ansible-core 2.19 renamed the attribute and warns about the old name
        return dict(getattr(result, "result", None) or getattr(result, "_result", {}))

    def _show_title(self) -> None:
        if self._shown_title != (self._job, self._title):
            self._shown_title = (self._job, self._title)
            heading = f"{self._job}: {self._title}" if self._job else self._title
            self._display.display(f"  {heading}", color="bright blue")

    def _show_step(self, host: str, ended: dict[str, Any]) -> None:
        if (host, ended["step"]) in self._ended:
            return
        self._ended.add((host, ended["step"]))
        self._show_title()
        seconds = time.monotonic() - self._play_started
        outcome = "predicted" if ended.get("predicted") else ended["outcome"]
        color = "green" if ended["outcome"] == "advance" else "red"
        self._display.display(f"    {host:<12} {outcome:<10} {seconds:7.1f} s", color=color)
        if ended["outcome"] != "advance":
            self._display.display(f"      {ended['reason']}", color=color)
            self._display.display(f"      to do: {ended['cure']}", color=color)
        self._remember(host, ended, outcome, seconds)

    def _show_failure(self, host: str, data: dict[str, Any]) -> None:
        self._display.display(f"    {host:<12} failed: {data.get('msg', data)}", color="red")

    def _remember(self, host: str, ended: dict[str, Any], outcome: str, seconds: float) -> None:
        path = self.get_option("times_file")
        if not path:
            return
        line = {
            "job": self._job,
            "step": ended["step"],
            "title": self._title,
            "node": host,
            "outcome": outcome,
            "seconds": round(seconds, 1),
        }
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
