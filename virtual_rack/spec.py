# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The description of a rack: read from YAML, checked, completed with defaults.

`docs/virtual-rack.md` holds the table of every key. An unknown key, a wrong type and two servers
that want the same address, MAC or serial number are errors that name the place
(`servers[1](beta).nics[0].mac`).
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import yaml

from virtual_rack.machine import DiskBus, FirmwareMode, NicModel

MIB = 1024 * 1024
# The AHCI controller of the emulated chipset has so many.
SATA_PORTS = 6
ServerKind = Literal["machine", "light"]
BmcProtocol = Literal["redfish", "ipmi"]
AccountRole = Literal["Administrator", "Operator", "ReadOnly"]
BootGroup = Literal["disk", "network"]
NetworkBoot = Literal["pxe", "http"]
LightFate = Literal["checkin", "silent"]

# Names become file names, certificate names and parts of kernel device names.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_INTERFACE = re.compile(r"[a-z][a-z0-9]{0,14}")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
# What the emulated disks pass on unshortened: NVMe and ATA hold 20 characters of a serial number.
_SERIAL_NUMBER = re.compile(r"[A-Za-z0-9._-]{1,20}")
_ADDRESS = ipaddress.IPv4Interface("10.77.0.1/16")
_ADDRESS6 = ipaddress.IPv6Interface("fd00:77::1/64")
# A fixed space, so that the same name has the same UUID in every rack that is ever started.
_UUID_NAMESPACE = uuid.UUID("6b0f6a1e-5b0a-5f0e-9d3c-7a1d5f2f8c11")


class SpecError(Exception):
    """The description cannot be used; the message names the place and what is wanted."""


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """The one network of the rack: its bridge, and the addresses of the computer on it."""

    bridge: str = "br0"
    address: ipaddress.IPv4Interface = _ADDRESS
    address6: ipaddress.IPv6Interface = _ADDRESS6


@dataclass(frozen=True, kw_only=True)
class AccountSpec:
    """An account of a BMC; `role` is the Redfish RoleId."""

    username: str
    password: str
    role: AccountRole = "Administrator"


@dataclass(frozen=True, kw_only=True)
class BmcSpec:
    """A BMC. `accounts[0]` is the administrator given as `username` and `password`."""

    address: ipaddress.IPv4Address
    protocols: tuple[BmcProtocol, ...] = ("redfish", "ipmi")
    accounts: tuple[AccountSpec, ...]
    redfish_port: int = 443
    ipmi_port: int = 623


@dataclass(frozen=True, kw_only=True)
class NicSpec:
    mac: str
    model: NicModel = "virtio"


@dataclass(frozen=True, kw_only=True)
class DiskSpec:
    """A disk; `wwn` is None on a bus that shows none (nvme, virtio)."""

    bus: DiskBus
    size_mib: int = 4096
    logical_sector_bytes: int = 512
    serial_number: str
    wwn: str | None = None
    read_only: bool = False
    rotational: bool = False

    @property
    def size_bytes(self) -> int:
        return self.size_mib * MIB


@dataclass(frozen=True, kw_only=True)
class LightSpec:
    """How a light machine behaves when it boots from the network."""

    boot_seconds: float = 1.0
    boot_server: str | None = None
    fate: LightFate = "checkin"


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """One server. `boot_order` is what its firmware is configured with when no override is set."""

    name: str
    kind: ServerKind = "machine"
    bmc: BmcSpec
    firmware: FirmwareMode = "uefi"
    secure_boot: bool = False
    cpus: int = 1
    memory_mib: int = 1024
    uuid: str
    serial_number: str
    manufacturer: str = "Barewright"
    model: str = "Virtual Rack Server"
    sku: str = "VR-1"
    boot_order: tuple[BootGroup, ...] = ("disk", "network")
    network_boot: NetworkBoot = "pxe"
    nics: tuple[NicSpec, ...] = ()
    disks: tuple[DiskSpec, ...] = ()
    light: LightSpec = dataclasses.field(default_factory=LightSpec)

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib * MIB


@dataclass(frozen=True, kw_only=True)
class RackSpec:
    name: str
    network: NetworkSpec = dataclasses.field(default_factory=NetworkSpec)
    servers: tuple[ServerSpec, ...] = ()

    def server(self, name: str) -> ServerSpec:
        """The server of that name.

        Raises:
            SpecError: there is none.
        """
        for server in self.servers:
            if server.name == name:
                return server
        known = ", ".join(server.name for server in self.servers) or "none"
        raise SpecError(f"no server is called {name!r}; the rack {self.name} has: {known}")

    def of_kind(self, kind: ServerKind) -> tuple[ServerSpec, ...]:
        return tuple(server for server in self.servers if server.kind == kind)


class _Reader:
    """One mapping of the document, read key by key; what was not read at the end is an error."""

    def __init__(self, value: object, place: str) -> None:
        if not isinstance(value, Mapping):
            raise SpecError(f"{place or 'the document'}: a mapping is wanted, found {value!r}")
        self._values: dict[object, object] = dict(value)
        self.place = place

    def where(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key

    def take(self, key: str) -> object:
        """The value of the key, or None; a key that is null counts as absent."""
        return self._values.pop(key, None)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.take(key)
        if value is None and default is not None:
            return default
        # An unquoted serial number of digits is a number to YAML.
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value:
            raise SpecError(f"{self.where(key)}: a text is wanted, found {value!r}")
        return value

    def matching(self, key: str, pattern: re.Pattern[str], wanted: str, default: str = "") -> str:
        value = self.text(key, default or None)
        if not pattern.fullmatch(value):
            raise SpecError(f"{self.where(key)}: {wanted} is wanted, found {value!r}")
        return value

    def mac(self, key: str, default: str) -> str:
        value = self.text(key, default).lower().replace("-", ":")
        if not _MAC.fullmatch(value) or int(value[:2], 16) & 1:
            raise SpecError(f"{self.where(key)}: a unicast MAC address is wanted, found {value!r}")
        return value

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise SpecError(
                f"{self.where(key)}: a number from {low} to {high} is wanted, found {value!r}"
            )
        return value

    def seconds(self, key: str, default: float) -> float:
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise SpecError(f"{self.where(key)}: a number of seconds is wanted, found {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.take(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise SpecError(f"{self.where(key)}: true or false is wanted, found {value!r}")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str:
        value = self.take(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or value not in choices:
            raise SpecError(
                f"{self.where(key)}: one of {', '.join(choices)} is wanted, found {value!r}"
            )
        return value

    def choices(
        self, key: str, choices: tuple[str, ...], default: tuple[str, ...]
    ) -> tuple[str, ...]:
        values = self.sequence(key)
        if not values:
            return default
        for value in values:
            if value not in choices:
                raise SpecError(
                    f"{self.where(key)}: each must be one of {', '.join(choices)}, found {value!r}"
                )
        if len(set(values)) != len(values):
            raise SpecError(f"{self.where(key)}: something is named twice: {values!r}")
        return tuple(cast("list[str]", values))

    def sequence(self, key: str) -> list[object]:
        value = self.take(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise SpecError(f"{self.where(key)}: a list is wanted, found {value!r}")
        return value

    def readers(self, key: str) -> Iterator[_Reader]:
        for index, value in enumerate(self.sequence(key)):
            yield _Reader(value, f"{self.where(key)}[{index}]")

    def reader(self, key: str) -> _Reader:
        value = self.take(key)
        return _Reader({} if value is None else value, self.where(key))

    def finish(self) -> None:
        if self._values:
            names = ", ".join(sorted(str(key) for key in self._values))
            raise SpecError(f"{self.place or 'the document'}: unknown key: {names}")


def _address(reader: _Reader, key: str) -> ipaddress.IPv4Address:
    value = reader.text(key)
    try:
        return ipaddress.IPv4Address(value)
    except ValueError:
        raise SpecError(
            f"{reader.where(key)}: an IPv4 address is wanted, found {value!r}"
        ) from None


def _interface(text: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface | None:
    try:
        return ipaddress.ip_interface(text)
    except ValueError:
        return None


def _network(reader: _Reader) -> NetworkSpec:
    default = NetworkSpec()
    bridge = reader.matching(
        "bridge", _INTERFACE, "an interface name of lower case letters and digits", default.bridge
    )
    text = reader.text("address", str(default.address))
    text6 = reader.text("address6", str(default.address6))
    address, address6 = _interface(text), _interface(text6)
    # One without a prefix is read as a network of one address.
    if not isinstance(address, ipaddress.IPv4Interface) or address.network.prefixlen > 30:
        raise SpecError(
            f"{reader.where('address')}: an IPv4 address with prefix is wanted, found {text!r}"
        )
    # Stateless addresses, which the advertisement offers, exist with no other length (RFC 4862).
    if not isinstance(address6, ipaddress.IPv6Interface) or address6.network.prefixlen != 64:
        raise SpecError(
            f"{reader.where('address6')}: an IPv6 address with prefix 64 is wanted, found {text6!r}"
        )
    reader.finish()
    return NetworkSpec(bridge=bridge, address=address, address6=address6)


def _account(reader: _Reader) -> AccountSpec:
    account = AccountSpec(
        username=reader.text("username"),
        password=reader.text("password"),
        role=cast(
            AccountRole, reader.choice("role", get_args(AccountRole), default="Administrator")
        ),
    )
    # IPMI 2.0 (22.29, 22.30): 16 bytes of name, 20 of password.
    if len(account.username.encode()) > 16 or len(account.password.encode()) > 20:
        raise SpecError(f"{reader.place}: IPMI takes at most 16 bytes of name and 20 of password")
    return account


def _bmc(reader: _Reader) -> BmcSpec:
    address = _address(reader, "address")
    protocols = reader.choices("protocols", get_args(BmcProtocol), BmcSpec.protocols)
    administrator = _account(
        _Reader(
            {"username": reader.take("username"), "password": reader.take("password")}, reader.place
        )
    )
    accounts = [administrator]
    for nested in reader.readers("accounts"):
        accounts.append(_account(nested))
        nested.finish()
    names = [account.username for account in accounts]
    if len(set(names)) != len(names):
        raise SpecError(f"{reader.where('accounts')}: a username is given twice: {names!r}")
    bmc = BmcSpec(
        address=address,
        protocols=cast("tuple[BmcProtocol, ...]", protocols),
        accounts=tuple(accounts),
        redfish_port=reader.integer("redfish_port", BmcSpec.redfish_port, 1, 65535),
        ipmi_port=reader.integer("ipmi_port", BmcSpec.ipmi_port, 1, 65535),
    )
    reader.finish()
    return bmc


def _disk(reader: _Reader, identity: uuid.UUID, index: int) -> DiskSpec:
    bus = cast(DiskBus, reader.choice("bus", get_args(DiskBus)))
    sector_bytes = reader.integer("logical_sector_bytes", 512, 512, 4096)
    if sector_bytes not in (512, 4096):
        raise SpecError(
            f"{reader.where('logical_sector_bytes')}: 512 or 4096 is wanted, found {sector_bytes}"
        )
    if bus == "sata" and sector_bytes != 512:
        raise SpecError(
            f"{reader.where('logical_sector_bytes')}: the emulated SATA disk has 512-byte sectors "
            "only; use bus nvme, scsi or virtio for 4096"
        )
    token = uuid.uuid5(identity, f"disk {index}").hex
    serial_number = reader.matching(
        "serial_number",
        _SERIAL_NUMBER,
        "at most 20 letters, digits, dots and hyphens",
        f"VR{token[:10].upper()}",
    )
    wwn = reader.take("wwn")
    if bus in ("nvme", "virtio"):
        if wwn is not None:
            raise SpecError(f"{reader.where('wwn')}: a {bus} disk shows no WWN here")
    elif wwn is None:
        # Name Address Authority 5, then an organisation's number that is nobody's, then ours.
        wwn = f"0x5{token[10:25]}"
    elif not isinstance(wwn, str) or not re.fullmatch(r"0x[0-9a-f]{16}", wwn):
        raise SpecError(
            f"{reader.where('wwn')}: a quoted 0x and 16 hexadecimal digits wanted, found {wwn!r}"
        )
    # Nothing in virtio-blk says what the disk is made of, and Linux then takes it to be rotating.
    rotational = reader.flag("rotational", bus == "virtio")
    if (bus == "nvme" and rotational) or (bus == "virtio" and not rotational):
        raise SpecError(
            f"{reader.where('rotational')}: an operating system always sees nvme as not rotating "
            "and virtio as rotating; only scsi and sata can be either"
        )
    disk = DiskSpec(
        bus=bus,
        size_mib=reader.integer("size_mib", DiskSpec.size_mib, 1, 16 * MIB),
        logical_sector_bytes=sector_bytes,
        serial_number=serial_number,
        wwn=wwn,
        read_only=reader.flag("read_only", False),
        rotational=rotational,
    )
    if disk.read_only and bus == "sata":
        raise SpecError(f"{reader.where('read_only')}: the emulated SATA disk cannot be read-only")
    reader.finish()
    return disk


def _light(reader: _Reader) -> LightSpec:
    boot_server = reader.take("boot_server")
    if boot_server is not None and not (
        isinstance(boot_server, str) and re.match(r"https?://[^/]+", boot_server)
    ):
        raise SpecError(f"{reader.where('boot_server')}: a URL is wanted, found {boot_server!r}")
    light = LightSpec(
        boot_seconds=reader.seconds("boot_seconds", LightSpec.boot_seconds),
        boot_server=boot_server,
        fate=cast(LightFate, reader.choice("fate", get_args(LightFate), LightSpec.fate)),
    )
    reader.finish()
    return light


def _server(reader: _Reader, rack: str) -> ServerSpec:
    name = reader.matching("name", _NAME, "a name of lower case letters, digits and hyphens")
    reader.place = f"{reader.place}({name})"
    identity = uuid.uuid5(_UUID_NAMESPACE, f"{rack}/{name}")
    given_uuid = reader.text("uuid", str(identity))
    try:
        server_uuid = str(uuid.UUID(given_uuid))
    except ValueError:
        raise SpecError(f"{reader.where('uuid')}: a UUID is wanted, found {given_uuid!r}") from None
    nics = []
    for index, nested in enumerate(reader.readers("nics")):
        token = uuid.uuid5(identity, f"nic {index}").hex
        # 52:54:00 is what QEMU itself uses for machines without a number of their own.
        mac = nested.mac("mac", f"52:54:00:{token[0:2]}:{token[2:4]}:{token[4:6]}")
        model = cast(NicModel, nested.choice("model", get_args(NicModel), NicSpec.model))
        nested.finish()
        nics.append(NicSpec(mac=mac, model=model))
    disks = [_disk(nested, identity, index) for index, nested in enumerate(reader.readers("disks"))]
    server = ServerSpec(
        name=name,
        kind=cast(ServerKind, reader.choice("kind", get_args(ServerKind), ServerSpec.kind)),
        bmc=_bmc(reader.reader("bmc")),
        firmware=cast(
            FirmwareMode, reader.choice("firmware", get_args(FirmwareMode), ServerSpec.firmware)
        ),
        secure_boot=reader.flag("secure_boot", False),
        cpus=reader.integer("cpus", ServerSpec.cpus, 1, 64),
        memory_mib=reader.integer("memory_mib", ServerSpec.memory_mib, 128, MIB),
        uuid=server_uuid,
        serial_number=reader.text("serial_number", f"VR-{identity.hex[:8].upper()}"),
        manufacturer=reader.text("manufacturer", ServerSpec.manufacturer),
        model=reader.text("model", ServerSpec.model),
        sku=reader.text("sku", ServerSpec.sku),
        boot_order=cast(
            "tuple[BootGroup, ...]",
            reader.choices("boot_order", get_args(BootGroup), ServerSpec.boot_order),
        ),
        network_boot=cast(
            NetworkBoot,
            reader.choice("network_boot", get_args(NetworkBoot), ServerSpec.network_boot),
        ),
        nics=tuple(nics),
        disks=tuple(disks),
        light=_light(reader.reader("light")),
    )
    if sum(disk.bus == "sata" for disk in server.disks) > SATA_PORTS:
        raise SpecError(f"{reader.where('disks')}: at most {SATA_PORTS} SATA disks fit in")
    if server.secure_boot and server.firmware == "bios":
        raise SpecError(f"{reader.where('secure_boot')}: only firmware uefi can have it")
    if server.network_boot == "http" and server.firmware == "bios":
        raise SpecError(f"{reader.where('network_boot')}: http needs firmware uefi")
    for key in ("serial_number", "manufacturer", "model", "sku"):
        # QEMU takes them as a comma-separated list.
        if not re.fullmatch(r"[A-Za-z0-9 ._()/-]{1,64}", getattr(server, key)):
            raise SpecError(f"{reader.where(key)}: at most 64 plain characters are wanted")
    reader.finish()
    return server


def parse_spec(document: object) -> RackSpec:
    """The rack that a YAML document describes.

    Raises:
        SpecError: the document describes no rack that can be built.
    """
    reader = _Reader(document, "")
    name = reader.matching("name", _NAME, "a name of lower case letters, digits and hyphens")
    network = _network(reader.reader("network"))
    servers = tuple(_server(nested, name) for nested in reader.readers("servers"))
    reader.finish()
    spec = RackSpec(name=name, network=network, servers=servers)
    _refuse_twins(spec)
    return spec


def _refuse_twins(spec: RackSpec) -> None:
    seen: dict[tuple[str, str], str] = {}
    for server in spec.servers:
        bmc = server.bmc
        identities = [
            ("name", server.name),
            ("UUID", server.uuid),
            ("Redfish address", f"{bmc.address}:{bmc.redfish_port}"),
            ("IPMI address", f"{bmc.address}:{bmc.ipmi_port}"),
            *(("MAC", nic.mac) for nic in server.nics),
            *(("disk serial number", disk.serial_number) for disk in server.disks),
        ]
        for what, value in identities:
            if (what, value) in seen:
                owner = seen[what, value]
                raise SpecError(
                    f"servers({server.name}): {what} {value} belongs to {owner} already"
                )
            seen[what, value] = server.name
        if bmc.address == spec.network.address.ip:
            raise SpecError(f"servers({server.name}).bmc.address: {bmc.address} is the rack's own")


def load_spec(path: Path) -> RackSpec:
    """The rack that a file describes.

    Raises:
        SpecError: the file cannot be read, is no YAML or describes no rack.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: not YAML: {error}") from error
    try:
        return parse_spec(document)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def dump_spec(spec: RackSpec) -> str:
    """The YAML that `parse_spec` reads back as the same rack."""
    document = _plain(spec)
    for server in document["servers"]:
        accounts = server["bmc"]["accounts"]
        server["bmc"] |= {
            "username": accounts[0]["username"],
            "password": accounts[0]["password"],
            "accounts": accounts[1:],
        }
    return yaml.safe_dump(document, sort_keys=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
