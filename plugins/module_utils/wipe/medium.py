# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A disk opened for erasing: every read and write goes past the page cache (O_DIRECT)."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable
from types import TracebackType

from ..disks import Disk
from .reasons import DiskRefused

# linux/fs.h
_BLKZEROOUT = 0x127F
_BLKRRPART = 0x125F

CHUNK_BYTES = 4 << 20
_WRITE_ZEROES_BYTES = 256 << 20
_REREAD_TRIES, _REREAD_PAUSE_SECONDS = 10, 0.2

Advance = Callable[[int], None]
"""Called with the number of bytes that are done."""


class Medium:
    """The disk, claimed for us alone where ``writable``, else opened for reading.

    Raises ``DiskRefused`` BUSY when something else holds it, READ_ONLY or UNREADABLE.
    """

    def __init__(self, disk: Disk, *, writable: bool = True) -> None:
        self._disk = disk
        # O_EXCL on a block device is the kernel's own claim: it fails while the disk, or any
        # partition of it, is mounted, used as swap or held by md, device-mapper or bcache.
        flags = os.O_DIRECT | os.O_CLOEXEC | os.O_EXCL | (os.O_RDWR if writable else os.O_RDONLY)
        try:
            self._descriptor = os.open(disk.path, flags)
        except OSError as error:
            raise _refusal(disk, error) from error
        # O_DIRECT wants aligned memory, which an anonymous mapping is.
        self._buffer = mmap.mmap(-1, CHUNK_BYTES)
        self._zeroes = mmap.mmap(-1, CHUNK_BYTES)

    def __enter__(self) -> Medium:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)
        self._buffer.close()
        self._zeroes.close()

    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes (at most ``CHUNK_BYTES``), both in whole logical sectors."""
        try:
            with memoryview(self._buffer) as whole, whole[:length] as part:
                count = os.preadv(self._descriptor, [part], offset)
        except OSError as error:
            raise DiskRefused("UNREADABLE", f"{error.strerror} at byte {offset}") from error
        if count != length:
            raise DiskRefused("UNREADABLE", f"it ends at byte {offset + count}")
        return self._buffer[:length]

    def write(self, offset: int, content: bytes) -> None:
        """Write ``content``, of whole logical sectors and at most ``CHUNK_BYTES``."""
        self._buffer[: len(content)] = content
        self._write(self._buffer, offset, len(content))

    def overwrite(self, offset: int, length: int, advance: Advance | None = None) -> None:
        """Write zeroes over a region by ordinary writes."""
        done = 0
        while done < length:
            step = min(CHUNK_BYTES, length - done)
            self._write(self._zeroes, offset + done, step)
            done += step
            if advance:
                advance(done)

    def write_zeroes(self, offset: int, length: int, advance: Advance | None = None) -> None:
        """Have the kernel zero a region: by WRITE ZEROES or WRITE SAME where the disk knows it.

        BLKZEROOUT, as ``blkdiscard --zeroout`` uses it, forbids the disk to only unmap.
        """
        done = 0
        while done < length:
            step = min(_WRITE_ZEROES_BYTES, length - done)
            try:
                fcntl.ioctl(self._descriptor, _BLKZEROOUT, struct.pack("QQ", offset + done, step))
            except OSError as error:
                raise DiskRefused(
                    "METHOD_FAILED", f"BLKZEROOUT: {error.strerror} at byte {offset + done}"
                ) from error
            done += step
            if advance:
                advance(done)

    def flush(self) -> None:
        """Empty the disk's own write cache."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise DiskRefused("UNWRITABLE", f"flush: {error.strerror}") from error

    def reread_partitions(self) -> None:
        """Let the kernel look for partitions again, so that it forgets those that are gone.

        Nothing of the erase hangs on it: a plain file has none, and udev may be looking into one.
        """
        for _try in range(_REREAD_TRIES):
            try:
                fcntl.ioctl(self._descriptor, _BLKRRPART)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    return
                time.sleep(_REREAD_PAUSE_SECONDS)
            else:
                return

    def _write(self, source: mmap.mmap, offset: int, length: int) -> None:
        try:
            with memoryview(source) as whole, whole[:length] as part:
                count = os.pwritev(self._descriptor, [part], offset)
        except OSError as error:
            raise DiskRefused("UNWRITABLE", f"{error.strerror} at byte {offset}") from error
        if count != length:
            raise DiskRefused("UNWRITABLE", f"it ends at byte {offset + count}")


def _refusal(disk: Disk, error: OSError) -> DiskRefused:
    if error.errno == errno.EBUSY:
        return DiskRefused("BUSY", "; ".join(map(str, disk.holders)))
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return DiskRefused("READ_ONLY", str(error.strerror))
    return DiskRefused("UNREADABLE", str(error.strerror))
