# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The seam between a BMC and the machine it owns.

Two machines exist: `virtual_rack.qemu.QemuMachine` (a QEMU process per boot) and
`virtual_rack.light.LightMachine` (a timer). The BMC (`virtual_rack.bmc`) knows only the protocol
below.

How the processes of a rack fit together (`virtual_rack.supervisor` starts them):

- one per server of kind `machine`:
  `python -m virtual_rack.bmc --spec DIR/spec.yml --server NAME --dir DIR --ready-fd N`
- one for all servers of kind `light` together:
  `python -m virtual_rack.bmc --light --spec DIR/spec.yml --dir DIR --ready-fd N`

`DIR` is the directory of the rack (`virtual_rack.layout.RackLayout` names every file in it),
`DIR/spec.yml` the validated spec (`virtual_rack.spec.load_spec`). The BMC makes its machine with
`virtual_rack.qemu.create_machine(spec, server_name, layout)` or `virtual_rack.light`. When all its
sockets listen it writes `ready\\n` to file descriptor N and closes it; a failure to start is a
message on stderr and an exit code other than 0. stderr goes to `DIR/servers/NAME/bmc.log` (light
ones: `DIR/light.log`). On SIGTERM it calls `Machine.close()` and exits 0 within five seconds. It
dies with the supervisor, in whose pid namespace it lives, and needs to do nothing for that.
TLS: `DIR/ca.pem`, and per BMC `DIR/ssl/<server>.crt` and `.key`, which exist before the BMC starts
(`virtual_rack.tls`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

PowerState = Literal["on", "off"]
FirmwareMode = Literal["uefi", "bios"]
BootDevice = Literal["pxe", "disk"]
DiskBus = Literal["nvme", "virtio", "scsi", "sata"]
NicModel = Literal["virtio", "e1000e"]


@dataclass(frozen=True)
class BootOverride:
    """What one boot shall start from, against the order that the firmware is configured with.

    `mode` None means the firmware mode of the machine itself.
    """

    device: BootDevice
    mode: FirmwareMode | None = None


@dataclass(frozen=True)
class Cpu:
    """All CPUs of a machine together; `cores` and `threads` are totals over all sockets."""

    sockets: int
    cores: int
    threads: int
    model: str
    architecture: str = "x86_64"


@dataclass(frozen=True)
class Nic:
    """One network port. `mac` is lower case with colons."""

    name: str
    mac: str
    model: NicModel
    speed_mbps: int = 1000


@dataclass(frozen=True)
class Disk:
    """One disk, described as the operating system on the machine will see it.

    `wwn` is `0x` and 16 hexadecimal digits, or None for a bus that shows none.
    """

    name: str
    bus: DiskBus
    model: str
    serial_number: str
    wwn: str | None
    size_bytes: int
    logical_sector_bytes: int
    rotational: bool
    read_only: bool


@dataclass(frozen=True)
class Firmware:
    """The firmware of a machine. Secure Boot can be supported by UEFI firmware only."""

    vendor: str
    version: str
    mode: FirmwareMode
    secure_boot_supported: bool
    secure_boot_enabled: bool


@dataclass(frozen=True)
class Hardware:
    """What a machine is made of; never changes while the rack is up. `uuid` is lower case."""

    uuid: str
    serial_number: str
    manufacturer: str
    model: str
    sku: str
    firmware: Firmware
    cpu: Cpu
    memory_bytes: int
    nics: tuple[Nic, ...]
    disks: tuple[Disk, ...]


@dataclass(frozen=True)
class MachineEvent:
    """Something that happened to the machine, whoever caused it.

    `boot_started`: a boot began (`boot` is the override that was asked for and used, None for the
    configured order). `powered_off`: the machine is off now. `boot_failed`: the machine could not
    be started and is off; `reason` says why.

    `reason` is one of `power_on`, `bmc_reset`, `guest_reset` for a start; `bmc_forced_off`,
    `guest_shutdown`, `machine_died` for an end; a sentence for `boot_failed`.
    """

    kind: Literal["boot_started", "powered_off", "boot_failed"]
    reason: str
    boot: BootOverride | None = None


class MachineError(Exception):
    """The machine could not do what the BMC asked; the message says what was found."""


class Machine(Protocol):
    """A machine as its BMC drives it. Every method may be called from any thread.

    Methods return when the effect is there (a started QEMU answers QMP, a stopped one is gone),
    apart from `press_power_button`, whose effect depends on the operating system. They raise
    `MachineError` when that cannot be reached. Asking for the state that is already there does
    nothing.
    """

    def power_state(self) -> PowerState:
        """Whether the machine is powered, as it is now and not as it was asked for."""

    def power_on(self) -> None:
        """Start a boot when the machine is off."""

    def power_off(self) -> None:
        """Cut the power at once."""

    def press_power_button(self) -> None:
        """Press the button as ACPI sees it: a running system may shut down, or not.

        A machine that is off stays off.
        """

    def reset(self) -> None:
        """Start a new boot at once on a machine that is on; does nothing on one that is off."""

    def hardware(self) -> Hardware:
        """What the machine is made of."""

    def on_boot(self, choose: Callable[[], BootOverride | None]) -> None:
        """Set the function that the machine calls exactly once at the start of *every* boot.

        That includes boots that the operating system asked for by a reset, of which the BMC learns
        in no other way; a `Once` override is consumed inside `choose`. It must be quick and must
        not call the machine.
        """

    def on_event(self, callback: Callable[[MachineEvent], None]) -> None:
        """Add a function that is told every event, in order; it must not block or call back."""

    def close(self) -> None:
        """Cut the power and release everything. Nothing else may be called afterwards."""
