# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""A machine that is a QEMU process, a new one for every boot.

Why a new one: after QEMU's own reset SeaBIOS resets the machine several more times, so that a boot
override for one boot is eaten before it had an effect. Here QEMU ends at every reset of the guest,
and the next process is started with the order of boot devices that the BMC chooses then.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virtual_rack import accelerator
from virtual_rack.layout import RackLayout
from virtual_rack.machine import (
    BootOverride,
    Cpu,
    Disk,
    Firmware,
    FirmwareMode,
    Hardware,
    MachineError,
    MachineEvent,
    Nic,
    PowerState,
)
from virtual_rack.programs import OVMF_DIRECTORY, QEMU, MissingProgramError, find
from virtual_rack.qmp import QmpClient, QmpError
from virtual_rack.spec import SATA_PORTS, BootGroup, DiskSpec, RackSpec, ServerSpec
from virtual_rack.tap import NetworkError, open_tap

FIRMWARE_VENDOR = "Barewright"
FIRMWARE_VERSION = "1.0"
CPU_MODEL = "Virtual Rack CPU"
# What the emulated disks call themselves, as Linux shows it.
_DISK_MODELS = {
    "nvme": "QEMU NVMe Ctrl",
    "virtio": "",
    "scsi": "QEMU HARDDISK",
    "sata": "QEMU HARDDISK",
}
# On two busy cores QEMU was seen to take eight seconds until it answered.
_START_LIMIT_SECONDS = 60.0
_NIC_DEVICES = {"virtio": "virtio-net-pci", "e1000e": "e1000e"}


def create_machine(spec: RackSpec, server: str, layout: RackLayout) -> QemuMachine:
    """The machine of a server in a rack whose directory is prepared; it is off."""
    return QemuMachine(
        spec.server(server),
        layout,
        accelerator.read(layout.accelerator),
        bridge=spec.network.bridge,
        tap_prefix=f"tap{[known.name for known in spec.servers].index(server)}",
    )


@dataclass(frozen=True)
class _Command:
    action: Callable[[], object]
    done: Future[object]


@dataclass(frozen=True)
class _QemuEvent:
    boot_number: int
    event: dict[str, Any] | None
    """None: QEMU has closed the connection, that is, it has ended."""


class QemuMachine:
    """A `virtual_rack.machine.Machine`.

    One thread owns the QEMU process: all that is asked for and all that QEMU reports go through its
    queue one after the other. It also has to be a thread that lives as long as the machine, for
    PR_SET_PDEATHSIG kills QEMU at the end of the *thread* that started it.
    """

    def __init__(
        self,
        server: ServerSpec,
        layout: RackLayout,
        accelerator: accelerator.Accelerator,
        *,
        bridge: str,
        tap_prefix: str,
    ) -> None:
        self._server = server
        self._layout = layout
        self._accelerator = accelerator
        self._bridge = bridge
        self._tap_prefix = tap_prefix
        self._choose_boot: Callable[[], BootOverride | None] = lambda: None
        self._callbacks: list[Callable[[MachineEvent], None]] = []
        self._queue: queue.SimpleQueue[_Command | _QemuEvent | None] = queue.SimpleQueue()
        self._powered = False
        self._boot_number = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._qmp: QmpClient | None = None
        self._shutdown_reason = ""
        self._owner = threading.Thread(target=self._own, name=f"qemu-{server.name}", daemon=True)
        self._owner.start()

    # What the BMC asks for.

    def power_state(self) -> PowerState:
        return "on" if self._powered else "off"

    def power_on(self) -> None:
        self._ask(lambda: None if self._powered else self._start("power_on"))

    def power_off(self) -> None:
        self._ask(lambda: self._end("bmc_forced_off") if self._powered else None)

    def press_power_button(self) -> None:
        self._ask(self._press_power_button)

    def reset(self) -> None:
        self._ask(self._reset)

    def hardware(self) -> Hardware:
        return describe(self._server)

    def on_boot(self, choose: Callable[[], BootOverride | None]) -> None:
        self._choose_boot = choose

    def on_event(self, callback: Callable[[MachineEvent], None]) -> None:
        self._callbacks.append(callback)

    def close(self) -> None:
        self.power_off()
        self._queue.put(None)
        self._owner.join()

    # What the owning thread does.

    def _ask(self, action: Callable[[], object]) -> None:
        done: Future[object] = Future()
        self._queue.put(_Command(action, done))
        done.result()

    def _own(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, _Command):
                try:
                    item.done.set_result(item.action())
                except Exception as error:
                    item.done.set_exception(error)
            elif item.boot_number == self._boot_number and self._powered:
                self._follow(item.event)

    def _follow(self, event: dict[str, Any] | None) -> None:
        if event is not None:
            if event["event"] == "SHUTDOWN":
                self._shutdown_reason = event["data"]["reason"]
            return
        reason = self._shutdown_reason
        if reason == "guest-reset":
            self._stop_process()
            # A failure is told as an event; there is nobody else to tell.
            with contextlib.suppress(MachineError):
                self._start("guest_reset")
        else:
            self._end("guest_shutdown" if reason == "guest-shutdown" else "machine_died")

    def _press_power_button(self) -> None:
        if self._qmp is not None:
            try:
                self._qmp.execute("system_powerdown")
            except QmpError as error:
                # A machine that ended in this moment is one whose button does nothing.
                if self._process is not None and self._process.poll() is None:
                    raise MachineError(str(error)) from error

    def _reset(self) -> None:
        if self._powered:
            self._stop_process()
            self._start("bmc_reset")

    def _end(self, reason: str) -> None:
        self._stop_process()
        self._powered = False
        self._tell(MachineEvent("powered_off", reason))

    def _tell(self, event: MachineEvent) -> None:
        for callback in self._callbacks:
            callback(event)

    def _start(self, reason: str) -> None:
        boot = self._choose_boot()
        self._boot_number += 1
        self._shutdown_reason = ""
        try:
            self._start_process(boot)
        except (OSError, QmpError, NetworkError, MissingProgramError) as error:
            self._stop_process()
            self._powered = False
            message = f"QEMU did not start: {error}{self._last_words()}"
            self._tell(MachineEvent("boot_failed", message, boot))
            raise MachineError(message) from error
        self._powered = True
        self._tell(MachineEvent("boot_started", reason, boot))

    def _last_words(self) -> str:
        try:
            lines = self._layout.qemu_log(self._server.name).read_text("utf-8", "replace")
        except OSError:
            return ""
        return f" ({lines.splitlines()[-1]})" if lines else ""

    def _start_process(self, boot: BootOverride | None) -> None:
        mode = (boot.mode if boot else None) or self._server.firmware
        ours, theirs = socket.socketpair()
        descriptors = [theirs.fileno()]
        try:
            for index in range(len(self._server.nics)):
                descriptors.append(open_tap(f"{self._tap_prefix}n{index}", self._bridge))
            nvram = None
            if mode == "uefi":
                nvram = self._prepare_nvram()
            argv = command_line(
                self._server,
                self._layout,
                self._accelerator,
                mode=mode,
                order=boot_order(self._server, boot),
                first_disk=self._first_disk() if mode == "bios" else 0,
                nvram=nvram,
                qmp_descriptor=descriptors[0],
                tap_descriptors=descriptors[1:],
            )
            with self._layout.qemu_log(self._server.name).open("wb") as log:
                self._process = subprocess.Popen(
                    [find("setpriv"), *_CONFINEMENT, *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=descriptors,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            # QEMU has its copies: the tap devices must go when it goes.
            theirs.close()
            for descriptor in descriptors[1:]:
                os.close(descriptor)
        number = self._boot_number
        self._qmp = QmpClient(
            ours,
            on_event=lambda event: self._queue.put(_QemuEvent(number, event)),
            on_end=lambda: self._queue.put(_QemuEvent(number, None)),
        )
        self._qmp.start(_START_LIMIT_SECONDS)

    def _stop_process(self) -> None:
        """End QEMU if it runs; what it reports from now on belongs to a boot that is over."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._qmp is not None:
            self._qmp.close()
            self._qmp = None

    def _prepare_nvram(self) -> Path:
        nvram = self._layout.nvram(self._server.name, secure_boot=self._server.secure_boot)
        if not nvram.exists():
            shutil.copyfile(_firmware_file("VARS", self._server), nvram)
        return nvram

    def _first_disk(self) -> int:
        """The disk that a BIOS shall try.

        SeaBIOS boots from one disk only, the first in the order, where the firmware of a server
        tries one after the other until one has a boot loader. So the first disk with boot code is
        made the first.
        """
        for index in range(len(self._server.disks)):
            with self._layout.disk(self._server.name, index).open("rb") as disk:
                sector = disk.read(512)
            # A protective MBR (UEFI 5.2.3) has the signature too, but no code.
            if sector[510:] == b"\x55\xaa" and any(sector[:440]):
                return index
        return 0


# No capability and no way to get one, whoever runs the rack; killed when the owner dies.
_CONFINEMENT = (
    "--pdeathsig=KILL",
    "--no-new-privs",
    "--inh-caps=-all",
    "--bounding-set=-all",
    "--",
)


def _firmware_file(kind: str, server: ServerSpec) -> Path:
    return OVMF_DIRECTORY / f"OVMF_{kind}_4M{'.ms' if server.secure_boot else ''}.fd"


def boot_order(server: ServerSpec, boot: BootOverride | None) -> tuple[BootGroup, ...]:
    """The groups of devices in the order in which this boot tries them.

    A server that was told to boot from the network and gets no answer goes on with its disks.
    """
    if boot is None:
        return server.boot_order
    return ("network", "disk") if boot.device == "pxe" else ("disk", "network")


def describe(server: ServerSpec) -> Hardware:
    """The hardware of a server as an operating system on its QEMU machine will find it."""
    return Hardware(
        uuid=server.uuid,
        serial_number=server.serial_number,
        manufacturer=server.manufacturer,
        model=server.model,
        sku=server.sku,
        firmware=Firmware(
            vendor=FIRMWARE_VENDOR,
            version=FIRMWARE_VERSION,
            mode=server.firmware,
            secure_boot_supported=server.firmware == "uefi",
            secure_boot_enabled=server.secure_boot,
        ),
        cpu=Cpu(sockets=1, cores=server.cpus, threads=server.cpus, model=CPU_MODEL),
        memory_bytes=server.memory_bytes,
        nics=tuple(
            Nic(name=f"nic{index}", mac=nic.mac, model=nic.model)
            for index, nic in enumerate(server.nics)
        ),
        disks=tuple(
            Disk(
                name=f"disk{index}",
                bus=disk.bus,
                model=_DISK_MODELS[disk.bus],
                serial_number=disk.serial_number,
                wwn=disk.wwn,
                size_bytes=disk.size_bytes,
                logical_sector_bytes=disk.logical_sector_bytes,
                rotational=disk.rotational,
                read_only=disk.read_only,
            )
            for index, disk in enumerate(server.disks)
        ),
    )


def command_line(
    server: ServerSpec,
    layout: RackLayout,
    accelerator: accelerator.Accelerator,
    *,
    mode: FirmwareMode,
    order: tuple[BootGroup, ...],
    first_disk: int,
    nvram: Path | None,
    qmp_descriptor: int,
    tap_descriptors: list[int],
) -> list[str]:
    """The QEMU command of one boot. `nvram` is wanted for mode uefi."""
    secure_boot = mode == "uefi" and server.secure_boot
    # graphics=off makes SeaBIOS, and iPXE through it, write to the serial port.
    machine = f"q35,vmport=off,graphics=off,smm={'on' if secure_boot else 'off'}"
    accel, accel_value, cpu, cpu_value = accelerator.arguments()
    argv = [
        find(QEMU),
        *("-name", server.name),
        *(accel, accel_value, cpu, f"{cpu_value},model-id={CPU_MODEL}"),
        *("-smp", f"cpus={server.cpus},sockets=1,cores={server.cpus},threads=1"),
        *("-m", f"{server.memory_mib}M"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-vga", "none"),
        *("-action", "reboot=shutdown,shutdown=poweroff"),
        *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
        *("-chardev", f"socket,id=qmp,fd={qmp_descriptor}", "-mon", "chardev=qmp,mode=control"),
        *("-uuid", server.uuid),
        # Without this table SeaBIOS and OVMF name themselves.
        *("-smbios", f"type=0,vendor={FIRMWARE_VENDOR},version={FIRMWARE_VERSION}"),
        "-smbios",
        f"type=1,manufacturer={server.manufacturer},product={server.model},"
        f"serial={server.serial_number},sku={server.sku},uuid={server.uuid}",
        *("-device", "virtio-rng-pci"),
    ]
    # Only -chardev has no JSON form, and in it a comma is doubled.
    console = str(layout.console_log(server.name)).replace(",", ",,")
    argv += ["-chardev", f"file,id=console,path={console},append=on", "-serial", "chardev:console"]
    if mode == "uefi":
        assert nvram is not None
        machine += ",pflash0=code,pflash1=nvram"
        argv += ["-blockdev", _raw("code", _firmware_file("CODE", server), read_only=True)]
        argv += ["-blockdev", _raw("nvram", nvram)]
        if secure_boot:
            # The variables may be written from system management mode only.
            argv += ["-global", "driver=cfi.pflash01,property=secure,value=on"]
            argv += ["-global", "ICH9-LPC.disable_s3=1"]
        argv += ["-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n"]
        if server.network_boot == "http":
            argv += ["-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=n"]
    argv += ["-machine", machine]
    boot_indexes = _boot_indexes(server, order, first_disk)
    for index, (nic, descriptor) in enumerate(zip(server.nics, tap_descriptors, strict=True)):
        device: dict[str, object] = {
            "driver": _NIC_DEVICES[nic.model],
            "id": f"nic{index}",
            "netdev": f"net{index}",
            "mac": nic.mac,
            "bootindex": boot_indexes["network", index],
        }
        if mode == "uefi" and nic.model == "virtio":
            # OVMF has a driver of its own for it; for e1000e it needs the one in the ROM.
            device["romfile"] = ""
        argv += ["-netdev", f"tap,id=net{index},fd={descriptor}"]
        argv += ["-device", json.dumps(device)]
    if any(disk.bus == "scsi" for disk in server.disks):
        argv += ["-device", "virtio-scsi-pci,id=scsi"]
    sata_ports = iter(range(SATA_PORTS))
    for index, disk in enumerate(server.disks):
        file = layout.disk(server.name, index)
        argv += ["-blockdev", _raw(f"disk{index}", file, read_only=disk.read_only)]
        port = next(sata_ports) if disk.bus == "sata" else index
        argv += ["-device", json.dumps(_disk(disk, index, port, boot_indexes["disk", index]))]
    return argv


def _boot_indexes(
    server: ServerSpec, order: tuple[BootGroup, ...], first_disk: int
) -> dict[tuple[BootGroup, int], int]:
    disks = sorted(range(len(server.disks)), key=lambda index: (index != first_disk, index))
    groups: dict[BootGroup, list[int]] = {
        "disk": disks,
        "network": list(range(len(server.nics))),
    }
    # A group that the order leaves out comes last: QEMU tries a device without index anyway.
    ordered = [*order, *(group for group in groups if group not in order)]
    devices = [(group, index) for group in ordered for index in groups[group]]
    return {device: position for position, device in enumerate(devices)}


def _raw(name: str, file: Path, *, read_only: bool = False) -> str:
    return json.dumps(
        {
            "driver": "raw",
            "node-name": name,
            "read-only": read_only,
            "discard": "unmap",
            # The rack's disks need not survive a crash of this computer.
            "cache": {"direct": False, "no-flush": True},
            "file": {"driver": "file", "filename": str(file)},
        }
    )


def _disk(disk: DiskSpec, index: int, port: int, boot_index: int) -> dict[str, object]:
    device: dict[str, object] = {
        "id": f"dev-disk{index}",
        "drive": f"disk{index}",
        "serial": disk.serial_number,
        "logical_block_size": disk.logical_sector_bytes,
        "physical_block_size": disk.logical_sector_bytes,
        "bootindex": boot_index,
    }
    if disk.wwn is not None:
        device["wwn"] = int(disk.wwn, 16)
        # SBC and ACS: 1 means that nothing rotates.
        device["rotation_rate"] = 7200 if disk.rotational else 1
    if disk.bus == "nvme":
        return device | {"driver": "nvme"}
    if disk.bus == "virtio":
        return device | {"driver": "virtio-blk-pci"}
    if disk.bus == "scsi":
        return device | {"driver": "scsi-hd", "bus": "scsi.0", "scsi-id": port}
    return device | {"driver": "ide-hd", "bus": f"ide.{port}"}
