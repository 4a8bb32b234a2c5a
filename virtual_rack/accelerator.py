# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Whether KVM works on this computer, found out by running a guest.

A `/dev/kvm` that opens proves nothing: on a computer that is itself a virtual machine it may be
there and hang, or interpret every instruction. So a guest of about two seconds runs under a limit
that kills it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from virtual_rack.process import boot_id
from virtual_rack.programs import QEMU, find

KVM_DEVICE = Path("/dev/kvm")
PROBE_LIMIT_SECONDS = 6.0
# QEMU's isa-debug-exit makes the value v that is written to it the exit code 2v+1.
_PROBE_VALUE = 0x2A
_PROBE_EXIT_CODE = 2 * _PROBE_VALUE + 1

# A boot sector, started by SeaBIOS: floating point, then arithmetic that an interpreter takes
# minutes for, then timer interrupts for 1.5 seconds, then the exit that a working guest reaches.
_PROBE_CODE = bytes.fromhex(
    "31c0"  #         xor ax, ax
    "8ed8"  #         mov ds, ax
    "9bdbe3"  #       finit
    "66b900c2eb0b"  # mov ecx, 200000000
    "6649"  #   a:    dec ecx
    "75fc"  #         jnz a
    "fb"  #           sti
    "8b1e6c04"  #     mov bx, [0x46c]     the BIOS counts 18.2 ticks a second there
    "f4"  #     b:    hlt
    "a16c04"  #       mov ax, [0x46c]
    "29d8"  #         sub ax, bx
    "3d1b00"  #       cmp ax, 27
    "72f5"  #         jb b
    f"b0{_PROBE_VALUE:02x}"  # mov al, value
    "e6f4"  #         out 0xf4, al
    "ebfe"  #   c:    jmp c
)


@dataclass(frozen=True)
class Accelerator:
    """What runs the guests, and why."""

    name: Literal["kvm", "tcg"]
    reason: str

    def arguments(self) -> list[str]:
        """The QEMU options that choose it, with the fastest CPU model that works under it."""
        if self.name == "kvm":
            return ["-accel", "kvm", "-cpu", "host"]
        # `max` instead of qemu64 costs a machine 5 of 25 seconds of boot time.
        return ["-accel", "tcg,thread=multi,tb-size=128", "-cpu", "qemu64"]


def probe(limit_seconds: float = PROBE_LIMIT_SECONDS) -> Accelerator:
    """Run a guest under KVM and say what came of it; never takes much longer than the limit."""
    if not KVM_DEVICE.exists():
        return Accelerator("tcg", f"{KVM_DEVICE} does not exist")
    if not os.access(KVM_DEVICE, os.R_OK | os.W_OK):
        return Accelerator("tcg", f"{KVM_DEVICE} may not be opened by this user")
    with tempfile.TemporaryDirectory(prefix="virtual-rack-") as directory:
        image = Path(directory) / "probe.img"
        # SeaBIOS refuses a disk that is smaller than one cylinder.
        image.write_bytes((_PROBE_CODE.ljust(510, b"\0") + b"\x55\xaa").ljust(1024 * 1024, b"\0"))
        return _run_probe(image, limit_seconds)


def _run_probe(image: Path, limit_seconds: float) -> Accelerator:
    argv = [
        find(QEMU),
        "-accel",
        "kvm",
        "-machine",
        "q35",
        "-cpu",
        "host",
        "-m",
        "64",
        "-nodefaults",
    ]
    argv += ["-no-user-config", "-display", "none", "-vga", "none"]
    argv += ["-device", "isa-debug-exit,iobase=0xf4,iosize=1"]
    argv += ["-drive", f"if=none,id=probe,format=raw,readonly=on,file={image}"]
    argv += ["-device", "virtio-blk-pci,drive=probe,bootindex=0"]
    guest = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        code = guest.wait(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        guest.kill()
        # One that hangs in the kernel cannot be ended, and nothing is gained by waiting for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            guest.wait(timeout=5)
        return Accelerator("tcg", f"a guest under KVM did not end within {limit_seconds:g} s")
    if code != _PROBE_EXIT_CODE:
        return Accelerator("tcg", f"a guest under KVM failed (QEMU's exit code {code})")
    return Accelerator("kvm", "a guest ran under KVM")


def choose(cache: Path, *, shared_cache: Path | None = None) -> Accelerator:
    """The accelerator of this computer: as one of the files knows it of this boot, or probed.

    `cache`, the file of one rack, holds it afterwards; so does `shared_cache`, which other racks of
    the same user look into, if it can be written.
    """
    # Another user may open the device, or not.
    key = {"boot_id": boot_id(), "uid": os.getuid()}
    caches = [cache] if shared_cache is None else [cache, shared_cache]
    accelerator = next(filter(None, (_known(file, key) for file in caches)), None) or probe()
    text = json.dumps({"key": key, "name": accelerator.name, "reason": accelerator.reason}) + "\n"
    cache.write_text(text, encoding="utf-8")
    if shared_cache is not None:
        with contextlib.suppress(OSError):
            shared_cache.parent.mkdir(parents=True, exist_ok=True)
            shared_cache.write_text(text, encoding="utf-8")
    return accelerator


def shared_cache() -> Path:
    """Where all racks of this user find what the probe found (XDG base directory specification)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base, "virtual_rack", "accelerator.json")


def read(cache: Path) -> Accelerator:
    """The accelerator that `choose` has written for this rack."""
    cached = json.loads(cache.read_text(encoding="utf-8"))
    return Accelerator(cached["name"], cached["reason"])


def _known(cache: Path, key: dict[str, object]) -> Accelerator | None:
    try:
        cached = json.loads(cache.read_text(encoding="utf-8"))
        return Accelerator(cached["name"], cached["reason"]) if cached["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # There is none, or it says nothing: the probe says it anew.
