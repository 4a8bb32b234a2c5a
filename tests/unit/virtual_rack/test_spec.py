# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""What a description of a rack may say, and what is said about one that may not."""

from __future__ import annotations

import copy
import ipaddress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from virtual_rack.spec import RackSpec, SpecError, dump_spec, load_spec, parse_spec

SMALLEST: dict[str, Any] = {
    "name": "demo",
    "servers": [
        {"name": "alpha", "bmc": {"address": "10.77.1.1", "username": "admin", "password": "x"}}
    ],
}


def changed(place: str, value: object) -> dict[str, Any]:
    """The smallest document with a value put at a place like `servers.0.nics`."""
    document = copy.deepcopy(SMALLEST)
    *path, last = place.split(".")
    node: Any = document
    for step in path:
        node = node[int(step)] if step.isdigit() else node.setdefault(step, {})
    node[last] = value
    return document


def test_what_is_not_said_has_a_default() -> None:
    spec = parse_spec(SMALLEST)
    server = spec.server("alpha")
    assert (server.kind, server.firmware, server.cpus, server.memory_mib) == (
        "machine",
        "uefi",
        1,
        1024,
    )
    assert server.bmc.protocols == ("redfish", "ipmi")
    assert server.bmc.accounts[0].role == "Administrator"
    assert str(spec.network.address) == "10.77.0.1/16"


def test_defaults_are_the_same_every_time_and_differ_between_servers() -> None:
    document = copy.deepcopy(SMALLEST)
    document["servers"][0] |= {"nics": [{}, {}], "disks": [{"bus": "scsi"}, {"bus": "sata"}]}
    twin = copy.deepcopy(document["servers"][0])
    twin["name"] = "beta"
    twin["bmc"]["address"] = "10.77.1.2"
    document["servers"].append(twin)
    spec = parse_spec(document)
    assert spec == parse_spec(document)
    disks = [disk for server in spec.servers for disk in server.disks]
    assert len({disk.serial_number for disk in disks}) == 4
    assert len({disk.wwn for disk in disks}) == 4
    assert len({nic.mac for server in spec.servers for nic in server.nics}) == 4
    assert len({server.uuid for server in spec.servers}) == 2


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        ("servers.0.colour", "red", r"servers\[0\]\(alpha\): unknown key: colour"),
        ("servers.0.name", "Alpha", "a name of lower case letters"),
        ("servers.0.firmware", "coreboot", "one of uefi, bios"),
        ("servers.0.cpus", True, "a number from 1 to 64"),
        ("servers.0.cpus", 0, "a number from 1 to 64"),
        ("servers.0.uuid", "42", "a UUID is wanted"),
        ("servers.0.model", "a,b", "plain characters"),
        ("servers.0.nics", [{"mac": "01:00:5e:00:00:01"}], "a unicast MAC"),
        ("servers.0.nics", [{"mac": "52:54:00:77:00"}], "a unicast MAC"),
        ("servers.0.nics", {"mac": "52:54:00:77:00:01"}, "a list is wanted"),
        ("servers.0.disks", [{"bus": "ide"}], r"disks\[0\]\.bus: one of nvme"),
        ("servers.0.disks", [{"bus": "nvme", "logical_sector_bytes": 1024}], "512 or 4096"),
        ("servers.0.disks", [{"bus": "sata", "logical_sector_bytes": 4096}], "512-byte sectors"),
        ("servers.0.disks", [{"bus": "sata", "read_only": True}], "cannot be read-only"),
        ("servers.0.disks", [{"bus": "nvme", "wwn": "0x5000000000000001"}], "shows no WWN"),
        ("servers.0.disks", [{"bus": "scsi", "wwn": "500"}], "16 hexadecimal digits"),
        ("servers.0.disks", [{"bus": "nvme", "rotational": True}], "as not rotating"),
        ("servers.0.disks", [{"bus": "virtio", "rotational": False}], "virtio as rotating"),
        ("servers.0.disks", [{"bus": "nvme", "serial_number": "x" * 21}], "at most 20"),
        ("servers.0.disks", [{"bus": "sata"}] * 7, "at most 6 SATA disks"),
        ("servers.0.boot_order", ["disk", "disk"], "named twice"),
        ("servers.0.bmc.protocols", ["snmp"], "one of redfish, ipmi"),
        ("servers.0.bmc.password", "x" * 21, "at most 16 bytes of name and 20 of password"),
        ("servers.0.bmc.address", "alpha.example", "an IPv4 address is wanted"),
        ("servers.0.bmc.address", "10.77.0.1", "10.77.0.1 is the rack's own"),
        ("servers.0.bmc.accounts", [{"username": "admin", "password": "y"}], "given twice"),
        ("servers.0.light", {"boot_seconds": -1}, "a number of seconds"),
        ("servers.0.light", {"boot_server": "10.77.0.1"}, "a URL is wanted"),
        ("network", {"address": "fd00::1/64"}, "an IPv4 address with prefix"),
        ("network", {"address": "10.77.0.1"}, "an IPv4 address with prefix"),
        ("network", {"address6": "fd00:77::1/48"}, "with prefix 64"),
        ("network", {"bridge": "Br 0"}, "an interface name"),
        ("servers", "alpha", "a list is wanted"),
    ],
)
def test_a_description_that_cannot_be_built_is_refused_with_its_place(
    place: str, value: object, complaint: str
) -> None:
    with pytest.raises(SpecError, match=complaint):
        parse_spec(changed(place, value))


def test_secure_boot_and_http_boot_need_uefi() -> None:
    for key, value in (("secure_boot", True), ("network_boot", "http")):
        document = changed("servers.0.firmware", "bios")
        document["servers"][0][key] = value
        with pytest.raises(SpecError, match="uefi"):
            parse_spec(document)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nics", [{"mac": "52:54:00:77:00:01"}]),
        ("disks", [{"bus": "nvme", "serial_number": "SAME"}]),
        ("uuid", "8929548d-556b-53b6-92d8-2885576acd77"),
        ("name", "alpha"),
        ("bmc", {"address": "10.77.1.1", "username": "admin", "password": "x"}),
    ],
)
def test_two_servers_never_share_what_tells_them_apart(key: str, value: object) -> None:
    document = changed(f"servers.0.{key}", value)
    twin = {
        "name": "beta",
        "bmc": {"address": "10.77.1.2", "username": "admin", "password": "x"},
    }
    document["servers"].append(twin | {key: value})
    with pytest.raises(SpecError, match="belongs to alpha already"):
        parse_spec(document)


def test_a_mac_is_read_in_any_spelling() -> None:
    spec = parse_spec(changed("servers.0.nics", [{"mac": "52-54-00-AB-00-01"}]))
    assert spec.servers[0].nics[0].mac == "52:54:00:ab:00:01"


def test_a_file_that_is_no_yaml_is_an_error_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "rack.yml"
    with pytest.raises(SpecError, match=r"rack\.yml: No such file"):
        load_spec(file)
    file.write_text("a: [", encoding="utf-8")
    with pytest.raises(SpecError, match=r"rack\.yml: not YAML"):
        load_spec(file)


def test_an_unknown_server_is_named_with_those_that_are_known() -> None:
    with pytest.raises(SpecError, match=r"'omega'.*has: alpha"):
        parse_spec(SMALLEST).server("omega")


def _racks() -> st.SearchStrategy[dict[str, Any]]:
    disk = st.one_of(
        st.fixed_dictionaries({"bus": st.just("nvme")}, optional={"read_only": st.booleans()}),
        st.fixed_dictionaries(
            {"bus": st.just("scsi")},
            optional={
                "rotational": st.booleans(),
                "logical_sector_bytes": st.sampled_from([512, 4096]),
                "size_mib": st.integers(1, 10**6),
            },
        ),
        st.fixed_dictionaries({"bus": st.sampled_from(["virtio", "sata"])}),
    )
    server = st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["machine", "light"]),
            "nics": st.lists(
                st.fixed_dictionaries({"model": st.sampled_from(["virtio", "e1000e"])}), max_size=3
            ),
            "disks": st.lists(disk, max_size=6),
        },
        optional={
            "secure_boot": st.booleans(),
            "boot_order": st.permutations(["disk", "network"]),
            "cpus": st.integers(1, 64),
            "light": st.fixed_dictionaries({"boot_seconds": st.floats(0, 100)}),
        },
    )

    def named(servers: list[dict[str, Any]]) -> dict[str, Any]:
        first = ipaddress.IPv4Address("10.77.1.1")
        for index, one in enumerate(servers):
            account = {"username": "admin", "password": "secret"}
            one |= {"name": f"n{index}", "bmc": {"address": str(first + index)} | account}
        return {"name": "any", "servers": servers}

    return st.lists(server, max_size=4).map(named)


@given(_racks())
def test_a_rack_that_is_written_down_is_read_back_the_same(document: dict[str, Any]) -> None:
    spec = parse_spec(document)
    assert isinstance(spec, RackSpec)
    assert parse_spec(yaml.safe_load(dump_spec(spec))) == spec
