# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writing an image to a disk so that nothing half-done ever looks whole.

The order is the promise. The image's first MiB is received and judged before the disk is touched;
then both ends of the disk are zeroed, synced and read back; then the body is written, except what
falls on the two ends. Only when the whole stream was right are the ends written: the last MiB, the
backup GPT in the disk's last sectors, the first MiB without its first sector, and at last sector
0, without which no firmware believes in a table. Every step is on the medium before the next
begins, so losing power anywhere leaves a disk that does not boot.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain
from typing import Any

from . import gpt
from .block_device import BlockDevice
from .deadline import Deadline
from .fault import Fault
from .image_source import ImageRequest, ImageSource, Prefetch, decode

END_BYTES = 1 << 20
"""What is held back at each end of the disk."""

_BUFFER_BYTES = 4 << 20
_BLOCK_BYTES = 64 << 10
_MIN_HOLE_BYTES = 1 << 20
_MAX_HOLE_BYTES = 1 << 30
_ZERO_BLOCK = bytes(_BLOCK_BYTES)

# What the first bytes are when the compression was named wrongly.
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"QFI\xfb": "qcow2",
    b"KDMV": "vmdk",
    b"BZh": "bzip2",
}

Json = dict[str, Any]
Report = Callable[[int, "int | None", str], None]
"""Called with bytes received, bytes expected if known, and a text."""


def check_fit(device: BlockDevice, request: ImageRequest, source: ImageSource) -> None:
    """Compare what is known before the first byte: sector size and sizes.

    Faults: IMAGE_SECTOR_SIZE_MISMATCH, IMAGE_TOO_LARGE.
    """
    if device.sector_bytes != request.sector_bytes:
        raise _sector_fault(device, request.sector_bytes)
    size = request.raw_size_bytes
    if size is None and request.actual_compression == "none":
        size = source.length
    if size is not None and size > device.size_bytes:
        raise _too_large(device, f"an image of {size} bytes")


def stream_image(
    device: BlockDevice,
    source: ImageSource,
    deadline: Deadline,
    report: Report = lambda received, expected, text: None,
) -> Json:
    """Write the image that ``source`` offers to ``device``, which is open for writing.

    Returns ``{received_bytes, raw_size_bytes, written_bytes, skipped_bytes, seconds,
    bytes_per_second, partition_table: gpt|dos, partitions_reread}``.

    Faults before the disk is touched: those of :func:`check_fit` and IMAGE_UNUSABLE. Later: those
    of ImageSource.chunks, IMAGE_CORRUPT, IMAGE_TOO_LARGE, IMAGE_SIZE_MISMATCH, DISK_*,
    DEADLINE_EXCEEDED; then both ends of the disk are zeroes, or the fault's details say
    ``tables_destroyed: false``.
    """
    request = source.request
    check_fit(device, request, source)
    began = time.monotonic()
    with ExitStack() as stack:
        received = stack.enter_context(Prefetch(source.chunks()))
        raw = stack.enter_context(Prefetch(decode(received, request.actual_compression)))
        first_chunks = _first_chunks(raw)
        head = b"".join(first_chunks)[:END_BYTES]
        inspect_head(device, head)
        try:
            report(source.received_bytes, source.length, "clearing both ends of the disk")
            destroy_ends(device)
            body = _Body(device)
            for chunk in chain(first_chunks, raw):
                deadline.check(f"the image on {device.path}")
                body.feed(chunk)
                report(source.received_bytes, source.length, f"{body.size_bytes >> 20} MiB raw")
            body.end()
            _check_raw_size(request, body.size_bytes)
            device.sync()
            _write_ends(device, head, body.tail)
        except BaseException as error:
            _wreck(device, error)
            raise
    seconds = time.monotonic() - began
    return {
        "received_bytes": source.received_bytes,
        "raw_size_bytes": body.size_bytes,
        "written_bytes": body.written_bytes,
        "skipped_bytes": body.skipped_bytes,
        "seconds": round(seconds, 3),
        "bytes_per_second": int(body.size_bytes / max(seconds, 0.001)),
        "partition_table": "dos" if gpt.sector_bytes_of(head) is None else "gpt",
        "partitions_reread": device.reread_partitions(),
    }


def inspect_head(device: BlockDevice, head: bytes) -> None:
    """Judge an image by its first MiB. Changes nothing.

    Faults: IMAGE_UNUSABLE, IMAGE_SECTOR_SIZE_MISMATCH, IMAGE_TOO_LARGE.
    """
    if not gpt.has_mbr(head[:512]):
        kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
        raise _unusable(f"{kind} data" if kind else "none in its first sector")
    sector_bytes = gpt.sector_bytes_of(head)
    if sector_bytes is None:
        if head[450] == gpt.PROTECTIVE_TYPE:
            raise _unusable("a protective MBR without a GPT")
        return
    if sector_bytes != device.sector_bytes:
        raise _sector_fault(device, sector_bytes)
    try:
        table = _table_in(head, sector_bytes)
    except gpt.GptError as error:
        raise _unusable(str(error)) from error
    try:
        table.relocate(device.sectors)
    except gpt.GptError as error:
        raise _too_large(device, str(error)) from error


def destroy_ends(device: BlockDevice) -> None:
    """Zero the first and last MiB, where every partition table lies, and see that it is so.

    Fault: DISK_NOT_ZEROED.
    """
    size = min(END_BYTES, device.size_bytes)
    starts = sorted({0, device.size_bytes - size})
    for start in starts:
        device.zero(start, size)
    device.sync()
    for start in starts:
        if any(device.read(start, size)):
            raise Fault(
                "DISK_NOT_ZEROED",
                wanted=f"zeroes at both ends of {device.path}",
                found=f"something else in the {size} bytes at {start}",
            )


def describe_table(device: BlockDevice) -> str:
    """The disk's partition table as lines for a diff; it need not be valid."""
    if gpt.sector_bytes_of(device.read(0, 2 * max(gpt.SECTOR_SIZES))) is None:
        return "no GPT\n"
    try:
        table = gpt.parse(device.read, device.sector_bytes)
    except gpt.GptError as error:
        return f"a GPT that is not valid: {error}\n"
    lines = [
        f"{each.number} {each.name or '-'}: sectors {each.first_lba} to {each.last_lba}\n"
        for each in table.partitions
    ]
    return "".join(lines) or "a GPT without partitions\n"


def _first_chunks(raw: Iterator[bytes]) -> list[bytes]:
    chunks, size = [], 0
    for chunk in raw:
        chunks.append(chunk)
        size += len(chunk)
        if size >= END_BYTES:
            break
    return chunks


def _table_in(head: bytes, sector_bytes: int) -> gpt.Gpt:
    return gpt.parse(lambda offset, size: head[offset : offset + size], sector_bytes)


def _check_raw_size(request: ImageRequest, size_bytes: int) -> None:
    wanted = request.raw_size_bytes
    if wanted is not None and wanted != size_bytes:
        raise Fault(
            "IMAGE_SIZE_MISMATCH",
            wanted=f"{wanted} bytes after decompression of {request.public_url}",
            found=f"{size_bytes}",
        )


def _write_ends(device: BlockDevice, head: bytes, tail: list[tuple[int, bytes]]) -> None:
    """The end of the disk first, sector 0 last, each on the medium before the next."""
    sector_bytes = device.sector_bytes
    first = bytearray(_padded(head, sector_bytes))
    last = list(tail)
    if gpt.sector_bytes_of(head) is not None:
        table = _table_in(head, sector_bytes)
        table.relocate(device.sectors)
        for lba, content in table.primary().items():
            first[lba * sector_bytes : lba * sector_bytes + len(content)] = content
        first[:sector_bytes] = gpt.protect(bytes(first[:sector_bytes]), device.sectors)
        last += [(lba * sector_bytes, content) for lba, content in table.backup().items()]
    writes = [*last, (sector_bytes, bytes(first[sector_bytes:])), (0, bytes(first[:sector_bytes]))]
    for index, (offset, content) in enumerate(writes):
        device.write(offset, content)
        if index >= len(last) - 1:
            device.sync()
    _verify_ends(device, writes)


def _verify_ends(device: BlockDevice, writes: list[tuple[int, bytes]]) -> None:
    """Read both ends back; later writes may cover earlier ones, so all are laid over the found."""
    regions = [
        [write for write in writes if write[0] < END_BYTES],
        [write for write in writes if write[0] >= END_BYTES],
    ]
    for region in filter(None, regions):
        start = min(offset for offset, _content in region)
        end = max(offset + len(content) for offset, content in region)
        found = device.read(start, end - start)
        wanted = bytearray(found)
        for offset, content in region:
            wanted[offset - start : offset - start + len(content)] = content
        if wanted != found:
            raise Fault(
                "DISK_READBACK_DIFFERS",
                wanted=f"what was written to {device.path} between {start} and {end}",
                found="other bytes",
            )


def _wreck(device: BlockDevice, error: BaseException) -> None:
    """After a failure: no table at either end, and the fault says so or says that it could not."""
    destroyed = True
    try:
        destroy_ends(device)
    except Fault:
        destroyed = False
    if isinstance(error, Fault):
        error.details["tables_destroyed"] = destroyed


def _padded(content: bytes, sector_bytes: int) -> bytes:
    return content.ljust(-(-len(content) // sector_bytes) * sector_bytes, b"\0")


def _unusable(found: str) -> Fault:
    return Fault("IMAGE_UNUSABLE", wanted="a raw disk image with a partition table", found=found)


def _sector_fault(device: BlockDevice, sector_bytes: int) -> Fault:
    return Fault(
        "IMAGE_SECTOR_SIZE_MISMATCH",
        wanted=f"an image for the {device.sector_bytes}-byte sectors of {device.path}",
        found=f"one for {sector_bytes}-byte sectors",
    )


def _too_large(device: BlockDevice, found: str) -> Fault:
    return Fault(
        "IMAGE_TOO_LARGE",
        wanted=f"an image that fits the {device.size_bytes} bytes of {device.path}",
        found=found,
        details={"disk_size_bytes": device.size_bytes},
    )


class _Body:
    """The image between the two ends, written in large aligned pieces with its holes left out."""

    def __init__(self, device: BlockDevice) -> None:
        self._device = device
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)
        self._position = 0
        self._filled = 0
        self._hole_start = 0
        self._hole_end = 0
        self._can_punch = True
        tail_start = max(END_BYTES, device.size_bytes - END_BYTES)
        self._tail_start = tail_start // _BLOCK_BYTES * _BLOCK_BYTES
        self.tail: list[tuple[int, bytes]] = []
        self.size_bytes = 0
        self.written_bytes = 0
        self.skipped_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the image."""
        if self.size_bytes + len(chunk) > self._device.size_bytes:
            raise _too_large(self._device, "an image that goes on behind the disk's end")
        self.size_bytes += len(chunk)
        taken = 0
        while taken < len(chunk):
            piece = chunk[taken : taken + _BUFFER_BYTES - self._filled]
            self._buffer[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            taken += len(piece)
            if self._filled == _BUFFER_BYTES:
                self._flush()

    def end(self) -> None:
        """Write what is left, the last sector filled up with zeroes."""
        padding = -self._filled % self._device.sector_bytes
        self._buffer[self._filled : self._filled + padding] = bytes(padding)
        self._filled += padding
        self._flush()
        self._close_hole()

    def _flush(self) -> None:
        for is_zero, start, end in self._runs():
            if is_zero:
                self._extend_hole(self._position + start, self._position + end)
            else:
                with memoryview(self._buffer) as view, view[start:end] as piece:
                    self._device.write_aligned(self._position + start, piece)
                self.written_bytes += end - start
        self._position += self._filled
        self._filled = 0

    def _runs(self) -> list[tuple[bool, int, int]]:
        """The buffer's blocks as runs of zeroes and of data; blocks of the two ends left out.

        A short run of zeroes between data is data: one long write is faster than three requests.
        """
        runs: list[tuple[bool, int, int]] = []
        for start in range(0, self._filled, _BLOCK_BYTES):
            end = min(start + _BLOCK_BYTES, self._filled)
            if self._position + start < END_BYTES:
                continue
            block = self._buffer[start:end]
            if self._position + start >= self._tail_start:
                self.tail.append((self._position + start, block))
                continue
            is_zero = block == _ZERO_BLOCK[: end - start]
            if runs and runs[-1][0] == is_zero:
                runs[-1] = (is_zero, runs[-1][1], end)
                continue
            runs.append((is_zero, start, end))
            if len(runs) >= 3 and not is_zero:
                _data, data_start, _end = runs[-3]
                _hole, hole_start, hole_end = runs[-2]
                if hole_end - hole_start < _MIN_HOLE_BYTES:
                    runs[-3:] = [(False, data_start, end)]
        return runs

    def _extend_hole(self, start: int, end: int) -> None:
        if start != self._hole_end or end - self._hole_start > _MAX_HOLE_BYTES:
            self._close_hole()
            self._hole_start = start
        self._hole_end = end

    def _close_hole(self) -> None:
        start, size = self._hole_start, self._hole_end - self._hole_start
        self._hole_start = self._hole_end
        if size == 0:
            return
        if self._can_punch and size >= _MIN_HOLE_BYTES:
            self._can_punch = self._device.punch(start, size)
            if self._can_punch:
                self.skipped_bytes += size
                return
        self._device.zero(start, size)
        self.written_bytes += size
