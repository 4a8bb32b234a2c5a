# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Base of the action plugins whose same-named module runs on the machine, over SSH.

A machine that cannot be reached is a failed task with a fault code, never an unreachable host:
Ansible drops an unreachable host from the play, and with it the clean-up that it needs most.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from typing import Any

from ansible.errors import AnsibleAuthenticationFailure, AnsibleConnectionFailure
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.parameters import remove_values
from ansible.plugins.action import ActionBase

from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.operation import new_id
from ansible_collections.barewright.metal.plugins.module_utils.run_channel import (
    RunChannel,
    local_channel,
)
from ansible_collections.barewright.metal.plugins.plugin_utils.task_context import (
    state_dir_or_none,
)

Json = dict[str, Any]

# A machine that lost power leaves TCP waiting for a quarter of an hour; this finds out in 30 s.
_ALIVE_ARGUMENTS = "-o ServerAliveInterval=10 -o ServerAliveCountMax=3"

_POLL_FIRST_SECONDS = 0.5
_POLL_SLOWEST_SECONDS = 5.0
_PROGRESS_INTERVAL_SECONDS = 5.0

# The daemon ends by itself at its deadline; this is the time it gets to say so.
_GRACE_SECONDS = 30.0

_HOST_KEY_SIGNS = (
    "REMOTE HOST IDENTIFICATION HAS CHANGED",
    "Host key verification failed",
    "host key is known for",
)


def connection_fault(error: Exception, host: str) -> Fault:
    """The fault for an exception of a connection plugin.

    HOST_KEY_MISMATCH, SSH_AUTHENTICATION_FAILED or NODE_UNREACHABLE; ssh's own words are kept.
    """
    text = str(getattr(error, "message", "") or error)
    found = " ".join(text.split())[-800:]
    wanted = f"an SSH connection to {host}"
    if any(sign in text for sign in _HOST_KEY_SIGNS):
        return Fault("HOST_KEY_MISMATCH", wanted=f"{wanted} with its pinned host key", found=found)
    if isinstance(error, AnsibleAuthenticationFailure) or "Permission denied (" in text:
        return Fault("SSH_AUTHENTICATION_FAILED", wanted=wanted, found=found)
    return Fault("NODE_UNREACHABLE", wanted=wanted, found=found)


class NodeAction(ActionBase):
    """Runs the module of the same name over the task's connection."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: Json | None = None) -> Json:
        """The module's result, or a failed one with ``fault``."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        try:
            self._notice_silence()
            return self.work(variables)
        except AnsibleConnectionFailure as error:
            return connection_fault(error, self.host(variables)).to_result()
        except Fault as fault:
            return fault.to_result()

    def work(self, task_vars: Json) -> Json:
        """What the action does; subclasses prepare arguments or follow detached work here."""
        return dict(self._execute_module(task_vars=task_vars))

    @staticmethod
    def host(task_vars: Json) -> str:
        """The host's name for people."""
        return str(task_vars.get("inventory_hostname", "the machine"))

    def _notice_silence(self) -> None:
        """Make ssh end a session with a machine that vanished.

        Only the master of a shared connection watches for that, and the one that earlier tasks
        left behind may not, so it gets a control path of its own. The path covers the SSH
        arguments as well: a ramdisk and the system installed from it can have one address, and
        two host keys.
        """
        connection = self._connection
        if connection.transport != "ssh":
            return
        options = [
            str(connection.get_option(name) or "")
            for name in ("host", "port", "remote_user", "ssh_common_args", "ssh_extra_args")
        ]
        if _ALIVE_ARGUMENTS not in options[-1]:
            connection.set_option("ssh_extra_args", f"{options[-1]} {_ALIVE_ARGUMENTS}".strip())
        if not connection.get_option("control_path"):
            digest = hashlib.sha256("\0".join(options).encode()).hexdigest()[:12]
            connection.set_option("control_path", f"%(directory)s/bw{digest}")


class DetachedAction(NodeAction):
    """Starts a module that works detached (``module_utils/operation.py``) and follows it.

    A subclass sets ``ARGUMENT_SPEC`` to the module's own. The result is the operation's, scrubbed
    of the values that the specification marks ``no_log``, plus ``operation_id``.
    """

    ARGUMENT_SPEC: dict[str, Json] = {}

    def work(self, task_vars: Json) -> Json:
        """Start or attach, poll, collect."""
        arguments = dict(self._task.args)
        if self._task.check_mode:
            return dict(self._execute_module(module_args=arguments, task_vars=task_vars))
        name = str(self._task.action).rpartition(".")[2]
        if not arguments.get("operation_id"):
            arguments["operation_id"] = new_id(name)
        validated = ArgumentSpecValidator(self.ARGUMENT_SPEC).validate(arguments)
        if validated.error_messages:
            # The module says it in the words that every other module uses.
            return dict(self._execute_module(module_args=arguments, task_vars=task_vars))
        self.channel(task_vars).permit(name)
        follower = _Follower(self, arguments, validated.validated_parameters, task_vars)
        result = follower.follow()
        # pylint: disable-next=protected-access  # the only place where the validator keeps them
        return dict(remove_values(result, validated._no_log_values))

    def start_module(self, arguments: Json, task_vars: Json) -> Json:
        """One run of the module: it starts the operation, attaches to it or returns its result."""
        return dict(self._execute_module(module_args=dict(arguments), task_vars=task_vars))

    def shell(self, command: str) -> tuple[int, str]:
        """``command`` on the machine by its shell: exit status and output, no Python started."""
        # Asking for privileges is what makes Ansible allocate a terminal, which is slow.
        outcome = self._low_level_execute_command(
            command, sudoable=getattr(self._connection, "become", None) is not None
        )
        return int(outcome["rc"]), str(outcome["stdout"])

    def channel(self, task_vars: Json) -> RunChannel:
        """Whom to ask for a permit, and to tell how far the work is."""
        return local_channel(
            state_dir_or_none(self._templar, task_vars), self.host(task_vars), self._display.display
        )


class _Follower:
    """Follows one operation until it ended, its deadline passed or its machine stayed away."""

    def __init__(
        self, action: DetachedAction, arguments: Json, parameters: Json, task_vars: Json
    ) -> None:
        self._action = action
        self._arguments = arguments
        self._task_vars = task_vars
        self._host = action.host(task_vars)
        self._channel = action.channel(task_vars)
        self._deadline = Deadline(float(parameters["timeout_seconds"]) + _GRACE_SECONDS)
        self._patience_seconds = float(parameters["unreachable_seconds"])
        self._last_contact = time.monotonic()
        self._told_at = 0.0
        self._told = ""

    def follow(self) -> Json:
        operation_id = str(self._arguments["operation_id"])
        result: Json | None = None
        waited = False
        while result is None:
            self._deadline.check(f"the result of operation {operation_id} on {self._host}")
            started = self._reach(
                lambda: self._action.start_module(self._arguments, self._task_vars)
            )
            operation = started.pop("operation", None)
            if operation is None:
                result = started
            elif operation["state"] == "finished":
                result = dict(started["result"])
                # Work that had ended before this task began was not done by it.
                result["changed"] = waited and result.get("changed", False)
            else:
                waited = True
                result = self._await_result(operation)
        result["operation_id"] = operation_id
        return result

    def _await_result(self, operation: Json) -> Json | None:
        """The result, or None when the daemon is gone: the module then says what became of it."""
        directory = shlex.quote(str(operation["directory"]))
        # In this order: a result that appears after the first test is found by the next poll.
        command = (
            f"cat {directory}/status.json; echo; "
            f"if [ -e {directory}/result.json ]; then echo ended; "
            f"elif [ -d /proc/{int(operation['pid'] or 0)} ]; then echo running; else echo gone; fi"
        )
        pause = _POLL_FIRST_SECONDS
        while True:
            _code, output = self._reach(lambda: self._action.shell(command))
            lines = output.split("\n")
            verdict = (output.split() or ["gone"])[-1]
            if verdict == "ended":
                return self._collect(f"{directory}/result.json")
            if verdict != "running":
                return None
            self._show(lines[0])
            self._deadline.check(
                f"{operation['label']} {operation['id']} on {self._host} to end",
                "it is still running there; a task with the same operation_id attaches to it",
            )
            self._deadline.sleep(pause)
            pause = min(pause * 1.5, _POLL_SLOWEST_SECONDS)

    def _collect(self, path: str) -> Json | None:
        code, output = self._reach(lambda: self._action.shell(f"cat {path}"))
        if code != 0:
            return None
        return dict(json.loads(output))

    def _reach(self, call: Any) -> Any:
        """``call``, repeated while the machine cannot be reached and patience lasts."""
        told = False
        while True:
            try:
                outcome = call()
            except AnsibleConnectionFailure as error:
                fault = connection_fault(error, self._host)
                away = time.monotonic() - self._last_contact
                if fault.code != "NODE_UNREACHABLE" or away >= self._patience_seconds:
                    fault.details["unreachable_seconds"] = int(away)
                    raise fault from error
                self._deadline.check(f"an answer of {self._host}", fault.found)
                if not told:
                    self._channel.progress("no answer, trying again")
                    told = True
                self._deadline.sleep(2.0)
            else:
                self._last_contact = time.monotonic()
                return outcome

    def _show(self, text: str) -> None:
        now = time.monotonic()
        if now - self._told_at < _PROGRESS_INTERVAL_SECONDS:
            return
        try:
            status = json.loads(text)
        except ValueError:
            return
        line = progress_line(status)
        if line != self._told:
            self._channel.progress(line)
            self._told, self._told_at = line, now


def progress_line(status: Json) -> str:
    """``image_stream: writing 37 %, 186.0 of 500.0 MiB, 42.1 MiB/s, 8 s left``."""
    parts = []
    done, total = status.get("done_bytes"), status.get("total_bytes")
    if done is not None and total:
        parts.append(f"{100 * done // total} %, {_mebi(done)} of {_mebi(total)} MiB")
    elif done is not None:
        parts.append(f"{_mebi(done)} MiB")
    if status.get("bytes_per_second"):
        parts.append(f"{_mebi(status['bytes_per_second'])} MiB/s")
    if status.get("eta_seconds") is not None:
        parts.append(f"{status['eta_seconds']} s left")
    if status.get("text"):
        parts.append(str(status["text"]))
    return f"{status.get('label')}: {status.get('phase')} {', '.join(parts)}".rstrip()


def _mebi(size_bytes: int) -> str:
    return f"{size_bytes / 1048576:.1f}"
