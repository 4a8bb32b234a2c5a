# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the operations ask of a BMC: one small protocol per concern, and two ways to answer "no".

A driver (see ``registry``) implements any subset of the concerns. Its methods speak the words of
this page, never those of Redfish or IPMI, apart from the BMC's own names for commands, which are
passed through for people to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

PowerState = Literal["on", "off", "unknown"]
PowerAction = Literal["on", "force_off", "graceful_shutdown", "force_restart", "graceful_restart"]
Persistence = Literal["once", "continuous", "disabled"]
FirmwareMode = Literal["uefi", "bios"]
BootForm = Literal["complete", "minimal"]

BOOT_DEVICES = ("none", "pxe", "disk", "cd", "usb", "bios_setup", "uefi_http")
CONCERNS = ("power", "boot", "inspect")


@dataclass(frozen=True)
class BootOverride:
    """What the next boot (``once``) or every boot (``continuous``) starts from.

    ``device`` is one of ``BOOT_DEVICES``, or the BMC's own word for one that we never set.
    ``mode`` None means that the BMC does not say, or that it shall not be touched.
    """

    device: str
    enabled: Persistence
    mode: FirmwareMode | None

    def to_dict(self) -> dict[str, Any]:
        """``{device, enabled, mode}``."""
        return asdict(self)


@dataclass(frozen=True)
class Identity:
    """Who built the machine and its BMC; what quirks are matched on. Unknown is empty."""

    manufacturer: str = ""
    model: str = ""
    firmware: str = ""


@dataclass(frozen=True)
class Inspection:
    """``inventory`` in the shape of ``bmc_info``; ``incomplete`` names what could not be read."""

    inventory: dict[str, Any]
    incomplete: list[dict[str, str]]


class NotYet(Exception):  # noqa: N818  a refusal for now is no error
    """The BMC refused for now (409, 503, in POST): the command had no effect and may be repeated.

    ``retry_after_seconds`` is what the BMC asked for, or None.
    """

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unanswered(Exception):  # noqa: N818  it may have worked
    """A command was sent and the answer was lost: it may have worked, or not."""


class PowerDriver(Protocol):
    """Concern ``power``."""

    def power_state(self) -> PowerState:
        """The state as the BMC reports it now; anything but a clear on or off is ``unknown``."""

    def power_actions(self) -> Mapping[PowerAction, str]:
        """The actions that the BMC advertises, each with the BMC's own name for it."""

    def send_power_action(self, action: PowerAction) -> None:
        """Send exactly one command, never a second one.

        Raises ``NotYet``, ``Unanswered``, or a Fault when the BMC refused for good.
        """

    def last_reset(self) -> str | None:
        """A mark that changes with every reset, where the BMC keeps one."""


class BootDriver(Protocol):
    """Concern ``boot``."""

    def boot_override(self) -> BootOverride:
        """The override as the BMC reports it now."""

    def boot_devices(self) -> tuple[str, ...]:
        """Those of ``BOOT_DEVICES`` that the BMC offers."""

    def boot_modes(self) -> tuple[FirmwareMode, ...]:
        """The firmware modes that an override may name; empty when the BMC does not say."""

    def boot_forms(self) -> tuple[BootForm, ...]:
        """In which forms to send an override, most promising first."""

    def set_boot_override(self, override: BootOverride, form: BootForm) -> None:
        """Send the override; raises like ``PowerDriver.send_power_action``."""


class InspectDriver(Protocol):
    """Concern ``inspect``."""

    def inspect(self) -> Inspection:
        """Everything the BMC knows about the machine, read only."""


class Driver(Protocol):
    """One session with one BMC. Which concerns it serves stands in the registry."""

    @property
    def system(self) -> str | None:
        """The name of the system behind the BMC, where the protocol has such a thing."""

    @property
    def settle_seconds(self) -> float:
        """How long this BMC wants to be left alone after a change of power."""

    def open(self) -> None:
        """Log in once. Raises BMC_UNREACHABLE, BMC_AUTH_FAILED, BMC_CERTIFICATE_REJECTED, …"""

    def close(self) -> None:
        """Log out and let go of everything. Never raises; ends within seconds."""
