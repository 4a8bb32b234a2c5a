# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils import gpt, image
from ansible_collections.barewright.metal.plugins.module_utils.block_device import BlockDevice
from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.module_utils.image_source import (
    ImageRequest,
    ImageSource,
    decode,
)
from ansible_collections.barewright.metal.tests.unit.plugins.image.rig import (
    COMPRESS,
    DISK_BYTES,
    MIB,
    loop_device,
    make_image,
    new_gpt,
    sgdisk_problems,
    sha256,
    write_table,
)


def stream(request, path, device_class=BlockDevice, seconds=60.0):
    with ImageSource(request) as source, device_class(str(path), writable=True) as device:
        return image.stream_image(device, source, Deadline(seconds))


def served(server, body, name="image.raw", **options):
    server.manners.body = body
    options.setdefault("sha256", sha256(body))
    return ImageRequest(url=f"{server.base}/{name}", stall_seconds=1.0, **options)


def fault_of(request, path, **options):
    with pytest.raises(Fault) as caught:
        stream(request, path, **options)
    return caught.value


def assert_holds(path, raw, sector_bytes=512):
    """The disk holds the image; only the places of the two tables may differ."""
    with BlockDevice(str(path), writable=False, sector_bytes=sector_bytes) as disk:
        tables = 2 * sector_bytes + 16384
        end = len(raw) - tables
        assert disk.read(tables, end - tables) == raw[tables:end]
        primary = gpt.parse(disk.read, sector_bytes)
        backup = gpt.parse(disk.read, sector_bytes, disk.sectors - 1)
        wanted = gpt.parse(lambda offset, size: raw[offset : offset + size], sector_bytes)
        assert primary.partitions == backup.partitions == wanted.partitions
        assert primary.alternate_lba == disk.sectors - 1


def assert_unbootable(path):
    with BlockDevice(str(path), writable=False) as disk:
        assert not any(disk.read(0, MIB))
        assert not any(disk.read(disk.size_bytes - MIB, MIB))


def assert_untouched(path, before):
    assert path.read_bytes() == before


@pytest.fixture
def before(disk):
    return disk.read_bytes()


@pytest.mark.parametrize("compression", COMPRESS)
def test_an_image_is_on_the_disk_with_its_backup_table_at_the_end(
    server, compressed, raw_image, disk, compression
):
    suffix = "" if compression == "none" else f".{compression}"
    request = served(server, compressed[compression], f"image.raw{suffix}")
    result = stream(request, disk)
    assert_holds(disk, raw_image)
    assert sgdisk_problems(disk) == ""
    assert result["received_bytes"] == len(compressed[compression])
    assert result["raw_size_bytes"] == len(raw_image)
    assert result["partition_table"] == "gpt"


def test_holes_are_not_written_and_read_as_zeroes(server, raw_image, disk):
    result = stream(served(server, raw_image), disk)
    assert result["skipped_bytes"] >= 3 * MIB
    assert result["written_bytes"] + result["skipped_bytes"] <= len(raw_image)
    assert_holds(disk, raw_image)


def test_a_disk_that_cannot_zero_by_itself_gets_zeroes_written(server, raw_image, disk):
    class Plain(BlockDevice):
        def punch(self, offset, size):
            return False

    result = stream(served(server, raw_image), disk, device_class=Plain)
    assert result["skipped_bytes"] == 0
    assert_holds(disk, raw_image)


def test_a_body_of_unknown_length_is_taken(server, raw_image, disk):
    request = served(server, raw_image)
    server.manners.chunked = True
    stream(request, disk)
    assert_holds(disk, raw_image)


def test_an_image_as_large_as_the_disk_fits(server, disk):
    raw = make_image(DISK_BYTES)
    stream(served(server, raw, raw_size_bytes=DISK_BYTES), disk)
    assert disk.read_bytes()[:-MIB] == raw[:-MIB]
    assert sgdisk_problems(disk) == ""


def test_a_file_of_the_machine_can_be_streamed(tmp_path, compressed, raw_image, disk):
    path = tmp_path / "an image.raw.zst"
    path.write_bytes(compressed["zst"])
    url = f"file://{tmp_path}/an%20image.raw.zst"
    stream(ImageRequest(url=url, sha256=sha256(compressed["zst"])), disk)
    assert_holds(disk, raw_image)


def test_a_dos_table_is_taken_as_it_is(server, disk):
    raw = bytearray(4 * MIB)
    raw[446:462] = bytes([0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0])
    raw[510:512] = b"\x55\xaa"
    result = stream(served(server, bytes(raw)), disk)
    assert result["partition_table"] == "dos"
    content = disk.read_bytes()
    assert content[: len(raw)] == raw
    assert not any(content[-MIB:])


def test_an_image_that_ends_within_a_sector_is_filled_up(server, raw_image, disk):
    odd = raw_image + b"odd"
    stream(served(server, odd), disk)
    assert disk.read_bytes()[len(raw_image) : len(raw_image) + 512] == b"odd".ljust(512, b"\0")


# -- bad input, known before the disk is touched --------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (404, "IMAGE_NOT_FOUND"),
        (410, "IMAGE_NOT_FOUND"),
        (401, "IMAGE_ACCESS_REFUSED"),
        (403, "IMAGE_ACCESS_REFUSED"),
        (503, "IMAGE_SERVER_ERROR"),
        (206, "IMAGE_SERVER_ERROR"),
    ],
)
def test_a_server_that_does_not_give_the_image_leaves_the_disk_alone(
    server, raw_image, disk, before, status, code
):
    request = served(server, raw_image)
    server.manners.status = status
    assert fault_of(request, disk).code == code
    assert_untouched(disk, before)


def test_a_file_that_is_missing_is_not_found(tmp_path, disk, before):
    request = ImageRequest(url=f"file://{tmp_path}/none.raw", sha256="0" * 64)
    assert fault_of(request, disk).code == "IMAGE_NOT_FOUND"
    assert_untouched(disk, before)


def test_a_server_that_is_not_there_is_unreachable(closed_port, disk, before):
    request = ImageRequest(url=f"http://127.0.0.1:{closed_port}/image.raw", sha256="0" * 64)
    assert fault_of(request, disk).code == "IMAGE_SERVER_UNREACHABLE"
    assert_untouched(disk, before)


def test_a_redirect_to_another_scheme_is_refused(server, raw_image, disk, before):
    request = served(server, raw_image)
    server.manners.location = "https://127.0.0.1/image.raw"
    assert fault_of(request, disk).code == "IMAGE_REDIRECT_REFUSED"
    assert_untouched(disk, before)


def test_a_redirect_without_end_is_refused(server, raw_image, disk, before):
    request = served(server, raw_image)
    server.manners.location = "/again"
    assert fault_of(request, disk).code == "IMAGE_REDIRECT_REFUSED"
    assert_untouched(disk, before)


def test_a_redirect_within_the_scheme_is_followed_and_headers_stay_with_their_host(
    server, raw_image, disk
):
    request = served(server, raw_image, headers={"Authorization": "Bearer canary"})
    port = server.base.rpartition(":")[2]
    server.manners.location = f"http://localhost:{port}/final.raw"
    stream(request, disk)
    first, second = server.manners.requests
    assert first["Authorization"] == "Bearer canary"
    assert "Authorization" not in second
    assert_holds(disk, raw_image)


def test_an_unknown_certificate_is_not_trusted(tls_server, raw_image, disk, before):
    assert fault_of(served(tls_server, raw_image), disk).code == "IMAGE_SERVER_UNTRUSTED"
    assert_untouched(disk, before)


def test_a_certificate_of_the_given_ca_is_trusted(tls_server, certificates, raw_image, disk):
    certificate = certificates["certificate"]
    stream(served(tls_server, raw_image, ca_path=str(certificate)), disk)
    stream(served(tls_server, raw_image, ca_pem=certificate.read_text()), disk)
    assert_holds(disk, raw_image)


def test_a_ca_file_that_is_missing_is_invalid_input(tls_server, raw_image, disk, before):
    request = served(tls_server, raw_image, ca_path="/nowhere/ca.pem")
    assert fault_of(request, disk).code == "INVALID_INPUT"
    assert_untouched(disk, before)


@pytest.mark.parametrize(
    "url", ["ftp://host/image", "file://host/image", "http:///image", "http://me:pw@host/image"]
)
def test_an_address_that_cannot_be_used_is_invalid_input(url, disk, before):
    assert fault_of(ImageRequest(url=url, sha256="0" * 64), disk).code == "INVALID_INPUT"
    assert_untouched(disk, before)


@pytest.mark.parametrize("digest", ["", "0" * 63, "g" * 64])
def test_a_digest_is_mandatory_and_complete(server, raw_image, disk, digest):
    request = served(server, raw_image, sha256=digest)
    assert fault_of(request, disk).code == "INVALID_INPUT"


def test_a_length_that_is_not_the_said_one_is_seen_before_writing(server, raw_image, disk, before):
    request = served(server, raw_image, size_bytes=len(raw_image) + 1)
    assert fault_of(request, disk).code == "IMAGE_SIZE_MISMATCH"
    assert_untouched(disk, before)


def test_an_encoding_that_nobody_asked_for_is_refused(server, raw_image, disk, before):
    request = served(server, raw_image)
    server.manners.encoding = "gzip"
    assert fault_of(request, disk).code == "IMAGE_SERVER_ERROR"
    assert_untouched(disk, before)


@pytest.mark.parametrize("known", ["raw_size_bytes", "length", "table"])
def test_an_image_that_is_too_large_leaves_the_disk_alone(server, disk, before, known):
    raw = make_image(DISK_BYTES + 4 * MIB)
    if known == "raw_size_bytes":
        request = served(server, COMPRESS["zst"](raw), "i.zst", raw_size_bytes=len(raw))
    elif known == "length":
        request = served(server, raw)
    else:
        request = served(server, COMPRESS["zst"](raw), "i.zst")
    fault = fault_of(request, disk)
    assert fault.code == "IMAGE_TOO_LARGE"
    assert_untouched(disk, before)


def test_the_sector_size_that_is_said_is_compared(server, raw_image, disk, before):
    request = served(server, raw_image, sector_bytes=4096)
    assert fault_of(request, disk).code == "IMAGE_SECTOR_SIZE_MISMATCH"
    assert_untouched(disk, before)


def test_the_sector_size_that_the_image_shows_is_compared(server, disk, before):
    request = served(server, make_image(sector_bytes=4096))
    assert fault_of(request, disk).code == "IMAGE_SECTOR_SIZE_MISMATCH"
    assert_untouched(disk, before)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "none in its first sector"),
        (b"<html>not found</html>", "none in its first sector"),
        (bytes(2 * MIB), "none in its first sector"),
        (b"QFI\xfb" + bytes(2 * MIB), "qcow2 data"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "zstd data"),
    ],
)
def test_what_is_no_disk_image_leaves_the_disk_alone(server, disk, before, content, found):
    fault = fault_of(served(server, content), disk)
    assert (fault.code, fault.found) == ("IMAGE_UNUSABLE", found)
    assert_untouched(disk, before)


def test_an_image_with_a_damaged_table_leaves_the_disk_alone(server, raw_image, disk, before):
    damaged = bytearray(raw_image)
    damaged[1024 + 40] ^= 1
    fault = fault_of(served(server, bytes(damaged)), disk)
    assert fault.code == "IMAGE_UNUSABLE"
    assert_untouched(disk, before)


# -- bad input that shows while the disk is written ----------------------------------------------


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("position", [0.3, 0.999])
def test_a_truncated_image_leaves_no_partition_table(
    server, compressed, disk, compression, position
):
    body = compressed[compression]
    request = served(server, body, f"i.{compression}")
    server.manners.stop_after = int(len(body) * position)
    fault = fault_of(request, disk)
    assert fault.code == "IMAGE_TRUNCATED"
    assert fault.details["tables_destroyed"] is True
    assert_unbootable(disk)


def test_a_truncated_chunked_image_leaves_no_partition_table(server, raw_image, disk):
    request = served(server, raw_image)
    server.manners.chunked = True
    server.manners.stop_after = len(raw_image) - 1000
    assert fault_of(request, disk).code == "IMAGE_TRUNCATED"
    assert_unbootable(disk)


@pytest.mark.parametrize("compression", COMPRESS)
def test_an_image_that_was_cut_before_it_was_published_leaves_no_partition_table(
    server, compressed, raw_image, disk, compression
):
    body = compressed[compression][: len(compressed[compression]) * 2 // 3]
    request = served(server, body, f"i.{compression}", raw_size_bytes=len(raw_image))
    code = "IMAGE_SIZE_MISMATCH" if compression == "none" else "IMAGE_CORRUPT"
    assert fault_of(request, disk).code == code
    assert_unbootable(disk)


@pytest.mark.parametrize("compression", COMPRESS)
def test_one_flipped_bit_leaves_no_partition_table(server, compressed, disk, compression):
    flipped = bytearray(compressed[compression])
    flipped[len(flipped) * 3 // 4] ^= 0x10
    request = served(
        server, bytes(flipped), f"i.{compression}", sha256=sha256(compressed[compression])
    )
    fault = fault_of(request, disk)
    assert fault.code in ("IMAGE_DIGEST_MISMATCH", "IMAGE_CORRUPT")
    assert_unbootable(disk)


def test_a_wrong_digest_leaves_no_partition_table(server, raw_image, disk):
    fault = fault_of(served(server, raw_image, sha256="ab" * 32), disk)
    assert fault.code == "IMAGE_DIGEST_MISMATCH"
    assert sha256(raw_image) in fault.found
    assert_unbootable(disk)


def test_an_image_longer_than_said_leaves_no_partition_table(server, raw_image, disk):
    request = served(server, raw_image + bytes(1000), size_bytes=len(raw_image))
    server.manners.chunked = True
    assert fault_of(request, disk).code == "IMAGE_SIZE_MISMATCH"
    assert_unbootable(disk)


def test_another_raw_size_than_said_leaves_no_partition_table(server, compressed, raw_image, disk):
    request = served(server, compressed["zst"], "i.zst", raw_size_bytes=len(raw_image) + 512)
    assert fault_of(request, disk).code == "IMAGE_SIZE_MISMATCH"
    assert_unbootable(disk)


@pytest.mark.parametrize("compression", ["gz", "xz", "zst"])
def test_a_decompression_bomb_ends_at_the_end_of_the_disk(server, disk, compression):
    raw = bytearray(DISK_BYTES)
    write_table(raw, new_gpt(DISK_BYTES, 512))
    bomb = COMPRESS[compression](bytes(raw) + bytes(100 * MIB))
    assert fault_of(served(server, bomb, f"i.{compression}"), disk).code == "IMAGE_TOO_LARGE"
    assert_unbootable(disk)


def test_a_server_that_stalls_leaves_no_partition_table(server, raw_image, disk):
    request = served(server, raw_image)
    server.manners.stall_after = 6 * MIB
    began = time.monotonic()
    assert fault_of(request, disk).code == "IMAGE_SERVER_STALLED"
    assert time.monotonic() - began < 10
    assert_unbootable(disk)


def test_a_deadline_leaves_no_partition_table(server, raw_image, disk):
    assert fault_of(served(server, raw_image), disk, seconds=0).code == "DEADLINE_EXCEEDED"
    assert_unbootable(disk)


def test_an_io_error_leaves_no_partition_table_and_is_named(server, raw_image, disk):
    class Failing(BlockDevice):
        def write_aligned(self, offset, view):
            if offset <= 9 * MIB < offset + len(view):
                raise self.fault(OSError(5, "Input/output error"), "to write")
            super().write_aligned(offset, view)

    fault = fault_of(served(server, raw_image), disk, device_class=Failing)
    assert fault.code == "DISK_IO_ERROR"
    assert_unbootable(disk)


def test_a_disk_that_keeps_nothing_is_found_out(server, raw_image, disk):
    class Forgetful(BlockDevice):
        def write_aligned(self, offset, view):
            pass

    fault = fault_of(served(server, raw_image), disk, device_class=Forgetful)
    assert fault.code == "DISK_NOT_ZEROED"
    assert fault.details["tables_destroyed"] is False


def test_the_query_of_an_address_is_a_secret(server, disk):
    request = served(server, b"", "image.raw?signature=canary")
    server.manners.status = 404
    fault = fault_of(request, disk)
    assert "canary" not in str(fault.to_result())


# -- power lost at any moment ---------------------------------------------------------------------


def bootable(content):
    """What firmware would boot: a DOS or protective MBR, with either copy of a GPT behind it."""
    return gpt.has_mbr(bytes(content[:512]))


@pytest.mark.parametrize("size_bytes", [12 * MIB, DISK_BYTES])
def test_power_lost_after_any_write_leaves_a_disk_that_does_not_boot(server, disk, size_bytes):
    writes = []

    class Recording(BlockDevice):
        def write_aligned(self, offset, view):
            writes.append((offset, bytes(view)))
            super().write_aligned(offset, view)

        def punch(self, offset, size):
            writes.append((offset, bytes(size)))
            return super().punch(offset, size)

    content = bytearray(disk.read_bytes())
    stream(served(server, make_image(size_bytes)), disk, device_class=Recording)
    assert bootable(content)
    for number, (offset, written) in enumerate(writes, start=1):
        content[offset : offset + len(written)] = written
        assert bootable(content) == (number == len(writes))
    assert content == disk.read_bytes()


def test_a_process_that_is_killed_leaves_a_disk_that_does_not_boot(server, raw_image, disk):
    request = served(server, raw_image)
    server.manners.stall_after = 8 * MIB
    program = (
        "import sys; sys.path[:0] = sys.argv[4].split(':')\n"
        "from ansible_collections.barewright.metal.plugins.module_utils.image import stream_image\n"
        "from ansible_collections.barewright.metal.plugins.module_utils.image_source import *\n"
        "from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline\n"
        "from ansible_collections.barewright.metal.plugins.module_utils.block_device import *\n"
        "source = ImageSource(ImageRequest(url=sys.argv[1], sha256=sys.argv[2]))\n"
        "stream_image(BlockDevice(sys.argv[3], writable=True), source, Deadline(60))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, request.url, request.sha256, str(disk), ":".join(sys.path)]
    )
    first = slice(MIB, MIB + 65536)  # behind what is held back, so written as soon as it comes
    end = time.monotonic() + 20
    while disk.read_bytes()[first] != raw_image[first] and time.monotonic() < end:
        time.sleep(0.05)
    assert disk.read_bytes()[first] == raw_image[first]
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert_unbootable(disk)


# -- streams in any pieces ------------------------------------------------------------------------


def pieces(content, sizes):
    start = 0
    for size in sizes:
        yield content[start : start + size]
        start += size
    yield content[start:]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["gz", "xz", "zst"]),
    st.lists(st.binary(max_size=300), min_size=1, max_size=4),
    st.lists(st.integers(1, 60), max_size=12),
)
def test_concatenated_streams_in_any_pieces_are_decoded(compression, contents, sizes):
    packed = b"".join(COMPRESS[compression](content) for content in contents)
    chunks = (piece for piece in pieces(packed, sizes) if piece)
    assert b"".join(decode(chunks, compression)) == b"".join(contents)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["gz", "xz", "zst"]), st.integers(0, 2**32), st.data())
def test_a_cut_stream_is_corrupt(compression, seed, data):
    packed = COMPRESS[compression](f"{seed}".encode() * 50)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(Fault, match="IMAGE_CORRUPT"):
        list(decode(iter([packed[:cut]] if cut else []), compression))


BLOCKS = st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=8)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(BLOCKS, st.lists(st.integers(1, 5 * MIB), max_size=6), st.booleans())
def test_any_pattern_of_holes_in_any_pieces_is_on_the_disk(disk, pattern, sizes, can_punch):
    raw = bytearray(make_image(8 * MIB))
    position = MIB
    for is_hole, blocks in pattern:
        end = min(position + blocks * 65536, 7 * MIB)
        raw[position:end] = bytes(end - position) if is_hole else b"\xa5" * (end - position)
        position = end

    class Device(BlockDevice):
        def punch(self, offset, size):
            return can_punch and super().punch(offset, size)

    class Source(ImageSource):
        def chunks(self):
            return (piece for piece in pieces(bytes(raw), sizes) if piece)

    path = disk.with_name("raw")
    path.write_bytes(raw)
    request = ImageRequest(url=f"file://{path}", sha256=sha256(bytes(raw)))
    with Source(request) as source, Device(str(disk), writable=True) as device:
        image.stream_image(device, source, Deadline(60))
    assert_holds(disk, bytes(raw))


def test_memory_stays_bounded(tmp_path):
    raw = tmp_path / "raw"
    with open(raw, "wb") as file:
        file.write(make_image(4 * MIB)[: 3 * MIB])
        for _part in range(40):
            file.write(os.urandom(MIB) * 8)
    disk = tmp_path / "disk"
    with open(disk, "wb") as file:
        file.truncate(512 * MIB)
    subprocess.run(["zstd", "-q", "-1", str(raw)], check=True)
    packed = (tmp_path / "raw.zst").read_bytes()
    child = os.fork()
    if child == 0:
        try:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            request = ImageRequest(url=f"file://{tmp_path}/raw.zst", sha256=sha256(packed))
            del packed
            stream(request, disk)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            os._exit(0 if grown < 64 << 10 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


# -- real block devices ---------------------------------------------------------------------------


@pytest.mark.parametrize("sector_bytes", gpt.SECTOR_SIZES)
def test_a_block_device_of_either_sector_size_is_written(server, tmp_path, disk, sector_bytes):
    raw = make_image(sector_bytes=sector_bytes)
    with loop_device(disk, "--sector-size", str(sector_bytes), "--partscan") as device:
        request = served(server, raw, sector_bytes=sector_bytes)
        result = stream(request, device)
        assert_holds(device, raw, sector_bytes)
        assert sgdisk_problems(device) == ""
        assert result["partitions_reread"] is True
        other = replace(request, sector_bytes=4608 - sector_bytes)
        assert fault_of(other, device).code == "IMAGE_SECTOR_SIZE_MISMATCH"


def test_a_truncated_image_leaves_no_table_on_a_block_device(server, raw_image, disk):
    with loop_device(disk, "--sector-size", "512") as device:
        request = served(server, raw_image)
        server.manners.stop_after = 9 * MIB
        assert fault_of(request, device).code == "IMAGE_TRUNCATED"
        assert_unbootable(device)
        if shutil.which("blkid"):
            assert subprocess.run(["blkid", "-p", device], check=False).returncode == 2


def test_a_disk_that_is_held_is_busy(server, raw_image, disk, before):
    with loop_device(disk) as device:
        holder = os.open(device, os.O_RDONLY | os.O_EXCL)
        try:
            assert fault_of(served(server, raw_image), device).code == "DISK_BUSY"
        finally:
            os.close(holder)
    assert_untouched(disk, before)


def test_a_disk_that_is_read_only_is_named(server, raw_image, disk, before):
    with loop_device(disk, "--read-only") as device:
        assert fault_of(served(server, raw_image), device).code == "DISK_READ_ONLY"
    assert_untouched(disk, before)


def test_a_disk_that_is_not_there_is_gone(server, raw_image, tmp_path):
    assert fault_of(served(server, raw_image), tmp_path / "none").code == "DISK_GONE"
