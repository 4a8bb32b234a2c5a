# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where an image comes from: opened, counted, hashed, and decompressed as it arrives.

No library is trusted to notice a short body: every byte is counted against Content-Length and
``size_bytes``, and hashed. Modules that cost time to import are imported where they are used;
a ramdisk under emulation feels each of them.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, urljoin, urlsplit

from .fault import Fault

if TYPE_CHECKING:
    import http.client

CHUNK_BYTES = 1 << 20
COMPRESSIONS = ("auto", "none", "gz", "xz", "zst")

_MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_PREFETCH_CHUNKS = 8

# The largest preset of xz, -9, needs 65 MiB; more is an image that was not made for streaming.
_XZ_MEMORY_BYTES = 96 << 20
_ZSTD_COMMAND = ("zstd", "--decompress", "--stdout", "--quiet", "--memory=128MB")


@dataclass(frozen=True)
class ImageRequest:
    """What to stream. ``sha256``, ``size_bytes`` describe the bytes served, compressed or not."""

    url: str
    sha256: str
    size_bytes: int | None = None
    raw_size_bytes: int | None = None
    compression: str = "auto"
    sector_bytes: int = 512
    ca_path: str | None = None
    ca_pem: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    stall_seconds: float = 30.0

    def check(self) -> None:
        """Raise INVALID_INPUT for what can be seen to be wrong without looking at the world."""
        if len(self.sha256) != 64 or not set(self.sha256.lower()) <= set("0123456789abcdef"):
            raise _invalid("sha256 of 64 hexadecimal digits", repr(self.sha256))
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https", "file"):
            raise _invalid("a URL of http, https or file", repr(parts.scheme))
        if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
            raise _invalid("a file URL without a host", repr(parts.netloc))
        if parts.scheme != "file" and not parts.hostname:
            raise _invalid("a URL with a host", "none")
        if parts.username is not None or parts.password is not None:
            raise _invalid("credentials in headers", "some in the URL")

    @property
    def public_url(self) -> str:
        """The URL without its query, which may be a signature that grants access."""
        return urlsplit(self.url)._replace(query="", fragment="").geturl()

    @property
    def actual_compression(self) -> str:
        """``compression``, with auto settled by the suffix of the URL's path."""
        if self.compression != "auto":
            return self.compression
        suffix = urlsplit(self.url).path.rpartition(".")[2].lower()
        return suffix if suffix in ("gz", "xz", "zst") else "none"


def _invalid(wanted: str, found: str) -> Fault:
    return Fault("INVALID_INPUT", wanted=wanted, found=found)


class ImageSource:
    """An open image; iterate :meth:`chunks` once. A context manager.

    Faults of opening: IMAGE_NOT_FOUND, IMAGE_ACCESS_REFUSED, IMAGE_SERVER_ERROR,
    IMAGE_SERVER_UNREACHABLE, IMAGE_SERVER_STALLED, IMAGE_SERVER_UNTRUSTED,
    IMAGE_REDIRECT_REFUSED, IMAGE_SIZE_MISMATCH.
    """

    def __init__(self, request: ImageRequest) -> None:
        request.check()
        self.request = request
        self.received_bytes = 0
        self.length: int | None = None
        self._connection: http.client.HTTPConnection | None = None
        self._body: IO[bytes] | http.client.HTTPResponse
        if urlsplit(request.url).scheme == "file":
            self._open_file()
        else:
            self._open_http()
        wanted = request.size_bytes
        if wanted is not None and self.length is not None and wanted != self.length:
            self.close()
            raise self._fault("IMAGE_SIZE_MISMATCH", f"{wanted} bytes", f"{self.length} offered")
        if self.length is None:
            self.length = wanted

    def __enter__(self) -> ImageSource:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection or file."""
        if self._connection is not None:
            self._connection.close()
        body = getattr(self, "_body", None)
        if body is not None:
            body.close()

    def chunks(self) -> Iterator[bytes]:
        """The bytes as served; ends only if count and digest are right.

        Faults: IMAGE_TRUNCATED, IMAGE_SIZE_MISMATCH (longer), IMAGE_DIGEST_MISMATCH,
        IMAGE_SERVER_STALLED.
        """
        digest = hashlib.sha256()
        limit = self.length
        while True:
            chunk = self._read()
            if not chunk:
                break
            self.received_bytes += len(chunk)
            if limit is not None and self.received_bytes > limit:
                raise self._fault("IMAGE_SIZE_MISMATCH", f"{limit} bytes", "more")
            digest.update(chunk)
            yield chunk
        if limit is not None and self.received_bytes < limit:
            raise self._truncated("the server closed the connection")
        if digest.hexdigest() != self.request.sha256.lower():
            raise self._fault(
                "IMAGE_DIGEST_MISMATCH",
                f"SHA-256 {self.request.sha256.lower()}",
                f"{digest.hexdigest()} over {self.received_bytes} bytes",
            )

    def _read(self) -> bytes:
        import http.client

        try:
            return self._body.read(CHUNK_BYTES)
        except TimeoutError as error:
            raise self._stalled() from error
        except http.client.IncompleteRead as error:
            raise self._truncated("the server closed the connection") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._truncated(str(error) or type(error).__name__) from error

    def _truncated(self, reason: str) -> Fault:
        wanted = f"{self.length} bytes" if self.length is not None else "the whole body"
        return self._fault(
            "IMAGE_TRUNCATED", wanted, f"{self.received_bytes} bytes, then: {reason}"
        )

    def _stalled(self) -> Fault:
        return self._fault(
            "IMAGE_SERVER_STALLED",
            f"some bytes every {self.request.stall_seconds:g} s",
            f"silence after {self.received_bytes} bytes",
        )

    def _fault(self, code: str, wanted: str, found: str) -> Fault:
        return Fault(
            code,
            wanted=f"{wanted} from {self.request.public_url}",
            found=found,
            details={"url": self.request.public_url, "received_bytes": self.received_bytes},
        )

    def _open_file(self) -> None:
        import os
        from urllib.parse import unquote

        path = unquote(urlsplit(self.request.url).path)
        try:
            self._body = open(path, "rb", buffering=0)  # noqa: SIM115  # closed by close()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._fault("IMAGE_NOT_FOUND", "an image", "no such file") from error
        except OSError as error:
            found = error.strerror or str(error)
            raise self._fault("IMAGE_ACCESS_REFUSED", "an image", found) from error
        self.length = os.fstat(self._body.fileno()).st_size

    def _open_http(self) -> None:
        url = self.request.url
        headers = {"User-Agent": "barewright", "Accept-Encoding": "identity"}
        headers.update(self.request.headers)
        for _hop in range(_MAX_REDIRECTS + 1):
            response = self._get(urlsplit(url), headers)
            if response.status not in _REDIRECTS:
                self._accept(response)
                return
            target = urljoin(url, response.headers.get("Location", ""))
            self.close()
            old, new = urlsplit(url), urlsplit(target)
            if new.scheme != old.scheme or not new.hostname:
                raise self._fault(
                    "IMAGE_REDIRECT_REFUSED",
                    f"redirects to {old.scheme} only",
                    f"one to {new.scheme}",
                )
            if new.netloc != old.netloc:
                # What authorizes us at one server is not meant for another.
                headers = {k: v for k, v in headers.items() if k not in self.request.headers}
            url = target
        raise self._fault(
            "IMAGE_REDIRECT_REFUSED", f"at most {_MAX_REDIRECTS} redirects", "more of them"
        )

    def _get(self, parts: SplitResult, headers: dict[str, str]) -> http.client.HTTPResponse:
        import http.client
        import ssl

        connected = False
        try:
            self._connection = self._prepare(parts)
            self._connection.connect()
            connected = True
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            self._connection.request("GET", target, headers=headers)
            return self._connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            found = error.verify_message or str(error)
            raise self._fault("IMAGE_SERVER_UNTRUSTED", "a trusted certificate", found) from error
        except TimeoutError as error:
            if connected:
                raise self._stalled() from error
            raise self._fault("IMAGE_SERVER_UNREACHABLE", "a connection", "silence") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            code = "IMAGE_SERVER_ERROR" if connected else "IMAGE_SERVER_UNREACHABLE"
            found = str(error) or type(error).__name__
            raise self._fault(code, "an answer", found) from error

    def _prepare(self, parts: SplitResult) -> http.client.HTTPConnection:
        import http.client
        import ssl

        host, port, timeout = str(parts.hostname), parts.port, self.request.stall_seconds
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout)
        try:
            context = ssl.create_default_context(
                cafile=self.request.ca_path, cadata=self.request.ca_pem
            )
        except (OSError, ValueError) as error:
            raise _invalid("CA certificates in ca_path or ca_pem", str(error)) from error
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)

    def _accept(self, response: http.client.HTTPResponse) -> None:
        self._body = response
        if response.status != 200:
            code = {
                401: "IMAGE_ACCESS_REFUSED",
                403: "IMAGE_ACCESS_REFUSED",
                404: "IMAGE_NOT_FOUND",
                410: "IMAGE_NOT_FOUND",
            }.get(response.status, "IMAGE_SERVER_ERROR")
            self.close()
            raise self._fault(code, "status 200", f"{response.status} {response.reason}")
        encoding = response.headers.get("Content-Encoding", "identity").lower()
        if encoding != "identity":
            self.close()
            raise self._fault("IMAGE_SERVER_ERROR", "the bytes as stored", f"encoding {encoding}")
        self.length = response.length


class Prefetch:
    """Runs an iterator in a thread, a bounded number of chunks ahead. A context manager.

    An exception of the iterator is raised where its chunk would have come.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(_PREFETCH_CHUNKS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Iterator[bytes]:
        self._thread.start()
        return self._drain()

    def __exit__(self, *_exception: object) -> None:
        self._stopped.set()

    def _drain(self) -> Iterator[bytes]:
        while True:
            item = self._queue.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def _run(self) -> None:
        try:
            for chunk in self._chunks:
                if not self._put(chunk):
                    return
            self._put(None)
        except BaseException as error:
            self._put(error)
        finally:
            close = getattr(self._chunks, "close", None)
            if close is not None:
                close()

    def _put(self, item: bytes | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False


def decode(chunks: Iterator[bytes], compression: str) -> Iterator[bytes]:
    """The raw image. All of ``chunks`` is consumed, so that its own verdict is always heard.

    Faults: IMAGE_CORRUPT for what cannot be decompressed or ends too early, TOOL_FAILED.
    """
    if compression == "gz":
        return _gunzip(chunks)
    if compression == "xz":
        return _unxz(chunks)
    if compression == "zst":
        return _unzstd(chunks)
    return chunks


def _corrupt(kind: str, found: str) -> Fault:
    return Fault("IMAGE_CORRUPT", wanted=f"a complete {kind} stream", found=found)


def _gunzip(chunks: Iterator[bytes]) -> Iterator[bytes]:
    import zlib

    decoder: Any = None  # between members
    members = 0
    for chunk in chunks:
        data = chunk
        while True:
            if decoder is None:
                data = data.lstrip(b"\0") if members else data  # padding of tapes and block tools
                if not data:
                    break
                decoder = zlib.decompressobj(wbits=31)
                members += 1
            try:
                raw = decoder.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                raise _corrupt("gzip", str(error)) from error
            if raw:
                yield raw
            if decoder.eof:
                data, decoder = decoder.unused_data, None
                continue
            data = decoder.unconsumed_tail
            # A full answer may have more behind it, even with all input taken.
            if not data and len(raw) < CHUNK_BYTES:
                break
    if decoder is not None or not members:
        raise _corrupt("gzip", "it ends in the middle" if members else "nothing")


def _unxz(chunks: Iterator[bytes]) -> Iterator[bytes]:
    import lzma

    decoder: lzma.LZMADecompressor | None = None
    streams = 0
    for chunk in chunks:
        data = chunk
        while True:
            if decoder is None:
                data = data.lstrip(b"\0") if streams else data  # stream padding
                if not data:
                    break
                decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
                streams += 1
            try:
                raw = decoder.decompress(data, CHUNK_BYTES)
            except lzma.LZMAError as error:
                raise _corrupt("xz", str(error)) from error
            if raw:
                yield raw
            data = b""
            # pylint: disable=using-constant-test  # it takes a C type's attributes for constants
            if decoder.eof:
                data, decoder = decoder.unused_data, None
            elif decoder.needs_input:
                break
    if decoder is not None or not streams:
        raise _corrupt("xz", "it ends in the middle" if streams else "nothing")


def _unzstd(chunks: Iterator[bytes]) -> Iterator[bytes]:
    import subprocess

    try:
        process = subprocess.Popen(
            _ZSTD_COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError as error:
        raise Fault(
            "TOOL_FAILED", wanted="the program zstd on the machine", found="none"
        ) from error
    stdin, stdout, stderr = (
        cast(IO[bytes], pipe) for pipe in (process.stdin, process.stdout, process.stderr)
    )
    source_errors: list[BaseException] = []

    def feed() -> None:
        try:
            with stdin:
                for chunk in chunks:
                    stdin.write(chunk)
        except BrokenPipeError:
            pass  # zstd gave up; its exit status says why
        except BaseException as error:
            source_errors.append(error)

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    try:
        while raw := stdout.read(CHUNK_BYTES):
            yield raw
        feeder.join()
        if source_errors:
            raise source_errors[0]
        complaint = stderr.read().decode("utf-8", "replace").strip()
        if process.wait() != 0:
            raise _corrupt("zstd", complaint or f"exit status {process.returncode}")
    finally:
        process.kill()
        process.wait()
        stdout.close()
        stderr.close()
