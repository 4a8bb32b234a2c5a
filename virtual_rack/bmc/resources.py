# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The Redfish resources of a BMC, one small function a resource, entered in `TABLE`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, get_args

from virtual_rack.bmc import state
from virtual_rack.bmc.messages import RedfishError
from virtual_rack.bmc.redfish import (
    Context,
    JsonObject,
    Outcome,
    Table,
    everybody,
    privilege,
)
from virtual_rack.bmc.state import Account, Bmc, Persistence, PowerAction, Role, Session
from virtual_rack.machine import BootDevice, Disk, DiskBus, FirmwareMode

TABLE = Table()

ROOT = "/redfish/v1"
SYSTEMS = f"{ROOT}/Systems"
MANAGERS = f"{ROOT}/Managers"
CHASSIS = f"{ROOT}/Chassis"
SESSIONS = f"{ROOT}/SessionService/Sessions"
ACCOUNTS = f"{ROOT}/AccountService/Accounts"
ROLES = f"{ROOT}/AccountService/Roles"

RESET_TYPES: dict[str, PowerAction] = {
    "On": PowerAction.ON,
    "ForceOn": PowerAction.ON,
    "ForceOff": PowerAction.FORCE_OFF,
    "GracefulShutdown": PowerAction.GRACEFUL_OFF,
    "GracefulRestart": PowerAction.GRACEFUL_RESTART,
    "ForceRestart": PowerAction.RESET,
    "PowerCycle": PowerAction.CYCLE,
    "PushPowerButton": PowerAction.PUSH_BUTTON,
}
BOOT_TARGETS: dict[str, BootDevice | None] = {"None": None, "Pxe": "pxe", "Hdd": "disk"}
BOOT_ENABLED: dict[str, Persistence] = {
    "Disabled": "disabled",
    "Once": "once",
    "Continuous": "continuous",
}
BOOT_MODES: dict[str, FirmwareMode] = {"UEFI": "uefi", "Legacy": "bios"}
# What each bus is called in Drive.Protocol; virtio has no name of its own there.
DRIVE_PROTOCOLS: dict[DiskBus, str] = {
    "nvme": "NVMe",
    "sata": "SATA",
    "scsi": "SAS",
    "virtio": "OEM",
}
HEALTHY = {"State": "Enabled", "Health": "OK"}


def link(path: str) -> JsonObject:
    return {"@odata.id": path}


def collection(name: str, paths: Iterable[str]) -> JsonObject:
    members = [link(path) for path in paths]
    return {"Name": name, "Members@odata.count": len(members), "Members": members}


def _name_of(value: Any, names: dict[str, Any]) -> str:
    return next(name for name, meaning in names.items() if meaning == value)


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


# The service itself


@TABLE.resource("/redfish", may_read=everybody)
def versions(_context: Context) -> JsonObject:
    return {"v1": f"{ROOT}/"}


@TABLE.resource(ROOT, "ServiceRoot.v1_16_0.ServiceRoot", may_read=everybody)
def service_root(context: Context) -> JsonObject:
    return {
        "Id": "RootService",
        "Name": "Root Service",
        "RedfishVersion": "1.20.0",
        "UUID": context.bmc.uuid,
        "Vendor": state.MANUFACTURER,
        "Product": state.MODEL,
        "ProtocolFeaturesSupported": {
            "FilterQuery": False,
            "SelectQuery": False,
            "OnlyMemberQuery": False,
            "ExcerptQuery": False,
            "ExpandQuery": {
                "ExpandAll": False,
                "Levels": False,
                "Links": False,
                "NoLinks": False,
            },
        },
        "Systems": link(SYSTEMS),
        "Chassis": link(CHASSIS),
        "Managers": link(MANAGERS),
        "SessionService": link(f"{ROOT}/SessionService"),
        "AccountService": link(f"{ROOT}/AccountService"),
        "Links": {"Sessions": link(SESSIONS)},
    }


@TABLE.resource(f"{ROOT}/odata", may_read=everybody)
def odata(context: Context) -> JsonObject:
    names = ("Systems", "Chassis", "Managers", "SessionService", "AccountService")
    root = service_root(context)
    values = [{"name": "Service", "kind": "Singleton", "url": f"{ROOT}/"}]
    values += [
        {"name": name, "kind": "Singleton", "url": root[name]["@odata.id"]} for name in names
    ]
    values.append({"name": "Sessions", "kind": "Singleton", "url": SESSIONS})
    return {"@odata.context": f"{ROOT}/$metadata", "value": values}


@TABLE.resource(f"{ROOT}/$metadata", may_read=everybody)
def metadata(_context: Context) -> str:
    """The CSDL document that names every schema in use (DSP0266, "Service metadata")."""
    namespaces: dict[str, set[str]] = {"RedfishExtensions.v1_0_0": {"RedfishExtensions.v1_0_0"}}
    namespaces["Resource"] = {"Resource", "Resource.v1_0_0"}
    namespaces["Message"] = {"Message", "Message.v1_1_2"}
    for row in TABLE.rows.values():
        if row.schema:
            namespace = row.schema.rpartition(".")[0]
            name = namespace.partition(".")[0]
            namespaces.setdefault(name, {name}).add(namespace)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<edmx:Edmx xmlns:edmx="http://docs.oasis-open.org/odata/ns/edmx" Version="4.0">',
    ]
    for name, included in sorted(namespaces.items()):
        file = "RedfishExtensions" if name.startswith("RedfishExtensions") else name
        lines.append(f'<edmx:Reference Uri="http://redfish.dmtf.org/schemas/v1/{file}_v1.xml">')
        for namespace in sorted(included):
            alias = ' Alias="Redfish"' if file == "RedfishExtensions" else ""
            lines.append(f'<edmx:Include Namespace="{namespace}"{alias}/>')
        lines.append("</edmx:Reference>")
    lines += [
        "<edmx:DataServices>",
        '<Schema xmlns="http://docs.oasis-open.org/odata/ns/edm" Namespace="Service">',
        '<EntityContainer Name="Service" Extends="ServiceRoot.v1_16_0.ServiceContainer"/>',
        "</Schema>",
        "</edmx:DataServices>",
        "</edmx:Edmx>",
    ]
    return "\n".join(lines) + "\n"


# Sessions


@TABLE.resource(f"{ROOT}/SessionService", "SessionService.v1_1_8.SessionService")
def session_service(context: Context) -> JsonObject:
    return {
        "Id": "SessionService",
        "Name": "Session Service",
        "Status": HEALTHY,
        "ServiceEnabled": True,
        "SessionTimeout": max(30, int(context.bmc.options.session_timeout_seconds)),
        "Sessions": link(SESSIONS),
    }


@TABLE.resource(SESSIONS, "SessionCollection.SessionCollection")
def session_collection(context: Context) -> JsonObject:
    return collection("Sessions", (f"{SESSIONS}/{entry.id}" for entry in context.bmc.sessions()))


def _session(session: Session) -> JsonObject:
    return {
        "Id": session.id,
        "Name": f"Session {session.id}",
        "UserName": session.account.username,
        "SessionType": "Redfish",
        "CreatedTime": _timestamp(session.created_at),
        "ClientOriginIPAddress": session.client.rpartition(":")[0],
    }


def _session_of(context: Context) -> Session | None:
    sessions = context.bmc.sessions()
    return next((entry for entry in sessions if entry.id == context.ids["session"]), None)


def _own_session(context: Context) -> bool:
    if context.has("ConfigureManager"):
        return True
    session = _session_of(context)
    return session is None or session.account == context.account


@TABLE.resource(f"{SESSIONS}/{{session}}", "Session.v1_5_0.Session", may_read=_own_session)
def session(context: Context) -> JsonObject | None:
    found = _session_of(context)
    return _session(found) if found else None


@TABLE.operation("POST", SESSIONS, everybody)
@TABLE.operation("POST", f"{SESSIONS}/Members", everybody)
def open_session(context: Context) -> Outcome:
    for name in ("UserName", "Password"):
        if name not in context.body:
            raise RedfishError("PropertyMissing", name, related=f"/{name}")
        if not isinstance(context.body[name], str):
            raise RedfishError("PropertyValueTypeError", "***", name, related=f"/{name}")
    account = context.bmc.authenticate(context.body["UserName"], context.body["Password"])
    if account is None:
        raise RedfishError("ResourceAtUriUnauthorized", SESSIONS, "Invalid username or password")
    try:
        opened = context.bmc.open_session(account, context.client)
    except state.SessionLimitError:
        raise RedfishError("SessionLimitExceeded") from None
    path = f"{SESSIONS}/{opened.id}"
    head = {"@odata.id": path, "@odata.type": "#Session.v1_5_0.Session"}
    return Outcome(
        effect="session: opened",
        status=HTTPStatus.CREATED,
        headers={"Location": path, "X-Auth-Token": opened.token},
        body=head | _session(opened),
        session=opened,
    )


@TABLE.operation("DELETE", f"{SESSIONS}/{{session}}", _own_session)
def close_session(context: Context) -> Outcome:
    if not context.bmc.close_session(context.ids["session"]):
        raise RedfishError("ResourceMissingAtURI", f"{SESSIONS}/{context.ids['session']}")
    return Outcome(effect="session: closed")


# Accounts


@TABLE.resource(f"{ROOT}/AccountService", "AccountService.v1_13_0.AccountService")
def account_service(_context: Context) -> JsonObject:
    return {
        "Id": "AccountService",
        "Name": "Account Service",
        "Status": HEALTHY,
        "ServiceEnabled": True,
        # The limits of IPMI (22.29, 22.30), which shares the accounts.
        "MinPasswordLength": 1,
        "MaxPasswordLength": 20,
        "Accounts": link(ACCOUNTS),
        "Roles": link(ROLES),
    }


@TABLE.resource(ACCOUNTS, "ManagerAccountCollection.ManagerAccountCollection")
def account_collection(context: Context) -> JsonObject:
    visible = (entry for entry in context.bmc.accounts if _may_see_account(context, entry))
    return collection("Accounts", (f"{ACCOUNTS}/{entry.id}" for entry in visible))


def _may_see_account(context: Context, account: Account) -> bool:
    return context.has("ConfigureUsers", "ConfigureManager") or account == context.account


def _account_of(context: Context) -> Account | None:
    wanted = context.ids["account"]
    return next((entry for entry in context.bmc.accounts if str(entry.id) == wanted), None)


def _may_read_account(context: Context) -> bool:
    account = _account_of(context)
    return account is None or _may_see_account(context, account)


@TABLE.resource(
    f"{ACCOUNTS}/{{account}}", "ManagerAccount.v1_10_0.ManagerAccount", may_read=_may_read_account
)
def account(context: Context) -> JsonObject | None:
    found = _account_of(context)
    if found is None:
        return None
    return {
        "Id": str(found.id),
        "Name": f"Account {found.username}",
        "UserName": found.username,
        "Password": None,
        "RoleId": found.role.value,
        "Enabled": True,
        "Locked": False,
        "AccountTypes": ["Redfish", "IPMI"],
        "Links": {"Role": link(f"{ROLES}/{found.role.value}")},
    }


@TABLE.resource(ROLES, "RoleCollection.RoleCollection")
def role_collection(_context: Context) -> JsonObject:
    return collection("Roles", (f"{ROLES}/{role.value}" for role in Role))


@TABLE.resource(f"{ROLES}/{{role}}", "Role.v1_3_1.Role")
def role(context: Context) -> JsonObject | None:
    found = next((entry for entry in Role if entry.value == context.ids["role"]), None)
    if found is None:
        return None
    return {
        "Id": found.value,
        "Name": f"{found.value} role",
        "RoleId": found.value,
        "IsPredefined": True,
        "AssignedPrivileges": sorted(found.privileges),
        "OemPrivileges": [],
    }


# The system


@TABLE.resource(SYSTEMS, "ComputerSystemCollection.ComputerSystemCollection")
def system_collection(context: Context) -> JsonObject:
    return collection("Systems", [f"{SYSTEMS}/{context.bmc.system_id}"])


def _is_system(context: Context) -> bool:
    return context.ids["system"] == context.bmc.system_id


def _redfish_power(bmc: Bmc) -> str:
    return "On" if bmc.power_state() == "on" else "Off"


def _boot(bmc: Bmc) -> JsonObject:
    settings = bmc.boot_settings()
    return {
        "BootSourceOverrideEnabled": _name_of(settings.persistence, BOOT_ENABLED),
        "BootSourceOverrideEnabled@Redfish.AllowableValues": list(BOOT_ENABLED),
        "BootSourceOverrideTarget": _name_of(settings.device, BOOT_TARGETS),
        "BootSourceOverrideTarget@Redfish.AllowableValues": list(BOOT_TARGETS),
        "BootSourceOverrideMode": _name_of(settings.mode, BOOT_MODES),
        "BootSourceOverrideMode@Redfish.AllowableValues": list(BOOT_MODES),
    }


@TABLE.resource(f"{SYSTEMS}/{{system}}", "ComputerSystem.v1_20_0.ComputerSystem")
def system(context: Context) -> JsonObject | None:
    if not _is_system(context):
        return None
    bmc = context.bmc
    hardware = bmc.hardware
    path = f"{SYSTEMS}/{bmc.system_id}"
    body: JsonObject = {
        "Id": bmc.system_id,
        "Name": "System",
        "SystemType": "Physical",
        "HostName": None,
        "AssetTag": None,
        "Manufacturer": hardware.manufacturer,
        "Model": hardware.model,
        "SKU": hardware.sku,
        "SerialNumber": hardware.serial_number,
        "UUID": hardware.uuid,
        "BiosVersion": hardware.firmware.version,
        "PowerState": _redfish_power(bmc),
        "Status": HEALTHY | {"HealthRollup": "OK"},
        "Boot": _boot(bmc),
        "ProcessorSummary": {
            "Count": hardware.cpu.sockets,
            "CoreCount": hardware.cpu.cores,
            "LogicalProcessorCount": hardware.cpu.threads,
            "Model": hardware.cpu.model,
        },
        "MemorySummary": {"TotalSystemMemoryGiB": hardware.memory_bytes / 2**30},
        "Processors": link(f"{path}/Processors"),
        "Memory": link(f"{path}/Memory"),
        "EthernetInterfaces": link(f"{path}/EthernetInterfaces"),
        "Storage": link(f"{path}/Storage"),
        "SimpleStorage": link(f"{path}/SimpleStorage"),
        "Links": {
            "Chassis": [link(f"{CHASSIS}/{bmc.chassis_id}")],
            "ManagedBy": [link(f"{MANAGERS}/{bmc.manager_id}")],
        },
        "Actions": {
            "#ComputerSystem.Reset": {
                "target": f"{path}/Actions/ComputerSystem.Reset",
                "ResetType@Redfish.AllowableValues": list(RESET_TYPES),
            }
        },
    }
    if hardware.firmware.mode == "uefi":
        body["SecureBoot"] = link(f"{path}/SecureBoot")
    return body


def _choice(value: Any, name: str, choices: dict[str, Any]) -> Any:
    """What a value of the body means; raises the error that names the property."""
    pointer = f"/Boot/{name}"
    if not isinstance(value, str):
        raise RedfishError("PropertyValueTypeError", str(value), f"Boot/{name}", related=pointer)
    if value not in choices:
        raise RedfishError("PropertyValueNotInList", value, f"Boot/{name}", related=pointer)
    return choices[value]


@TABLE.operation("PATCH", f"{SYSTEMS}/{{system}}", privilege("ConfigureComponents"))
def change_system(context: Context) -> Outcome:
    if not context.body:
        raise RedfishError("EmptyJSON")
    known = system(context) or {}
    for name in context.body:
        if name != "Boot":
            kind = "PropertyNotWritable" if name in known else "PropertyUnknown"
            raise RedfishError(kind, name, related=f"/{name}")
    wanted = context.body["Boot"]
    if not isinstance(wanted, dict):
        raise RedfishError("PropertyValueTypeError", str(wanted), "Boot", related="/Boot")
    settings = context.bmc.boot_settings()
    device, persistence, mode = settings.device, settings.persistence, settings.mode
    for name, value in wanted.items():
        if name == "BootSourceOverrideTarget":
            device = _choice(value, name, BOOT_TARGETS)
        elif name == "BootSourceOverrideEnabled":
            persistence = _choice(value, name, BOOT_ENABLED)
        elif name == "BootSourceOverrideMode":
            mode = _choice(value, name, BOOT_MODES)
        else:
            kind = "PropertyNotWritable" if name in known["Boot"] else "PropertyUnknown"
            raise RedfishError(kind, f"Boot/{name}", related=f"/Boot/{name}")
    return Outcome(effect=context.bmc.set_boot(device, persistence, mode))


@TABLE.operation(
    "POST",
    f"{SYSTEMS}/{{system}}/Actions/ComputerSystem.Reset",
    privilege("ConfigureComponents"),
)
def reset_system(context: Context) -> Outcome:
    action = "ComputerSystem.Reset"
    if not _is_system(context):
        raise RedfishError("ResourceMissingAtURI", f"{SYSTEMS}/{context.ids['system']}")
    for name in context.body:
        if name != "ResetType":
            raise RedfishError("ActionParameterUnknown", action, name, related=f"/{name}")
    if "ResetType" not in context.body:
        raise RedfishError("ActionParameterMissing", action, "ResetType", related="/ResetType")
    wanted = context.body["ResetType"]
    if not isinstance(wanted, str):
        raise RedfishError(
            "ActionParameterValueTypeError", str(wanted), "ResetType", action, related="/ResetType"
        )
    if wanted not in RESET_TYPES:
        raise RedfishError(
            "ActionParameterValueNotInList", wanted, "ResetType", action, related="/ResetType"
        )
    return Outcome(effect=context.bmc.power(RESET_TYPES[wanted]))


@TABLE.resource(f"{SYSTEMS}/{{system}}/SecureBoot", "SecureBoot.v1_1_0.SecureBoot")
def secure_boot(context: Context) -> JsonObject | None:
    firmware = context.bmc.hardware.firmware
    if not _is_system(context) or firmware.mode != "uefi":
        return None
    state_now = "Enabled" if firmware.secure_boot_enabled else "Disabled"
    return {
        "Id": "SecureBoot",
        "Name": "UEFI Secure Boot",
        "SecureBootEnable": firmware.secure_boot_enabled,
        "SecureBootCurrentBoot": state_now,
        # Keys are enrolled exactly where Secure Boot can be enforced.
        "SecureBootMode": "UserMode" if firmware.secure_boot_enabled else "SetupMode",
    }


@TABLE.resource(
    f"{SYSTEMS}/{{system}}/EthernetInterfaces",
    "EthernetInterfaceCollection.EthernetInterfaceCollection",
)
def nic_collection(context: Context) -> JsonObject | None:
    if not _is_system(context):
        return None
    path = f"{SYSTEMS}/{context.bmc.system_id}/EthernetInterfaces"
    nics = context.bmc.hardware.nics
    return collection("Ethernet Interfaces", (f"{path}/{nic.name}" for nic in nics))


@TABLE.resource(
    f"{SYSTEMS}/{{system}}/EthernetInterfaces/{{nic}}",
    "EthernetInterface.v1_9_0.EthernetInterface",
)
def nic(context: Context) -> JsonObject | None:
    nics = context.bmc.hardware.nics
    found = next((entry for entry in nics if entry.name == context.ids["nic"]), None)
    if not _is_system(context) or found is None:
        return None
    return {
        "Id": found.name,
        "Name": f"Ethernet interface {found.name}",
        "Status": HEALTHY,
        "InterfaceEnabled": True,
        "MACAddress": found.mac.upper(),
        "PermanentMACAddress": found.mac.upper(),
        "SpeedMbps": found.speed_mbps,
        "FullDuplex": True,
        # A port without power has no carrier.
        "LinkStatus": "LinkUp" if context.bmc.power_state() == "on" else "LinkDown",
    }


@TABLE.resource(f"{SYSTEMS}/{{system}}/Processors", "ProcessorCollection.ProcessorCollection")
def processor_collection(context: Context) -> JsonObject | None:
    if not _is_system(context):
        return None
    path = f"{SYSTEMS}/{context.bmc.system_id}/Processors"
    sockets = context.bmc.hardware.cpu.sockets
    return collection("Processors", (f"{path}/CPU{number}" for number in range(sockets)))


@TABLE.resource(f"{SYSTEMS}/{{system}}/Processors/{{processor}}", "Processor.v1_18_0.Processor")
def processor(context: Context) -> JsonObject | None:
    cpu = context.bmc.hardware.cpu
    name = context.ids["processor"]
    if not _is_system(context) or name not in [f"CPU{number}" for number in range(cpu.sockets)]:
        return None
    return {
        "Id": name,
        "Name": f"Processor {name}",
        "Socket": name,
        "ProcessorType": "CPU",
        "ProcessorArchitecture": "ARM" if cpu.architecture == "aarch64" else "x86",
        "InstructionSet": "ARM-A64" if cpu.architecture == "aarch64" else "x86-64",
        "Model": cpu.model,
        "TotalCores": cpu.cores // cpu.sockets,
        "TotalThreads": cpu.threads // cpu.sockets,
        "Status": HEALTHY,
    }


@TABLE.resource(f"{SYSTEMS}/{{system}}/Memory", "MemoryCollection.MemoryCollection")
def memory_collection(context: Context) -> JsonObject | None:
    if not _is_system(context):
        return None
    path = f"{SYSTEMS}/{context.bmc.system_id}/Memory"
    return collection("Memory", [f"{path}/DIMM0"])


@TABLE.resource(f"{SYSTEMS}/{{system}}/Memory/DIMM0", "Memory.v1_17_0.Memory")
def memory(context: Context) -> JsonObject | None:
    if not _is_system(context):
        return None
    return {
        "Id": "DIMM0",
        "Name": "DIMM 0",
        "MemoryType": "DRAM",
        "CapacityMiB": context.bmc.hardware.memory_bytes // 2**20,
        "Status": HEALTHY,
    }


# Disks: one storage controller a bus


def _buses(context: Context) -> list[DiskBus]:
    present = {disk.bus for disk in context.bmc.hardware.disks}
    return [bus for bus in get_args(DiskBus) if bus in present]


def _disks_of(context: Context) -> list[tuple[int, Disk]] | None:
    """The disks of the bus that the address names, each with its number on that bus."""
    bus = context.ids["bus"]
    if not _is_system(context) or bus not in _buses(context):
        return None
    return list(enumerate(disk for disk in context.bmc.hardware.disks if disk.bus == bus))


@TABLE.resource(f"{SYSTEMS}/{{system}}/Storage", "StorageCollection.StorageCollection")
def storage_collection(context: Context) -> JsonObject | None:
    if not _is_system(context):
        return None
    path = f"{SYSTEMS}/{context.bmc.system_id}/Storage"
    return collection("Storage", (f"{path}/{bus}" for bus in _buses(context)))


@TABLE.resource(f"{SYSTEMS}/{{system}}/Storage/{{bus}}", "Storage.v1_15_0.Storage")
def storage(context: Context) -> JsonObject | None:
    disks = _disks_of(context)
    if disks is None:
        return None
    bus = context.ids["bus"]
    path = f"{SYSTEMS}/{context.bmc.system_id}/Storage/{bus}"
    return {
        "Id": bus,
        "Name": f"{bus} storage",
        "Status": HEALTHY,
        "Controllers": link(f"{path}/Controllers"),
        "Drives": [link(f"{path}/Drives/{number}") for number, _ in disks],
        "Drives@odata.count": len(disks),
    }


@TABLE.resource(
    f"{SYSTEMS}/{{system}}/Storage/{{bus}}/Controllers",
    "StorageControllerCollection.StorageControllerCollection",
)
def controller_collection(context: Context) -> JsonObject | None:
    if _disks_of(context) is None:
        return None
    bus = context.ids["bus"]
    path = f"{SYSTEMS}/{context.bmc.system_id}/Storage/{bus}/Controllers"
    return collection(f"{bus} controllers", [f"{path}/0"])


@TABLE.resource(
    f"{SYSTEMS}/{{system}}/Storage/{{bus}}/Controllers/0",
    "StorageController.v1_7_0.StorageController",
)
def controller(context: Context) -> JsonObject | None:
    disks = _disks_of(context)
    if disks is None:
        return None
    return {
        "Id": "0",
        "Name": f"{context.ids['bus']} controller",
        "Status": HEALTHY,
        "Manufacturer": "QEMU",
        "SupportedDeviceProtocols": sorted({DRIVE_PROTOCOLS[disk.bus] for _, disk in disks}),
    }


@TABLE.resource(f"{SYSTEMS}/{{system}}/Storage/{{bus}}/Drives/{{drive}}", "Drive.v1_17_0.Drive")
def drive(context: Context) -> JsonObject | None:
    disks = _disks_of(context)
    disk = next((d for number, d in disks or () if str(number) == context.ids["drive"]), None)
    if disk is None:
        return None
    body: JsonObject = {
        "Id": context.ids["drive"],
        "Name": disk.name,
        "Status": HEALTHY,
        "CapacityBytes": disk.size_bytes,
        "BlockSizeBytes": disk.logical_sector_bytes,
        "MediaType": "HDD" if disk.rotational else "SSD",
        "Protocol": DRIVE_PROTOCOLS[disk.bus],
        "Model": disk.model or None,
        "SerialNumber": disk.serial_number,
        "Identifiers": [],
    }
    if disk.wwn:
        body["Identifiers"] = [
            {"DurableNameFormat": "NAA", "DurableName": disk.wwn.removeprefix("0x").upper()}
        ]
    return body


@TABLE.resource(
    f"{SYSTEMS}/{{system}}/SimpleStorage", "SimpleStorageCollection.SimpleStorageCollection"
)
def simple_storage_collection(context: Context) -> JsonObject | None:
    if not _is_system(context):
        return None
    path = f"{SYSTEMS}/{context.bmc.system_id}/SimpleStorage"
    return collection("Simple Storage", (f"{path}/{bus}" for bus in _buses(context)))


@TABLE.resource(f"{SYSTEMS}/{{system}}/SimpleStorage/{{bus}}", "SimpleStorage.v1_3_1.SimpleStorage")
def simple_storage(context: Context) -> JsonObject | None:
    disks = _disks_of(context)
    if disks is None:
        return None
    return {
        "Id": context.ids["bus"],
        "Name": f"{context.ids['bus']} disks",
        "Status": HEALTHY,
        "Devices": [
            {
                "Name": disk.name,
                "Model": disk.model or None,
                "CapacityBytes": disk.size_bytes,
                "Status": HEALTHY,
            }
            for _, disk in disks
        ],
    }


# The BMC itself and the box


@TABLE.resource(MANAGERS, "ManagerCollection.ManagerCollection")
def manager_collection(context: Context) -> JsonObject:
    return collection("Managers", [f"{MANAGERS}/{context.bmc.manager_id}"])


def _is_manager(context: Context) -> bool:
    return context.ids["manager"] == context.bmc.manager_id


@TABLE.resource(f"{MANAGERS}/{{manager}}", "Manager.v1_17_0.Manager")
def manager(context: Context) -> JsonObject | None:
    if not _is_manager(context):
        return None
    bmc = context.bmc
    path = f"{MANAGERS}/{bmc.manager_id}"
    return {
        "Id": bmc.manager_id,
        "Name": "BMC",
        "ManagerType": "BMC",
        "Manufacturer": state.MANUFACTURER,
        "Model": state.MODEL,
        "FirmwareVersion": state.FIRMWARE_VERSION,
        "UUID": bmc.uuid,
        "ServiceEntryPointUUID": bmc.uuid,
        "DateTime": _timestamp(datetime.now(UTC)),
        "DateTimeLocalOffset": "+00:00",
        "PowerState": "On",
        "Status": HEALTHY,
        "EthernetInterfaces": link(f"{path}/EthernetInterfaces"),
        "NetworkProtocol": link(f"{path}/NetworkProtocol"),
        "Links": {
            "ManagerForServers": [link(f"{SYSTEMS}/{bmc.system_id}")],
            "ManagerForChassis": [link(f"{CHASSIS}/{bmc.chassis_id}")],
        },
    }


@TABLE.resource(
    f"{MANAGERS}/{{manager}}/EthernetInterfaces",
    "EthernetInterfaceCollection.EthernetInterfaceCollection",
)
def manager_nic_collection(context: Context) -> JsonObject | None:
    if not _is_manager(context):
        return None
    path = f"{MANAGERS}/{context.bmc.manager_id}/EthernetInterfaces"
    return collection("Ethernet Interfaces of the BMC", [f"{path}/eth0"])


@TABLE.resource(
    f"{MANAGERS}/{{manager}}/EthernetInterfaces/eth0",
    "EthernetInterface.v1_9_0.EthernetInterface",
)
def manager_nic(context: Context) -> JsonObject | None:
    if not _is_manager(context):
        return None
    endpoint = context.bmc.endpoint
    return {
        "Id": "eth0",
        "Name": "Ethernet interface of the BMC",
        "Status": HEALTHY,
        "InterfaceEnabled": True,
        "MACAddress": context.bmc.mac.upper(),
        "PermanentMACAddress": context.bmc.mac.upper(),
        "LinkStatus": "LinkUp",
        "SpeedMbps": 1000,
        "IPv4Addresses": [
            {
                "Address": endpoint.address,
                "SubnetMask": endpoint.netmask,
                "AddressOrigin": "Static",
                "Gateway": None,
            }
        ],
    }


@TABLE.resource(
    f"{MANAGERS}/{{manager}}/NetworkProtocol",
    "ManagerNetworkProtocol.v1_9_0.ManagerNetworkProtocol",
)
def network_protocol(context: Context) -> JsonObject | None:
    if not _is_manager(context):
        return None
    endpoint = context.bmc.endpoint
    return {
        "Id": "NetworkProtocol",
        "Name": "Network protocols of the BMC",
        "Status": HEALTHY,
        "HostName": context.bmc.name,
        "HTTP": {"ProtocolEnabled": False, "Port": None},
        "HTTPS": {"ProtocolEnabled": True, "Port": endpoint.redfish_port},
        "IPMI": {
            "ProtocolEnabled": endpoint.ipmi_port is not None,
            "Port": endpoint.ipmi_port,
        },
    }


@TABLE.resource(CHASSIS, "ChassisCollection.ChassisCollection")
def chassis_collection(context: Context) -> JsonObject:
    return collection("Chassis", [f"{CHASSIS}/{context.bmc.chassis_id}"])


@TABLE.resource(f"{CHASSIS}/{{chassis}}", "Chassis.v1_23_0.Chassis")
def chassis(context: Context) -> JsonObject | None:
    bmc = context.bmc
    if context.ids["chassis"] != bmc.chassis_id:
        return None
    return {
        "Id": bmc.chassis_id,
        "Name": "Chassis",
        "ChassisType": "RackMount",
        "Manufacturer": bmc.hardware.manufacturer,
        "Model": bmc.hardware.model,
        "SKU": bmc.hardware.sku,
        "SerialNumber": bmc.hardware.serial_number,
        "PowerState": _redfish_power(bmc),
        "Status": HEALTHY,
        "Links": {
            "ComputerSystems": [link(f"{SYSTEMS}/{bmc.system_id}")],
            "ManagedBy": [link(f"{MANAGERS}/{bmc.manager_id}")],
        },
    }
