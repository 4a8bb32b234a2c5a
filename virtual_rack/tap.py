# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Network cables: tap devices plugged into the bridge of the rack."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess

from virtual_rack.programs import TUN_DEVICE, find

# linux/if_tun.h
_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_IFF_VNET_HDR = 0x4000


class NetworkError(Exception):
    """The network of the rack could not be built; the message says what is missing."""


def check_tun_device() -> None:
    """See whether tap devices can be made by this user.

    Raises:
        NetworkError: with what to do about it.
    """
    try:
        os.close(os.open(TUN_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise NetworkError(
            f"{TUN_DEVICE} does not exist; load the kernel module: sudo modprobe tun"
        ) from None
    except PermissionError:
        raise NetworkError(
            f"{TUN_DEVICE} may not be opened by this user; Debian's udev gives it mode 0666, "
            f"here it has another one: sudo chmod 0666 {TUN_DEVICE}"
        ) from None
    except OSError as error:
        raise NetworkError(f"{TUN_DEVICE}: {error.strerror}") from error


def open_tap(name: str, bridge: str) -> int:
    """A new tap device, up and on the bridge; it lives as long as a copy of the descriptor is open.

    Raises:
        NetworkError: it cannot be made.
    """
    descriptor = os.open(TUN_DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        run_ip([f"link set dev {name} master {bridge} up"])
    except OSError as error:
        os.close(descriptor)
        reason = "in use" if error.errno == errno.EBUSY else error.strerror
        raise NetworkError(f"tap device {name}: {reason}") from error
    except NetworkError:
        os.close(descriptor)
        raise
    return descriptor


def run_ip(commands: list[str]) -> None:
    """Run commands of `ip` in one go.

    Raises:
        NetworkError: with the first one that failed.
    """
    result = subprocess.run(
        [find("ip"), "-batch", "-"],
        input="\n".join(commands) + "\n",
        text=True,
        capture_output=True,
        check=False,
    )
    if result.returncode:
        raise NetworkError(f"ip: {result.stderr.strip()}")
