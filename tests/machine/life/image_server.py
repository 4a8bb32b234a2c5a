# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""An image server with bad habits; runs inside the rack's network.

``image_server.py ADDRESS PORT FILE``: ``/whole`` serves the file, ``/short`` promises it and closes
half way, ``/flipped`` has one bit wrong, ``/slow`` sends a few KiB a second and prints a line when
a machine has begun to read.
"""

from __future__ import annotations

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    """One request; ``body`` is what a faithful server would send."""

    body = b""

    def do_GET(self) -> None:
        habit = self.path.strip("/")
        if habit not in ("whole", "short", "flipped", "slow"):
            self.send_error(404)
            return
        body = bytearray(self.body)
        if habit == "flipped":
            body[len(body) // 2] ^= 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if habit == "short":
            self.wfile.write(body[: len(body) // 2])
        elif habit == "slow":
            for start in range(0, len(body), 65536):
                self.wfile.write(body[start : start + 65536])
                if start == 1 << 22:
                    print("reading", flush=True)
                time.sleep(0.05)
        else:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the output tells the test when to cut the power."""


def main() -> None:
    address, port, file = sys.argv[1:]
    Handler.body = Path(file).read_bytes()
    server = ThreadingHTTPServer((address, int(port)), Handler)
    print("listening", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
