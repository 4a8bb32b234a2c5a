# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading what the kernel says about the machine, under a root that tests can replace."""

from __future__ import annotations

import os


class MachineFiles:
    """Files of ``/sys``, ``/proc``, ``/run`` and ``/usr`` below ``root``.

    A file that is missing or unreadable reads as None: drivers leave out what they do not know.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = os.path.realpath(root)

    def path(self, name: str) -> str:
        """The real path of the machine's file ``name``."""
        return os.path.join(self._root, name.lstrip("/"))

    def read_bytes(self, name: str) -> bytes | None:
        """The whole content."""
        try:
            with open(self.path(name), "rb") as stream:
                return stream.read()
        except OSError:
            return None

    def read_text(self, name: str) -> str | None:
        """The content without the white space around it; None when that leaves nothing."""
        content = self.read_bytes(name)
        if content is None:
            return None
        return content.decode("utf-8", "replace").strip("\0 \t\r\n") or None

    def read_int(self, name: str) -> int | None:
        """The content as a decimal number."""
        text = self.read_text(name)
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def list(self, name: str) -> list[str]:
        """The sorted names in a directory; none when there is no such directory."""
        try:
            return sorted(os.listdir(self.path(name)))
        except OSError:
            return []

    def exists(self, name: str) -> bool:
        """Whether the file, or what the link points to, is there."""
        return os.path.exists(self.path(name))

    def resolve(self, name: str) -> str:
        """``name`` with every link followed, as the machine would spell it (``/sys/devices/…``)."""
        real = os.path.realpath(self.path(name))
        return real if self._root == "/" else real.removeprefix(self._root)
