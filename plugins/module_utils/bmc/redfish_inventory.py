# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a Redfish service tells of a machine, in the shape of the inventory.

It reads JSON and not sushy's classes: those give up a whole collection when one member answers an
error, leave out fields that we need (identifiers of drives, link status), and read one member at a
time where the service could expand them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..deadline import Deadline
from ..fault import Fault
from .interfaces import Inspection
from .inventory import empty_inventory, mac, text, uuid, whole, wwn
from .patience import patiently
from .redfish_connector import RedfishConnector

Json = dict[str, Any]

# A 503 for one sub-resource must not hold up the rest (infra-controller 6412).
_TRIES = 3
_LINK_UP = {"LinkUp": True, "LinkDown": False, "NoLink": False}
_ARCHITECTURES = {
    "x86-64": "x86_64",
    "x86": "i686",
    "ARM-A64": "aarch64",
    "ARM-A32": "armv7l",
    "PowerISA": "ppc64le",
    "RV64": "riscv64",
}
_BUSES = {
    "NVMe": "nvme",
    "NVMeOverFabrics": "nvme",
    "PCIe": "nvme",
    "SATA": "sata",
    "AHCI": "sata",
    "SAS": "sas",
    "USB": "usb",
    "eMMC": "mmc",
}
_BOOT_MODES = {"UEFI": "uefi", "Legacy": "bios"}


def inspect_system(
    root: Json, system: Json, connector: RedfishConnector, deadline: Deadline
) -> Inspection:
    """Read everything below ``system``; a part that cannot be read is unknown, and named."""
    reader = _Reader(connector, deadline, _can_expand(root))
    processors = reader.members(system, "Processors")
    manager = reader.first_linked(system, "ManagedBy") or reader.first_member(root, "Managers")
    inventory = empty_inventory("out_of_band")
    inventory["system"] = {
        "uuid": uuid(system.get("UUID")),
        "serial_number": text(system.get("SerialNumber")),
        "manufacturer": text(system.get("Manufacturer")),
        "model": text(system.get("Model")),
        "sku": text(system.get("SKU")),
    }
    inventory["firmware"].update(
        version=text(system.get("BiosVersion")),
        boot_mode=_BOOT_MODES.get(str((system.get("Boot") or {}).get("BootSourceOverrideMode"))),
        secure_boot=secure_boot_of(reader.linked(system, "SecureBoot")),
    )
    inventory["bmc"] = bmc_of(manager)
    inventory["cpu"] = cpu_of(system.get("ProcessorSummary") or {}, processors)
    inventory["gpus"] = gpus_of(processors)
    inventory["memory"] = memory_of(system.get("MemorySummary") or {})
    inventory["nics"] = nics_of(reader.members(system, "EthernetInterfaces"))
    inventory["disks"] = _disks(reader, system)
    return Inspection(inventory, reader.incomplete)


def secure_boot_of(resource: Json | None) -> Json:
    """``enabled`` is what the next boot will do."""
    if resource is None:
        return {"supported": None, "enabled": None}
    enabled = resource.get("SecureBootEnable")
    if not isinstance(enabled, bool):
        current = resource.get("SecureBootCurrentBoot")
        enabled = {"Enabled": True, "Disabled": False}.get(str(current))
    return {"supported": enabled is not None, "enabled": enabled}


def bmc_of(manager: Json | None) -> Json | None:
    """The manager of the system."""
    if manager is None:
        return None
    return {
        "model": text(manager.get("Model")),
        "firmware_version": text(manager.get("FirmwareVersion")),
        "uuid": uuid(manager.get("UUID")) or uuid(manager.get("ServiceEntryPointUUID")),
    }


def cpu_of(summary: Json, processors: list[Json] | None) -> Json:
    """From the processors themselves; from the system's summary where they say nothing."""
    cpus = [
        each
        for each in _present(processors)
        if each.get("ProcessorType", "CPU") == "CPU" and isinstance(each, dict)
    ]
    first = cpus[0] if cpus else {}
    architecture = first.get("InstructionSet") or first.get("ProcessorArchitecture")
    return {
        "sockets": len(cpus) or whole(summary.get("Count")),
        "cores": _total(cpus, "TotalCores") or whole(summary.get("CoreCount")),
        "threads": _total(cpus, "TotalThreads") or whole(summary.get("LogicalProcessorCount")),
        "model": text(first.get("Model")) or text(summary.get("Model")),
        "architecture": _ARCHITECTURES.get(str(architecture)),
    }


def gpus_of(processors: list[Json] | None) -> list[Json] | None:
    """Processors of type GPU; Redfish does not say where on the PCI bus they are."""
    if processors is None:
        return None
    return [
        {
            "vendor": text(each.get("Manufacturer")),
            "model": text(each.get("Model")),
            "pci_address": None,
        }
        for each in _present(processors)
        if each.get("ProcessorType") == "GPU"
    ]


def memory_of(summary: Json) -> Json:
    """TotalSystemMemoryGiB may have a fraction."""
    gibibytes = summary.get("TotalSystemMemoryGiB")
    if not isinstance(gibibytes, int | float) or gibibytes <= 0:
        return {"size_bytes": None}
    return {"size_bytes": round(gibibytes * 2**30)}


def nics_of(interfaces: list[Json] | None) -> list[Json] | None:
    """Physical interfaces; one without a MAC is listed with None for it."""
    if interfaces is None:
        return None
    nics = []
    for each in _present(interfaces):
        if each.get("EthernetInterfaceType") == "Virtual":
            continue
        address = mac(each.get("MACAddress"))
        permanent = mac(each.get("PermanentMACAddress"))
        nics.append(
            {
                "name": text(each.get("Id")) or text(each.get("Name")),
                "mac": address or permanent,
                "permanent_mac": permanent,
                "link_up": _LINK_UP.get(str(each.get("LinkStatus"))),
                "speed_mbps": whole(each.get("SpeedMbps")) or None,
                "pxe_capable": None,
                "driver": None,
            }
        )
    return nics


def disk_of(drive: Json) -> Json:
    """One Drive. Names and paths are given by an operating system, so they are unknown here."""
    identifiers = {
        str(each.get("DurableNameFormat")): each.get("DurableName")
        for each in drive.get("Identifiers") or []
        if isinstance(each, dict)
    }
    extended = identifiers.get("EUI")
    if isinstance(extended, str) and not extended.lower().startswith("eui."):
        extended = f"eui.{extended}"
    media = str(drive.get("MediaType"))
    block = whole(drive.get("BlockSizeBytes"))
    return {
        "name": text(drive.get("Id")) or text(drive.get("Name")),
        "path": None,
        "by_id": None,
        "by_path": None,
        "model": text(drive.get("Model")),
        "serial_number": text(drive.get("SerialNumber")),
        "wwn": wwn(identifiers.get("NAA")) or wwn(extended),
        "size_bytes": whole(drive.get("CapacityBytes")),
        "bus": _BUSES.get(str(drive.get("Protocol"))),
        "rotational": {"HDD": True, "SMR": True, "SSD": False}.get(media),
        "read_only": None,
        "logical_sector_bytes": block,
        "physical_sector_bytes": None,
    }


def simple_disk_of(device: Json) -> Json:
    """One device of the older SimpleStorage."""
    return disk_of({**device, "Id": device.get("Name")})


def _disks(reader: _Reader, system: Json) -> list[Json] | None:
    """Drives of every Storage; where there is none, devices of SimpleStorage."""
    storages = reader.members(system, "Storage")
    if storages is not None:
        return [
            disk_of(drive)
            for storage in storages
            for drive in _present(reader.each(storage.get("Drives") or []))
        ]
    simple = reader.members(system, "SimpleStorage")
    if simple is None:
        return None
    return [
        simple_disk_of(device)
        for storage in simple
        for device in _present(storage.get("Devices") or [])
    ]


def _present(resources: Iterable[Json] | None) -> list[Json]:
    """Without those that say they are an empty slot."""
    return [
        each
        for each in resources or ()
        if (each.get("Status") or {}).get("State") not in ("Absent", "UnavailableOffline")
    ]


def _total(resources: list[Json], key: str) -> int | None:
    values = [whole(each.get(key)) for each in resources]
    return sum(value or 0 for value in values) or None


def _can_expand(root: Json) -> bool:
    expand = (root.get("ProtocolFeaturesSupported") or {}).get("ExpandQuery") or {}
    return bool(expand.get("Levels")) and bool(expand.get("NoLinks") or expand.get("ExpandAll"))


class _Reader:
    """Follows links; what cannot be read is None and noted in ``incomplete``."""

    def __init__(self, connector: RedfishConnector, deadline: Deadline, can_expand: bool) -> None:
        self._connector = connector
        self._deadline = deadline
        self._can_expand = can_expand
        self.incomplete: list[dict[str, str]] = []

    def linked(self, resource: Json, name: str) -> Json | None:
        """The resource that ``resource`` links as ``name``."""
        path = _id_of(resource.get(name))
        return self._read(path) if path else None

    def first_linked(self, resource: Json, name: str) -> Json | None:
        """The first of the list that ``resource`` links as ``Links.name``."""
        links = (resource.get("Links") or {}).get(name) or []
        path = _id_of(links[0]) if links else None
        return self._read(path) if path else None

    def first_member(self, resource: Json, name: str) -> Json | None:
        """The first member of the collection that ``resource`` links as ``name``."""
        members = self.members(resource, name)
        return members[0] if members else None

    def members(self, resource: Json, name: str) -> list[Json] | None:
        """All members of the collection that ``resource`` links as ``name``; None without it."""
        path = _id_of(resource.get(name))
        if not path:
            return None
        collection = self._read(f"{path}?$expand=.($levels=1)") if self._can_expand else None
        collection = collection or self._read(path)
        members: list[Json] = []
        while collection is not None:
            members += self.each(collection.get("Members") or [])
            following = collection.get("Members@odata.nextLink")
            if not following:
                return members
            collection = self._read(str(following))
        return members or None

    def each(self, references: list[Any]) -> list[Json]:
        """The resources behind ``references``; those that came expanded as they are."""
        resources = []
        for reference in references:
            if isinstance(reference, dict) and len(reference) > 1:
                resources.append(reference)
                continue
            path = _id_of(reference)
            resource = self._read(path) if path else None
            if resource is not None:
                resources.append(resource)
        return resources

    def _read(self, path: str) -> Json | None:
        attempt: Callable[[], Any] = lambda: self._connector.get(path).json()  # noqa: E731
        try:
            body = patiently(self._deadline, f"to read {path}", attempt, tries=_TRIES)
        except Fault as fault:
            if fault.code in ("DEADLINE_EXCEEDED", "BMC_AUTH_FAILED"):
                raise
            if fault.code != "BMC_RESOURCE_MISSING":
                self.incomplete.append({"resource": path, "reason": fault.message})
            return None
        return body if isinstance(body, dict) else None


def _id_of(reference: Any) -> str | None:
    value = reference.get("@odata.id") if isinstance(reference, dict) else None
    return value if isinstance(value, str) else None
