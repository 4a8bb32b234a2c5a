# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The IPMI driver: power, boot flags and the little that IPMI knows of a machine."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ..deadline import Deadline
from ..fault import Fault
from . import ipmi_session
from .interfaces import (
    BootForm,
    BootOverride,
    FirmwareMode,
    Identity,
    Inspection,
    NotYet,
    PowerAction,
    PowerState,
    Unanswered,
)
from .inventory import empty_inventory, text, uuid
from .ipmi_session import IpmiSession
from .ipmi_words import (
    BOOT_FLAGS_PARAMETER,
    CHASSIS_CONTROL,
    GET_BOOT_OPTIONS,
    GET_CHASSIS_STATUS,
    GET_DEVICE_ID,
    GET_SYSTEM_GUID,
    KEEP_FLAGS,
    SELECTORS,
    SET_BOOT_OPTIONS,
    decode_boot_flags,
    decode_device_id,
    decode_guid,
    encode_boot_flags,
)
from .lock import BmcLock
from .patience import patiently
from .quirks import Behaviour, behaviour_of
from .target import Target

LIBRARY_ERROR: str | None = ipmi_session.LIBRARY_ERROR
try:
    from pyghmi.exceptions import PyghmiException
    from pyghmi.ipmi.fru import FRU
except ImportError as error:
    LIBRARY_ERROR = str(error)

_READ_TRIES = 3

# Table 28-4: what Chassis Control takes. There is no graceful restart in IPMI.
_CONTROLS: dict[PowerAction, tuple[int, str]] = {
    "on": (0x01, "power up"),
    "force_off": (0x00, "power down"),
    "graceful_shutdown": (0x05, "soft shutdown"),
    "force_restart": (0x03, "hard reset"),
}

# Table 5-2: completion codes that mean "not now" (busy, initialising, updating, wrong state).
_NOT_NOW = frozenset({0xC0, 0xD0, 0xD1, 0xD2, 0xD5})
_TIMED_OUT_INSIDE = 0xC3
_PRIVILEGE_TOO_LOW = 0xD4

# IANA enterprise numbers, as quirks want them named.
_MANUFACTURERS = {
    2: "IBM",
    11: "HP",
    674: "Dell",
    5771: "Cisco",
    10876: "Supermicro",
    19046: "Lenovo",
    47196: "HPE",
    49769: "OpenBMC",
}


class IpmiDriver:
    """One IPMI session. See ``interfaces`` for the methods of each concern."""

    system: str | None = None

    def __init__(self, target: Target, deadline: Deadline, lock: BmcLock) -> None:
        self._deadline = deadline
        self._lock = lock
        self._known_behaviour: Behaviour | None = None
        self._session = IpmiSession(
            target.address,
            target.ports["ipmi"],
            target.username,
            target.password,
            target.privilege_level,
            deadline,
        )

    @property
    def settle_seconds(self) -> float:
        """See ``interfaces.Driver``."""
        return self._behaviour().settle_seconds

    def open(self) -> None:
        """Log in; waits for room when all sessions of the BMC are taken."""
        patiently(self._deadline, "an IPMI session", self._session.open)

    def close(self) -> None:
        """End the session."""
        self._session.close()

    # -- power ---------------------------------------------------------------------------------

    def power_state(self) -> PowerState:
        """From Get Chassis Status."""
        data = self._read(GET_CHASSIS_STATUS)
        if not data:
            return "unknown"
        return "on" if data[0] & 1 else "off"

    def power_actions(self) -> Mapping[PowerAction, str]:
        """IPMI cannot say what a chassis offers; one that lacks an action refuses it."""
        return {action: name for action, (_control, name) in _CONTROLS.items()}

    def send_power_action(self, action: PowerAction) -> None:
        """One Chassis Control."""
        control, name = _CONTROLS[action]
        # A soft shutdown or reset may keep the BMC busy before it answers.
        self._write(f"chassis control: {name}", CHASSIS_CONTROL, bytes((control,)), seconds=10.0)

    def last_reset(self) -> str | None:
        """IPMI keeps no such mark."""
        return None

    # -- boot ----------------------------------------------------------------------------------

    def boot_override(self) -> BootOverride:
        """From the boot flags."""
        data = self._read(GET_BOOT_OPTIONS, bytes((BOOT_FLAGS_PARAMETER, 0, 0)))
        return decode_boot_flags(data, self._uefi_disk_selector())

    def boot_devices(self) -> tuple[str, ...]:
        """Those for which the standard has a selector."""
        return tuple(SELECTORS)

    def boot_modes(self) -> tuple[FirmwareMode, ...]:
        """The flags know both; whether the machine does, IPMI does not tell."""
        return ("uefi", "bios")

    def boot_forms(self) -> tuple[BootForm, ...]:
        """Flags are one piece."""
        return ("complete",)

    def set_boot_override(self, override: BootOverride, form: BootForm) -> None:
        """Set System Boot Options; device, persistence and EFI flag in one command."""
        # Some BMCs refuse this parameter; they keep the flags anyway, or reading back will tell.
        self._session.exchange(SET_BOOT_OPTIONS, bytes(KEEP_FLAGS), tries=_READ_TRIES)
        self._write(
            "set boot flags",
            SET_BOOT_OPTIONS,
            encode_boot_flags(override, self._uefi_disk_selector()),
        )

    # -- inspection ----------------------------------------------------------------------------

    def inspect(self) -> Inspection:
        """FRU 0, system GUID and device id; everything else is unknown to IPMI."""
        inventory = empty_inventory("out_of_band")
        incomplete: list[dict[str, str]] = []
        _manufacturer, firmware = decode_device_id(self._read(GET_DEVICE_ID))
        inventory["bmc"] = {"model": None, "firmware_version": text(firmware), "uuid": None}
        fru: dict[str, Any] = {}
        try:
            fru = FRU(ipmicmd=self, fruid=0).info or {}
        except (PyghmiException, struct.error, IndexError, TypeError, ValueError) as error:
            incomplete.append({"resource": "FRU 0", "reason": str(error)})
        except Fault as fault:
            incomplete.append({"resource": "FRU 0", "reason": fault.message})
        try:
            guid = decode_guid(self._read(GET_SYSTEM_GUID))
        except Fault as fault:
            guid = None
            incomplete.append({"resource": "system GUID", "reason": fault.message})
        inventory["system"] = {
            "uuid": uuid(guid),
            "serial_number": text(fru.get("Serial Number"))
            or text(fru.get("Chassis serial number")),
            "manufacturer": text(fru.get("Manufacturer")) or text(fru.get("Board manufacturer")),
            "model": text(fru.get("Product name")) or text(fru.get("Board product name")),
            "sku": text(fru.get("Model")),
        }
        return Inspection(inventory, incomplete)

    def raw_command(self, netfn: int, command: int, data: Sequence[int]) -> dict[str, Any]:
        """What pyghmi's FRU reader calls."""
        code, payload = self._ask((netfn, command), data)
        answer: dict[str, Any] = {"code": code, "data": bytearray(payload)}
        if code:
            answer["error"] = f"completion code 0x{code:02x}"
        return answer

    # ------------------------------------------------------------------------------------------

    def _behaviour(self) -> Behaviour:
        if self._known_behaviour is None:
            manufacturer, firmware = decode_device_id(self._read(GET_DEVICE_ID))
            self._known_behaviour = behaviour_of(
                Identity(_MANUFACTURERS.get(manufacturer, ""), "", firmware)
            )
        return self._known_behaviour

    def _uefi_disk_selector(self) -> int | None:
        return self._behaviour().ipmi_uefi_disk_selector

    def _ask(self, command: tuple[int, int], data: Sequence[int] = b"") -> tuple[int, bytes]:
        """Completion code and data of a command that only reads; logs in once more if need be."""
        answer = self._session.exchange(command, data, tries=_READ_TRIES)
        if answer is None and not self._deadline.expired:
            # A session that the BMC has ended is answered with silence.
            self._session.close()
            self._session.open()
            answer = self._session.exchange(command, data, tries=_READ_TRIES)
        if answer is None:
            raise Fault(
                "BMC_UNREACHABLE",
                wanted=f"an answer to IPMI command {command[0]:#04x} {command[1]:#04x}",
                found="silence",
            )
        return answer

    def _read(self, command: tuple[int, int], data: Sequence[int] = b"") -> bytes:
        code, payload = self._ask(command, data)
        _raise_for(code, f"IPMI command {command[0]:#04x} {command[1]:#04x}")
        return payload

    def _write(
        self, what: str, command: tuple[int, int], data: bytes, seconds: float = 5.0
    ) -> None:
        self._lock.wait_turn(self._behaviour().spacing_seconds)
        self._deadline.check(what)
        answer = self._session.exchange(
            command, data, seconds=min(seconds, self._deadline.remaining())
        )
        if answer is None or answer[0] == _TIMED_OUT_INSIDE:
            raise Unanswered(f"{what}: no answer")
        _raise_for(answer[0], what)


def _raise_for(code: int, what: str) -> None:
    if code == 0:
        return
    found = f"completion code 0x{code:02x}"
    if code in _NOT_NOW:
        raise NotYet(f"{what}: {found}")
    raise Fault(
        "BMC_PRIVILEGE_TOO_LOW" if code == _PRIVILEGE_TOO_LOW else "BMC_REFUSED",
        wanted=what,
        found=found,
        details={"completion_code": code},
    )
