# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Writes every task's result as a line of JSON into the file that NOTES_FILE names."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: notes
type: aggregate
short_description: results as JSON lines, for tests
description: Writes every task's result as a line of JSON into the file that NOTES_FILE names.
"""


class CallbackModule(CallbackBase):
    """Tests read the file."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "notes"

    def v2_runner_on_ok(self, result: Any) -> None:
        self._note(result, failed=False)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._note(result, failed=True)

    @staticmethod
    def _note(result: Any, *, failed: bool) -> None:
        with open(os.environ["NOTES_FILE"], "a", encoding="utf-8") as notes:
            # Ansible takes "failed" out of a result before callbacks see it.
            noted = {**result._result, "failed": failed}
            notes.write(json.dumps(noted, default=str) + "\n")
