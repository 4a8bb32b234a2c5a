# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this machine is made of, in the shape that ``bmc_info`` returns too.

Everything is read from the kernel's files; nothing is started, and nothing is changed.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .bmc.inventory import mac, text, uuid
from .disks import read_disks
from .machine_files import MachineFiles

Json = dict[str, Any]

_DMI = "/sys/class/dmi/id"
_ARPHRD_ETHER = 1

# Display controllers of management processors draw the console and compute nothing.
_BMC_DISPLAYS = {"0x1a03": "ASPEED", "0x102b": "Matrox", "0x19e5": "Huawei"}
# PCI base classes: display controllers, and processing accelerators (AMD Instinct, Gaudi).
_GPU_CLASSES = ("0x03", "0x12")
_PCI_NAMES = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids")

# EFI_GLOBAL_VARIABLE (UEFI 2.10, 3.3); efivarfs puts four bytes of attributes before the value.
_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

# rtnetlink(7), linux/if_link.h
_RTM_GETLINK, _RTM_NEWLINK, _NLMSG_ERROR, _NLMSG_DONE = 18, 16, 2, 3
_NLM_F_REQUEST_DUMP = 0x301
_IFLA_IFNAME, _IFLA_PERM_ADDRESS = 3, 54


def read_inventory(files: MachineFiles | None = None) -> Json:
    """The inventory of the machine whose files are given, else of this one.

    ``{source, system, firmware, bmc, cpu, memory, nics, disks, gpus}``: unknown is null, none is
    an empty list.
    """
    permanent = read_permanent_addresses() if files is None else {}
    files = files or MachineFiles()
    return {
        "source": "in_band",
        "system": read_system(files),
        "firmware": _read_firmware(files),
        "bmc": None,
        "cpu": _read_cpu(files),
        "memory": {"size_bytes": _read_memory(files)},
        "nics": read_nics(files, permanent),
        "disks": [disk.identity() for disk in read_disks(files)],
        "gpus": _read_gpus(files),
    }


def read_system(files: MachineFiles | None = None) -> Json:
    """``{uuid, serial_number, manufacturer, model, sku}`` from SMBIOS."""
    files = files or MachineFiles()

    def value(name: str) -> str | None:
        return text(files.read_text(f"{_DMI}/{name}"))

    return {
        "uuid": uuid(files.read_text(f"{_DMI}/product_uuid")),
        "serial_number": value("product_serial"),
        "manufacturer": value("sys_vendor"),
        "model": value("product_name"),
        "sku": value("product_sku"),
    }


@dataclass(frozen=True)
class DmiStructure:
    """One structure of the SMBIOS table: its type and its formatted part, header included."""

    kind: int
    data: bytes


def parse_dmi(table: bytes) -> Iterator[DmiStructure]:
    """The structures of an SMBIOS table (DSP0134 6.1.2), up to the end or the first damage."""
    start = 0
    while start + 4 <= len(table):
        kind, length = table[start], table[start + 1]
        if length < 4 or start + length > len(table):
            return
        yield DmiStructure(kind, table[start : start + length])
        # The strings of a structure end with an empty one, which is there even without any.
        end = table.find(b"\0\0", start + length)
        if kind == 127 or end < 0:
            return
        start = end + 2


def installed_memory_bytes(structures: Iterable[DmiStructure]) -> int | None:
    """The sum of all memory devices (SMBIOS type 17); None when none tells its size."""
    sizes = [_memory_device_bytes(item.data) for item in structures if item.kind == 17]
    return sum(sizes) or None


def parse_cpu_model(content: str | None) -> str | None:
    """The processor's name in the text of ``/proc/cpuinfo``."""
    found = re.search(r"^(?:model name|Model|cpu)\s*:\s*(\S.*)$", content or "", re.MULTILINE)
    return " ".join(found[1].split()) if found else None


def parse_memory_total(content: str | None) -> int | None:
    """``MemTotal`` of ``/proc/meminfo`` in bytes."""
    found = re.search(r"^MemTotal:\s*(\d+) kB$", content or "", re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def parse_permanent_addresses(messages: bytes) -> dict[str, str]:
    """Interface name to permanent MAC address in an answer to RTM_GETLINK."""
    addresses = {}
    for kind, payload in _netlink_messages(messages):
        if kind != _RTM_NEWLINK:
            continue
        attributes = _attributes(payload[16:])
        name = attributes.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode("utf-8", "replace")
        address = attributes.get(_IFLA_PERM_ADDRESS, b"")
        if name and len(address) == 6:
            addresses[name] = address.hex(":")
    return addresses


def read_permanent_addresses() -> dict[str, str]:
    """Interface name to permanent MAC address, from the kernel; empty when it does not tell."""
    request = struct.pack("=IHHII", 32, _RTM_GETLINK, _NLM_F_REQUEST_DUMP, 1, 0) + bytes(16)
    answer = b""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
            link.settimeout(5.0)
            link.send(request)
            while True:
                part = link.recv(1 << 18)
                answer += part
                kinds = [kind for kind, _payload in _netlink_messages(part)]
                if not kinds or _NLMSG_DONE in kinds or _NLMSG_ERROR in kinds:
                    break
    except OSError:
        return {}
    return parse_permanent_addresses(answer)


def read_nics(files: MachineFiles, permanent: Mapping[str, str]) -> list[Json]:
    """The Ethernet cards that are hardware.

    ``link_up`` is null while the interface is down, because then the card does not look.
    """
    nics = []
    for name in files.list("/sys/class/net"):
        base = f"/sys/class/net/{name}"
        if not files.exists(f"{base}/device") or files.read_int(f"{base}/type") != _ARPHRD_ETHER:
            continue
        carrier = files.read_int(f"{base}/carrier")
        speed = files.read_int(f"{base}/speed")
        nics.append(
            {
                "name": name,
                "mac": mac(files.read_text(f"{base}/address")),
                "permanent_mac": permanent.get(name),
                "link_up": None if carrier is None else carrier == 1,
                # -1, or the same as an unsigned number, is "unknown"
                "speed_mbps": speed if speed and 0 < speed < 1 << 31 else None,
                "pxe_capable": None,
                "driver": files.resolve(f"{base}/device/driver").rpartition("/")[2]
                if files.exists(f"{base}/device/driver")
                else None,
            }
        )
    return nics


def parse_pci_names(content: str, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Names out of ``pci.ids``: of vendors under ``(vendor, "")``, of devices under both numbers.

    ``wanted`` holds (vendor, device) as four hex digits each; only their names are looked for.
    """
    devices = set(wanted)
    vendors = {vendor for vendor, _device in devices}
    names: dict[tuple[str, str], str] = {}
    vendor = ""
    for line in content.splitlines():
        if line.startswith("C "):
            break  # from here on classes, in the same form
        number, _blank, name = line.strip().partition("  ")
        if line.startswith(("\t\t", "#")) or not name:
            continue
        if not line.startswith("\t"):
            vendor = number
            if vendor in vendors:
                names[vendor, ""] = name
        elif (vendor, number) in devices:
            names[vendor, number] = name
    return names


def _memory_device_bytes(data: bytes) -> int:
    """The size of a memory device (DSP0134 7.18); an empty or unknown one counts nothing."""
    if len(data) < 14:
        return 0
    (size,) = struct.unpack_from("<H", data, 12)
    if size in (0, 0xFFFF):
        return 0
    if size == 0x7FFF:
        return (int.from_bytes(data[28:32], "little") & 0x7FFFFFFF) << 20
    return int(size & 0x7FFF) << 10 if size & 0x8000 else int(size) << 20


def _read_memory(files: MachineFiles) -> int | None:
    """What is installed; failing that, what the kernel has, which firmware made smaller."""
    table = files.read_bytes("/sys/firmware/dmi/tables/DMI") or b""
    return installed_memory_bytes(parse_dmi(table)) or parse_memory_total(
        files.read_text("/proc/meminfo")
    )


def _read_firmware(files: MachineFiles) -> Json:
    efi = files.exists("/sys/firmware/efi")
    return {
        "vendor": text(files.read_text(f"{_DMI}/bios_vendor")),
        "version": text(files.read_text(f"{_DMI}/bios_version")),
        "boot_mode": "uefi" if efi else "bios",
        "secure_boot": _read_secure_boot(files, efi),
    }


def _read_secure_boot(files: MachineFiles, efi: bool) -> Json:
    if not efi:
        return {"supported": False, "enabled": False}
    if not files.list("/sys/firmware/efi/efivars"):
        return {"supported": None, "enabled": None}  # efivarfs is not mounted
    content = files.read_bytes(_SECURE_BOOT)
    if content is None:
        return {"supported": False, "enabled": False}
    return {"supported": True, "enabled": len(content) == 5 and content[4] == 1}


def _read_cpu(files: MachineFiles) -> Json:
    base = "/sys/devices/system/cpu"
    sockets, cores, threads = set(), set(), 0
    for name in files.list(base):
        if not re.fullmatch(r"cpu\d+", name):
            continue
        package = files.read_text(f"{base}/{name}/topology/physical_package_id")
        die = files.read_text(f"{base}/{name}/topology/die_id")
        core = files.read_text(f"{base}/{name}/topology/core_id")
        if package is None or core is None:
            continue  # possible, but not online
        threads += 1
        sockets.add(package)
        cores.add((package, die, core))
    return {
        "sockets": len(sockets) or None,
        "cores": len(cores) or None,
        "threads": threads or None,
        "model": parse_cpu_model(files.read_text("/proc/cpuinfo")),
        "architecture": files.read_text("/proc/sys/kernel/arch") or os.uname().machine,
    }


def _read_gpus(files: MachineFiles) -> list[Json]:
    base = "/sys/bus/pci/devices"
    found = []
    for address in files.list(base):
        kind = files.read_text(f"{base}/{address}/class") or ""
        vendor = files.read_text(f"{base}/{address}/vendor") or ""
        device = files.read_text(f"{base}/{address}/device") or ""
        if kind.startswith(_GPU_CLASSES) and vendor and vendor not in _BMC_DISPLAYS:
            found.append((address, vendor.removeprefix("0x"), device.removeprefix("0x")))
    if not found:
        return []
    tables = (files.read_bytes(name) for name in _PCI_NAMES)
    table = next((table for table in tables if table), b"").decode("utf-8", "replace")
    names = parse_pci_names(table, ((vendor, device) for _address, vendor, device in found))
    return [
        {
            "vendor": names.get((vendor, ""), f"0x{vendor}"),
            "model": names.get((vendor, device), f"0x{device}"),
            "pci_address": address,
        }
        for address, vendor, device in found
    ]


def _netlink_messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and payload of each message; a damaged length ends them."""
    start = 0
    while start + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, start)
        if length < 16 or start + length > len(data):
            return
        yield kind, data[start + 16 : start + length]
        start += -(-length // 4) * 4


def _attributes(data: bytes) -> dict[int, bytes]:
    attributes = {}
    start = 0
    while start + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, start)
        if length < 4 or start + length > len(data):
            break
        attributes[kind & 0x3FFF] = data[start + 4 : start + length]
        start += -(-length // 4) * 4
    return attributes
