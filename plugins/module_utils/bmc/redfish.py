# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Redfish driver: power, boot and inspection of one ComputerSystem, on sushy."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ..deadline import Deadline
from ..fault import Fault
from . import redfish_connector
from .interfaces import (
    BootForm,
    BootOverride,
    FirmwareMode,
    Identity,
    Inspection,
    Persistence,
    PowerAction,
    PowerState,
)
from .lock import BmcLock
from .patience import patiently
from .quirks import Behaviour, behaviour_of
from .redfish_connector import RedfishConnector
from .redfish_inventory import inspect_system
from .target import Target

LIBRARY_ERROR: str | None = redfish_connector.LIBRARY_ERROR
try:
    import sushy
    from sushy import exceptions as sushy_exceptions
except ImportError as error:
    LIBRARY_ERROR = str(error)

# sushy logs what we turn into results, and Python prints warnings of a logger without a handler.
logging.getLogger("sushy").addHandler(logging.NullHandler())

# Shorter than any interval between two looks at a state.
_FRESH_SECONDS = 0.3

_RESET_TYPES: dict[PowerAction, tuple[str, ...]] = {
    # ForceOn is what some BMCs call it; on a machine that is off it is the same.
    "on": ("On", "ForceOn"),
    "force_off": ("ForceOff",),
    "graceful_shutdown": ("GracefulShutdown",),
    "force_restart": ("ForceRestart",),
    "graceful_restart": ("GracefulRestart",),
}
_TARGETS = {
    "none": "None",
    "pxe": "Pxe",
    "disk": "Hdd",
    "cd": "Cd",
    "usb": "Usb",
    "bios_setup": "BiosSetup",
    "uefi_http": "UefiHttp",
}
_DEVICES = {target: device for device, target in _TARGETS.items()}
_ENABLED: dict[Persistence, str] = {
    "once": "Once",
    "continuous": "Continuous",
    "disabled": "Disabled",
}
_PERSISTENCE: dict[str, Persistence] = {value: key for key, value in _ENABLED.items()}
_MODES: dict[FirmwareMode, str] = {"uefi": "UEFI", "bios": "Legacy"}
_FIRMWARE_MODES: dict[str, FirmwareMode] = {value: key for key, value in _MODES.items()}


class _SessionByConnector:
    """What sushy wants as its authentication: the connector keeps the session itself."""

    def __init__(self) -> None:
        self._root: Any = None
        self._actions: dict[PowerAction, str] | None = None
        self._connector: Any = None

    def set_context(self, root: Any, connector: Any) -> None:
        self._root, self._connector = root, connector

    def authenticate(self) -> None:
        links = self._root.json.get("Links") or {}
        sessions = (links.get("Sessions") or {}).get("@odata.id")
        # The standard place, for services that do not link it (sushy does the same).
        self._connector.login(sessions or "/redfish/v1/SessionService/Sessions")

    def close(self) -> None:
        """sushy calls this when its root object is collected; our driver logs out."""


class RedfishDriver:
    """One session with a Redfish service. See ``interfaces`` for the methods of each concern."""

    def __init__(self, target: Target, deadline: Deadline, lock: BmcLock) -> None:
        self.system: str | None = None
        self._target = target
        self._deadline = deadline
        self._lock = lock
        self._behaviour = Behaviour()
        self._system: Any = None
        self._read_at = -_FRESH_SECONDS
        self._root: Any = None
        self._actions: dict[PowerAction, str] | None = None
        self._connector = RedfishConnector(
            target, target.ports["redfish"], deadline, self._wait_turn
        )

    @property
    def settle_seconds(self) -> float:
        """See ``interfaces.Driver``."""
        return self._behaviour.settle_seconds

    def open(self) -> None:
        """Log in and find the system. Raises SYSTEM_AMBIGUOUS, SYSTEM_NOT_FOUND and the rest."""
        with _translated():
            self._root = patiently(
                self._deadline,
                f"a session on {self._connector.base_url}",
                lambda: sushy.Sushy(
                    self._connector.base_url,
                    auth=_SessionByConnector(),
                    connector=self._connector,
                ),
            )
            path = self._find_system()
            self._system = patiently(
                self._deadline, f"to read {path}", lambda: self._root.get_system(path)
            )
        self._read_at = time.monotonic()
        self._behaviour = behaviour_of(
            Identity(
                manufacturer=str(self._system.json.get("Manufacturer") or ""),
                model=str(self._system.json.get("Model") or ""),
            )
        )

    def close(self) -> None:
        """Log out. The session must not outlive the task, whatever happened before."""
        self._connector.logout()
        self._connector.close()

    # -- power ---------------------------------------------------------------------------------

    def power_state(self) -> PowerState:
        """PoweringOn, PoweringOff, Paused and a missing value are all ``unknown``."""
        self._refresh()
        return _POWER_STATES.get(str(self._system.json.get("PowerState")), "unknown")

    def power_actions(self) -> Mapping[PowerAction, str]:
        """From the ResetType values that the system advertises (asked for once)."""
        if self._actions is not None:
            return self._actions
        with _translated():
            offered = {each.value for each in self._system.get_allowed_reset_system_values()}
        actions: dict[PowerAction, str] = {}
        for action, names in _RESET_TYPES.items():
            name = next((name for name in names if name in offered), None)
            if name is not None:
                actions[action] = name
        self._actions = actions
        return actions

    def send_power_action(self, action: PowerAction) -> None:
        """One POST of ComputerSystem.Reset."""
        name = self.power_actions()[action]
        self._read_at = -_FRESH_SECONDS
        with _translated():
            self._system.reset_system(sushy.ResetType(name))

    def last_reset(self) -> str | None:
        """LastResetTime, where the system has it (ComputerSystem 1.12)."""
        self._refresh()
        value = self._system.json.get("LastResetTime")
        return str(value) if value else None

    # -- boot ----------------------------------------------------------------------------------

    def boot_override(self) -> BootOverride:
        """See ``interfaces.BootDriver``."""
        self._refresh()
        boot = self._system.boot
        if boot is None:
            return BootOverride("none", "disabled", None)
        mode = _FIRMWARE_MODES.get(boot.mode.value) if boot.mode else None
        enabled = _PERSISTENCE.get(boot.enabled.value) if boot.enabled else None
        target = boot.target.value if boot.target else "None"
        if enabled in (None, "disabled") or target == "None":
            # The target that a BMC keeps of a former override says nothing.
            return BootOverride("none", "disabled", mode)
        return BootOverride(_DEVICES.get(target, target), enabled, mode)

    def boot_devices(self) -> tuple[str, ...]:
        """See ``interfaces.BootDriver``."""
        # Taking the override away needs no target of that name.
        offered = self._boot_targets() | {"None"}
        return tuple(device for device, target in _TARGETS.items() if target in offered)

    def boot_modes(self) -> tuple[FirmwareMode, ...]:
        """Those that the system advertises; empty when it does not say."""
        boot = self._system.json.get("Boot") or {}
        values = boot.get("BootSourceOverrideMode@Redfish.AllowableValues") or []
        return tuple(_FIRMWARE_MODES[value] for value in values if value in _FIRMWARE_MODES)

    def boot_forms(self) -> tuple[BootForm, ...]:
        """Both forms; which one comes first is a quirk."""
        if self._behaviour.minimal_boot_payload:
            return ("minimal", "complete")
        return ("complete", "minimal")

    def set_boot_override(self, override: BootOverride, form: BootForm) -> None:
        """One PATCH (two where the BMC keeps parts under @Redfish.Settings; sushy knows)."""
        clear = override.enabled == "disabled"
        # iLO refuses the target None (metal-operator 998), and a cleared override needs none.
        target: str | None = _TARGETS[override.device]
        if clear and (form == "minimal" or target not in self._boot_targets()):
            target = None
        mode = _MODES[override.mode] if override.mode and form == "complete" else None
        self._read_at = -_FRESH_SECONDS
        with _translated():
            self._system.set_system_boot_options(
                target=sushy.BootSource(target) if target else None,
                enabled=sushy.BootSourceOverrideEnabled(_ENABLED[override.enabled]),
                mode=sushy.BootSourceOverrideMode(mode) if mode else None,
            )

    # -- inspection ----------------------------------------------------------------------------

    def inspect(self) -> Inspection:
        """See ``redfish_inventory``."""
        self._refresh()
        with _translated():
            return inspect_system(
                self._root.json, self._system.json, self._connector, self._deadline
            )

    # ------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Read the system again, unless that was done just now and no command was sent since."""
        if time.monotonic() - self._read_at < _FRESH_SECONDS:
            return
        with _translated():
            self._system.refresh()
        self._read_at = time.monotonic()

    def _wait_turn(self) -> None:
        self._lock.wait_turn(self._behaviour.spacing_seconds)

    def _boot_targets(self) -> set[str]:
        with _translated():
            return {each.value for each in self._system.get_allowed_system_boot_source_values()}

    def _find_system(self) -> str:
        collection = (self._root.json.get("Systems") or {}).get("@odata.id")
        paths: list[str] = []
        if collection:
            body = patiently(
                self._deadline,
                f"to read {collection}",
                lambda: self._connector.get(collection).json(),
            )
            paths = [str(member["@odata.id"]) for member in body.get("Members") or []]
        names = [path.rstrip("/").rsplit("/", 1)[-1] for path in paths]
        asked = self._target.system_id
        if asked is None and len(paths) == 1:
            self.system = names[0]
            return paths[0]
        if asked is None and paths:
            raise Fault(
                "SYSTEM_AMBIGUOUS",
                wanted=f"one system behind the BMC {self._target.address}",
                found=", ".join(names),
                cure="name one of them as system_id",
                details={"systems": names},
            )
        for path, name in zip(paths, names, strict=True):
            if asked in (name, path.rstrip("/")):
                self.system = name
                return path
        raise Fault(
            "SYSTEM_NOT_FOUND",
            wanted=f"the system {asked!r}" if asked else "a system",
            found=f"behind the BMC {self._target.address}: {', '.join(names) or 'none'}",
            details={"systems": names},
        )


_POWER_STATES: dict[str, PowerState] = {"On": "on", "Off": "off"}


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """sushy's complaints about what a BMC sent, as faults; the connector raises its own."""
    try:
        yield
    except sushy_exceptions.SushyError as error:
        raise Fault(
            "BMC_ANSWER_MALFORMED", wanted="an answer as Redfish defines it", found=str(error)
        ) from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Fault(
            "BMC_ANSWER_MALFORMED",
            wanted="an answer as Redfish defines it",
            found=f"{type(error).__name__}: {error}",
        ) from error
