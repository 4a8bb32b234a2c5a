# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The IPMI commands of a BMC, one small function a command, entered in `COMMANDS`.

Numbers in parentheses are sections and tables of the IPMI 2.0 specification, revision 1.1.
"""

from __future__ import annotations

import ipaddress
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from virtual_rack.bmc.fru import controller_locator, fru_data
from virtual_rack.bmc.state import Bmc, PowerAction
from virtual_rack.machine import BootDevice

if TYPE_CHECKING:
    from virtual_rack.bmc.ipmi import IpmiSession

# Privilege levels (22.18); NOBODY marks what is answered before a session exists.
NOBODY, CALLBACK, USER, OPERATOR, ADMINISTRATOR = range(5)

# Completion codes (table 5-2)
OK = 0x00
NODE_BUSY = 0xC0
INVALID_COMMAND = 0xC1
WRONG_LENGTH = 0xC7
OUT_OF_RANGE = 0xC9
CANNOT_RETURN_LENGTH = 0xCA
NOT_PRESENT = 0xCB
INVALID_FIELD = 0xCC
INSUFFICIENT_PRIVILEGE = 0xD4
NOT_IN_THIS_STATE = 0xD5
UNSPECIFIED = 0xFF
# What 80h and above mean is up to each command.
PARAMETER_NOT_SUPPORTED = 0x80
PRIVILEGE_EXCEEDS_LIMIT = 0x81
NO_SUCH_SESSION = 0x87

# Chassis device, FRU inventory and SDR repository (20.1)
_CAPABILITIES = 0x8A
_SDR_RECORD_ID = 1
_LAN_CHANNEL = 1
_THIS_CHANNEL = 0x0E
_MAX_READ_BYTES = 240
# Boot flags that nobody made permanent lapse 60 s after they were set (28.12).
BOOT_FLAGS_LIFETIME_SECONDS = 60.0
_KEEP_FLAGS_AFTER_TIMEOUT = 0x08

POWER_ACTIONS = {
    0: PowerAction.FORCE_OFF,
    1: PowerAction.ON,
    2: PowerAction.CYCLE,
    3: PowerAction.RESET,
    5: PowerAction.GRACEFUL_OFF,
}
BOOT_DEVICES: dict[int, BootDevice | None] = {0: None, 1: "pxe", 2: "disk"}


class CommandError(Exception):
    """Answer with this completion code and no data."""

    def __init__(self, code: int) -> None:
        super().__init__(f"completion code {code:#04x}")
        self.code = code


@dataclass
class BootOptions:
    """What a BMC remembers of Set System Boot Options besides the boot flags themselves."""

    set_in_progress: int = 0
    flag_clearing: int = 0
    acknowledge: bytes = b"\x00\x00"


@dataclass
class CommandContext:
    """What a command gets to know about its caller; `effect` goes into the journal."""

    bmc: Bmc
    boot_options: BootOptions
    suites: tuple[bytes, ...]
    close_session: Callable[[int], bool]
    power: Callable[[PowerAction], str | None]
    session: IpmiSession | None = None
    effect: str | None = None


Handler = Callable[[CommandContext, bytes], bytes]


@dataclass(frozen=True)
class Command:
    name: str
    privilege: int
    run: Handler
    least_bytes: int


@dataclass
class _Table:
    rows: dict[tuple[int, int], Command] = field(default_factory=dict)

    def command(
        self, netfn: int, number: int, name: str, privilege: int, least_bytes: int = 0
    ) -> Callable[[Handler], Handler]:
        def enter(run: Handler) -> Handler:
            self.rows[netfn, number] = Command(name, privilege, run, least_bytes)
            return run

        return enter


COMMANDS = _Table()


def run_command(context: CommandContext, netfn: int, number: int, data: bytes) -> bytes:
    """Carry out a request. Raises CommandError with the completion code to answer with."""
    command = COMMANDS.rows.get((netfn, number))
    if command is None:
        raise CommandError(INVALID_COMMAND)
    if command.privilege > (context.session.privilege if context.session else NOBODY):
        raise CommandError(INSUFFICIENT_PRIVILEGE)
    if len(data) < command.least_bytes:
        raise CommandError(WRONG_LENGTH)
    return command.run(context, data)


# Chassis (28)


@COMMANDS.command(0x00, 0x01, "Get Chassis Status", USER)
def chassis_status(context: CommandContext, _data: bytes) -> bytes:
    return bytes([context.bmc.power_state() == "on", 0, 0])


@COMMANDS.command(0x00, 0x02, "Chassis Control", OPERATOR, 1)
def chassis_control(context: CommandContext, data: bytes) -> bytes:
    action = POWER_ACTIONS.get(data[0] & 0x0F)
    if action is None:
        raise CommandError(INVALID_FIELD)
    context.effect = context.power(action)
    return b""


@COMMANDS.command(0x00, 0x08, "Set System Boot Options", OPERATOR, 1)
def set_boot_options(context: CommandContext, data: bytes) -> bytes:
    options = context.boot_options
    parameter, value = data[0] & 0x7F, data[1:]
    sizes = {0: 1, 3: 1, 4: 2, 5: 5}
    if parameter not in sizes:
        raise CommandError(PARAMETER_NOT_SUPPORTED)
    if not value:
        # Only the "parameter valid" bit of the selector is meant; there is nothing to mark here.
        return b""
    if len(value) < sizes[parameter]:
        raise CommandError(WRONG_LENGTH)
    if parameter == 0:
        options.set_in_progress = value[0] & 0x03
    elif parameter == 3:
        options.flag_clearing = value[0] & 0x1F
    elif parameter == 4:
        options.acknowledge = value[:2]
    else:
        context.effect = _set_boot_flags(context, value)
    return b""


def _set_boot_flags(context: CommandContext, flags: bytes) -> str | None:
    valid, persistent, efi = flags[0] & 0x80, flags[0] & 0x40, flags[0] & 0x20
    number = flags[1] >> 2 & 0x0F
    if number not in BOOT_DEVICES:
        raise CommandError(INVALID_FIELD)
    device = BOOT_DEVICES[number]
    if not valid or device is None:
        return context.bmc.set_boot(None, "disabled", context.bmc.hardware.firmware.mode)
    kept = persistent or context.boot_options.flag_clearing & _KEEP_FLAGS_AFTER_TIMEOUT
    return context.bmc.set_boot(
        device,
        "continuous" if persistent else "once",
        "uefi" if efi else "bios",
        None if kept else BOOT_FLAGS_LIFETIME_SECONDS,
    )


@COMMANDS.command(0x00, 0x09, "Get System Boot Options", OPERATOR, 3)
def get_boot_options(context: CommandContext, data: bytes) -> bytes:
    parameter = data[0] & 0x7F
    options = context.boot_options
    values = {
        0: bytes([options.set_in_progress]),
        3: bytes([options.flag_clearing]),
        4: options.acknowledge,
        5: _boot_flags(context.bmc),
    }
    if parameter not in values:
        raise CommandError(PARAMETER_NOT_SUPPORTED)
    return bytes([0x01, parameter]) + values[parameter]


def _boot_flags(bmc: Bmc) -> bytes:
    settings = bmc.boot_settings()
    if settings.persistence == "disabled":
        return bytes(5)
    first = 0x80
    first |= 0x40 if settings.persistence == "continuous" else 0
    first |= 0x20 if settings.mode == "uefi" else 0
    number = next(key for key, device in BOOT_DEVICES.items() if device == settings.device)
    return bytes([first, number << 2, 0, 0, 0])


# The BMC itself (20)


@COMMANDS.command(0x06, 0x01, "Get Device ID", USER)
def get_device_id(_context: CommandContext, _data: bytes) -> bytes:
    device, revision, major, minor, ipmi_version = 0x20, 0x01, 0x01, 0x00, 0x02
    head = bytes([device, revision, major, minor, ipmi_version, _CAPABILITIES])
    # Manufacturer 0 is "unspecified": no tool then expects any vendor's private commands.
    return head + bytes(3) + struct.pack("<H", 1) + bytes(4)


@COMMANDS.command(0x06, 0x37, "Get System GUID", NOBODY)
def get_system_guid(context: CommandContext, _data: bytes) -> bytes:
    return system_guid(context.bmc)


def system_guid(bmc: Bmc) -> bytes:
    """The UUID of the machine in the byte order of SMBIOS, as most BMCs send it."""
    return uuid.UUID(bmc.hardware.uuid).bytes_le


# Sessions and channels (22)


@COMMANDS.command(0x06, 0x38, "Get Channel Authentication Capabilities", NOBODY, 2)
def get_channel_auth_capabilities(_context: CommandContext, data: bytes) -> bytes:
    _check_channel(data[0])
    wants_ipmi_2 = data[0] & 0x80
    # No authentication of IPMI 1.5 at all; names are set for users; RMCP+ is spoken.
    types, extended = (0x80, 0x02) if wants_ipmi_2 else (0x00, 0x00)
    return bytes([_LAN_CHANNEL, types, 0x04, extended, 0, 0, 0, 0])


def _check_channel(number: int) -> None:
    if number & 0x0F not in (_LAN_CHANNEL, _THIS_CHANNEL):
        raise CommandError(INVALID_FIELD)


@COMMANDS.command(0x06, 0x3B, "Set Session Privilege Level", USER, 1)
def set_session_privilege(context: CommandContext, data: bytes) -> bytes:
    assert context.session is not None
    wanted = data[0] & 0x0F
    if wanted > ADMINISTRATOR or wanted == CALLBACK:
        raise CommandError(INVALID_FIELD)
    if wanted > context.session.privilege_limit:
        raise CommandError(PRIVILEGE_EXCEEDS_LIMIT)
    if wanted:
        context.session.privilege = wanted
    return bytes([context.session.privilege])


@COMMANDS.command(0x06, 0x3C, "Close Session", CALLBACK, 4)
def close_session(context: CommandContext, data: bytes) -> bytes:
    assert context.session is not None
    (wanted,) = struct.unpack_from("<I", data)
    if wanted != context.session.id and context.session.privilege < ADMINISTRATOR:
        raise CommandError(INSUFFICIENT_PRIVILEGE)
    if not context.close_session(wanted):
        raise CommandError(NO_SUCH_SESSION)
    context.effect = "session: closed"
    return b""


@COMMANDS.command(0x06, 0x41, "Get Channel Access", USER, 2)
def get_channel_access(_context: CommandContext, data: bytes) -> bytes:
    _check_channel(data[0])
    always_available = 0x02
    return bytes([always_available, ADMINISTRATOR])


@COMMANDS.command(0x06, 0x42, "Get Channel Info", USER, 1)
def get_channel_info(_context: CommandContext, data: bytes) -> bytes:
    _check_channel(data[0])
    lan, ipmb, multi_session, forum = 0x04, 0x01, 0x80, bytes([0xF2, 0x1B, 0x00])
    return bytes([_LAN_CHANNEL, lan, ipmb, multi_session]) + forum + bytes(2)


@COMMANDS.command(0x06, 0x54, "Get Channel Cipher Suites", NOBODY, 3)
def get_channel_cipher_suites(context: CommandContext, data: bytes) -> bytes:
    _check_channel(data[0])
    records = b"".join(context.suites)
    start = (data[2] & 0x3F) * 16
    return bytes([_LAN_CHANNEL]) + records[start : start + 16]


# Inventory (33, 34)


@COMMANDS.command(0x0A, 0x10, "Get FRU Inventory Area Info", USER, 1)
def get_fru_area(context: CommandContext, data: bytes) -> bytes:
    return struct.pack("<HB", len(_fru(context, data[0])), 0)


@COMMANDS.command(0x0A, 0x11, "Read FRU Data", USER, 4)
def read_fru(context: CommandContext, data: bytes) -> bytes:
    device, start, count = struct.unpack("<BHB", data[:4])
    content = _fru(context, device)
    if start >= len(content):
        raise CommandError(OUT_OF_RANGE)
    if count > _MAX_READ_BYTES:
        raise CommandError(CANNOT_RETURN_LENGTH)
    piece = content[start : start + count]
    return bytes([len(piece)]) + piece


def _fru(context: CommandContext, device: int) -> bytes:
    if device != 0:
        raise CommandError(NOT_PRESENT)
    return fru_data(context.bmc.hardware)


@COMMANDS.command(0x0A, 0x20, "Get SDR Repository Info", USER)
def get_sdr_info(context: CommandContext, _data: bytes) -> bytes:
    # Tools cache by these times; they must differ where the records do.
    stamp = uuid.UUID(context.bmc.uuid).int & 0x7FFFFFFF
    supports_reservation = 0x02
    return struct.pack("<BHHIIB", 0x51, 1, 0, stamp, stamp, supports_reservation)


@COMMANDS.command(0x0A, 0x22, "Reserve SDR Repository", USER)
def reserve_sdr(_context: CommandContext, _data: bytes) -> bytes:
    return struct.pack("<H", 1)


@COMMANDS.command(0x0A, 0x23, "Get SDR", USER, 6)
def get_sdr(context: CommandContext, data: bytes) -> bytes:
    _, record_id, start, count = struct.unpack("<HHBB", data[:6])
    if record_id not in (0, _SDR_RECORD_ID):
        raise CommandError(NOT_PRESENT)
    record = controller_locator(_SDR_RECORD_ID, context.bmc.name, _CAPABILITIES)
    if start >= len(record):
        raise CommandError(OUT_OF_RANGE)
    last = 0xFFFF
    return struct.pack("<H", last) + record[start : start + count]


# LAN (23)


@COMMANDS.command(0x0C, 0x02, "Get LAN Configuration Parameters", OPERATOR, 4)
def get_lan_parameters(context: CommandContext, data: bytes) -> bytes:
    _check_channel(data[0])
    endpoint = context.bmc.endpoint
    static = 1
    values = {
        0: bytes(1),
        3: ipaddress.IPv4Address(endpoint.address).packed,
        4: bytes([static]),
        5: bytes.fromhex(context.bmc.mac.replace(":", "")),
        6: ipaddress.IPv4Address(endpoint.netmask).packed,
    }
    if data[1] not in values:
        raise CommandError(PARAMETER_NOT_SUPPORTED)
    revision = 0x11
    return bytes([revision]) + values[data[1]]
