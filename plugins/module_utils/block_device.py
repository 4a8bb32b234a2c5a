# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A disk that is written: exclusively, around the page cache, in whole sectors, read back."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
import time

from .fault import Fault

# <linux/fs.h>; the numbers of x86 and arm64.
_BLKROGET = 0x125E
_BLKRRPART = 0x125F
_BLKSSZGET = 0x1268
_BLKGETSIZE64 = 0x80081272

# <linux/falloc.h>
_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02

_BUFFER_BYTES = 1 << 20
_ALIGNMENT = 4096
_REREAD_SECONDS = 10.0


class BlockDevice:
    """An open disk, or a regular file that stands for one (``sector_bytes`` says of what kind).

    Use as a context manager. Faults: DISK_BUSY (mounted, or held by md, LVM, …), DISK_READ_ONLY,
    DISK_GONE, DISK_IO_ERROR.
    """

    def __init__(self, path: str, *, writable: bool, sector_bytes: int = 512) -> None:
        self.path = path
        self.size_bytes = 0
        self.sector_bytes = sector_bytes
        self.is_block_device = False
        self._descriptor = -1
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)
        self._open(writable)
        try:
            self._measure(writable)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> BlockDevice:
        return self

    def __exit__(self, *_exception: object) -> None:
        os.close(self._descriptor)

    @property
    def sectors(self) -> int:
        """Size in logical sectors."""
        return self.size_bytes // self.sector_bytes

    def _open(self, writable: bool) -> None:
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY)
        try:
            kind = os.stat(self.path).st_mode
            self.is_block_device = stat.S_ISBLK(kind)
            if writable and self.is_block_device:
                # The kernel refuses this while a file system or another holder uses the disk.
                flags |= os.O_EXCL
            try:
                self._descriptor = os.open(self.path, flags | os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # A file on a tmpfs of older kernels knows no direct access.
                self._descriptor = os.open(self.path, flags)
        except OSError as error:
            raise self.fault(error, "to open it") from error

    def _measure(self, writable: bool) -> None:
        if not self.is_block_device:
            self.size_bytes = os.fstat(self._descriptor).st_size
            return
        self.size_bytes = self._ioctl_number(_BLKGETSIZE64, "Q")
        self.sector_bytes = self._ioctl_number(_BLKSSZGET, "I")
        if writable and self._ioctl_number(_BLKROGET, "I"):
            raise Fault("DISK_READ_ONLY", wanted=f"to write {self.path}", found="it is read-only")

    def _ioctl_number(self, request: int, code: str) -> int:
        answer = fcntl.ioctl(self._descriptor, request, bytes(struct.calcsize(code)))
        return int(struct.unpack(code, answer)[0])

    def fault(self, error: OSError, wanted: str) -> Fault:
        """The fault for an error of the operating system while ``wanted`` was tried."""
        code = {
            errno.EBUSY: "DISK_BUSY",
            errno.EROFS: "DISK_READ_ONLY",
            errno.EPERM: "DISK_READ_ONLY",
            errno.EACCES: "DISK_READ_ONLY",
            errno.ENOENT: "DISK_GONE",
            errno.ENXIO: "DISK_GONE",
            errno.ENODEV: "DISK_GONE",
        }.get(error.errno or 0, "DISK_IO_ERROR")
        return Fault(
            code,
            wanted=f"{self.path}: {wanted}",
            found=error.strerror or str(error),
            details={"path": self.path, "errno": error.errno},
        )

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes at ``offset`` from the medium; fewer at the disk's end."""
        parts = []
        end = min(offset + size, self.size_bytes)
        while offset < end:
            start = offset // _ALIGNMENT * _ALIGNMENT
            skipped = offset - start
            wanted = min(_BUFFER_BYTES, -(-(end - start) // _ALIGNMENT) * _ALIGNMENT)
            with memoryview(self._buffer) as view:
                try:
                    got = os.preadv(self._descriptor, [view[:wanted]], start)
                except OSError as error:
                    raise self.fault(error, f"to read {wanted} bytes at {start}") from error
                if got <= skipped:
                    raise Fault(
                        "DISK_IO_ERROR",
                        wanted=f"{self.path}: to read {wanted} bytes at {start}",
                        found=f"{got} bytes, the disk says it has {self.size_bytes}",
                    )
                parts.append(bytes(view[skipped : min(got, end - start)]))
            offset = start + min(got, end - start)
        return b"".join(parts)

    def write(self, offset: int, content: bytes) -> None:
        """Write whole sectors; ``offset`` and length are multiples of the logical sector."""
        for done in range(0, len(content), _BUFFER_BYTES):
            piece = content[done : done + _BUFFER_BYTES]
            self._buffer[: len(piece)] = piece
            with memoryview(self._buffer) as view:
                self.write_aligned(offset + done, view[: len(piece)])

    def write_aligned(self, offset: int, view: memoryview) -> None:
        """Write from memory that is aligned to 4096 bytes (an anonymous mmap)."""
        done = 0
        while done < len(view):
            try:
                done += os.pwrite(self._descriptor, view[done:], offset + done)
            except OSError as error:
                wanted = f"to write {len(view) - done} bytes at {offset + done}"
                raise self.fault(error, wanted) from error

    def punch(self, offset: int, size: int) -> bool:
        """Make the range read as zeroes without sending them; False when the disk cannot.

        The kernel refuses rather than falling back to writing zeroes itself
        (``BLKDEV_ZERO_NOFALLBACK``). Both ends are read back, as no promise of a disk is believed.
        """
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        code = libc.fallocate(
            self._descriptor,
            _PUNCH_HOLE | _KEEP_SIZE,
            ctypes.c_longlong(offset),
            ctypes.c_longlong(size),
        )
        if code != 0:
            number = ctypes.get_errno()
            if number in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EREMOTEIO):
                return False
            raise self.fault(OSError(number, os.strerror(number)), f"to zero {size} bytes")
        probe = min(size, _ALIGNMENT)
        ends = self.read(offset, probe) + self.read(offset + size - probe, probe)
        return not any(ends)

    def zero(self, offset: int, size: int) -> None:
        """Write zeroes, the plain way."""
        zeroes = bytes(_BUFFER_BYTES)
        for done in range(0, size, _BUFFER_BYTES):
            self.write(offset + done, zeroes[: min(_BUFFER_BYTES, size - done)])

    def sync(self) -> None:
        """Return when the disk has everything on its medium, its write cache emptied."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self.fault(error, "to flush its cache") from error

    def reread_partitions(self) -> bool:
        """Make the kernel read the partition table; False when it refuses (a holder, a file)."""
        if not self.is_block_device:
            return False
        end = time.monotonic() + _REREAD_SECONDS
        while True:
            try:
                fcntl.ioctl(self._descriptor, _BLKRRPART)
            except OSError as error:
                # udev opens the disk after every change and keeps it busy for a moment.
                if error.errno != errno.EBUSY or time.monotonic() >= end:
                    return False
                time.sleep(0.2)
            else:
                return True
