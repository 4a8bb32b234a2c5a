# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Operating systems of a few bytes, which a BIOS starts from the first sector of a disk.

Each writes its sign, which no firmware writes, to the serial port, then does one thing.
"""

from __future__ import annotations

from pathlib import Path

# Where SeaBIOS puts the power management registers of the q35 chipset (ICH9).
_PM1_STATUS = "0006"  # port 0x600, little endian as in the instruction
_PM1_ENABLE = "0206"  # port 0x602
_PM1_CONTROL = "0406"  # port 0x604


def _say(sign: str) -> str:
    return (
        "baf803"  #    mov dx, 0x3f8
        f"b0{ord(sign):02x}"  # mov al, sign
        "ee"  #        out dx, al
    )


_SOFT_OFF = (
    f"ba{_PM1_CONTROL}"  # mov dx, PM1_CONTROL
    "b80020"  #    mov ax, 0x2000     SLP_EN, with the sleep type of S5
    "ef"  #        out dx, ax
)
_FOREVER = "f4ebfd"  # a: hlt; jmp a

STAYS = _say("{") + _FOREVER
TURNS_ITSELF_OFF = _say("}") + _SOFT_OFF + _FOREVER
RESETS = (
    _say("|")
    # Two seconds of BIOS ticks, so that somebody can look.
    + "31c08ed8fb"  #  xor ax, ax; mov ds, ax; sti
    + "8b1e6c04"  #    mov bx, [0x46c]
    + "f4"  #      a:  hlt
    + "a16c04"  #      mov ax, [0x46c]
    + "29d8"  #        sub ax, bx
    + "3d2400"  #      cmp ax, 36
    + "72f5"  #        jb a
    + "baf90c"  #      mov dx, 0xcf9
    + "b006ee"  #      mov al, 6; out dx, al      a full reset
    + _FOREVER
)
OBEYS_THE_BUTTON = (
    _say("~")
    + f"ba{_PM1_ENABLE}"  # mov dx, PM1_ENABLE
    + "b80001ef"  #    mov ax, 0x100; out dx, ax  PWRBTN_EN
    + f"ba{_PM1_STATUS}"  # mov dx, PM1_STATUS
    + "ed"  #      a:  in ax, dx
    + "f6c401"  #      test ah, 1         PWRBTN_STS
    + "74fa"  #        jz a
    + _SOFT_OFF
    + _FOREVER
)


def install(code: str, disk: Path) -> None:
    """Make a disk boot it."""
    with disk.open("r+b") as file:
        file.write(bytes.fromhex(code).ljust(510, b"\0") + b"\x55\xaa")


def remove(disk: Path) -> None:
    """Make a disk boot nothing."""
    with disk.open("r+b") as file:
        file.write(bytes(512))
