# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.barewright.metal.plugins.module_utils.bmc.redfish_connector import (
    RedfishConnector,
)
from ansible_collections.barewright.metal.plugins.module_utils.bmc.redfish_inventory import (
    cpu_of,
    disk_of,
    gpus_of,
    inspect_system,
    memory_of,
    nics_of,
    secure_boot_of,
)
from ansible_collections.barewright.metal.plugins.module_utils.deadline import Deadline

from .conftest import Answer, ScriptedBmc

BASE = "/redfish/v1/Systems/1"


@pytest.fixture
def connector(scripted: ScriptedBmc) -> Iterator[RedfishConnector]:
    made = RedfishConnector(scripted.target(), scripted.port, Deadline(10), lambda: None)
    made.login("/redfish/v1/SessionService/Sessions")
    yield made
    made.logout()


def collection(scripted: ScriptedBmc, name: str, *members: dict[str, Any]) -> None:
    """Give the system a collection of members."""
    path = f"{BASE}/{name}"
    scripted.system[name] = {"@odata.id": path}
    links = [{"@odata.id": f"{path}/{number}"} for number, _member in enumerate(members)]
    scripted.resources[path] = {"Members": links}
    for link, member in zip(links, members, strict=True):
        scripted.resources[link["@odata.id"]] = {**link, **member}


def test_a_nic_has_its_mac_in_lower_case_and_its_link() -> None:
    (nic,) = nics_of(
        [{"Id": "1", "MACAddress": "52:54:00:AA:BB:CC", "LinkStatus": "LinkUp", "SpeedMbps": 1000}]
    ) or [{}]
    assert (nic["name"], nic["mac"], nic["link_up"]) == ("1", "52:54:00:aa:bb:cc", True)
    assert nic["speed_mbps"] == 1000
    assert nic["pxe_capable"] is None


def test_virtual_and_absent_nics_are_left_out() -> None:
    assert nics_of([{"EthernetInterfaceType": "Virtual"}, {"Status": {"State": "Absent"}}]) == []
    assert nics_of(None) is None


def test_a_disk_has_the_name_that_the_world_knows_it_by() -> None:
    disk = disk_of(
        {
            "Id": "Disk.0",
            "Model": "INTEL SSDPE2KX010T8",
            "SerialNumber": "PHLJ1234 ",
            "CapacityBytes": 1000204886016,
            "MediaType": "SSD",
            "Protocol": "NVMe",
            "BlockSizeBytes": 512,
            "Identifiers": [{"DurableNameFormat": "EUI", "DurableName": "5CD2E4FC00000001"}],
        }
    )
    assert disk["wwn"] == "eui.5cd2e4fc00000001"
    assert (disk["bus"], disk["rotational"], disk["size_bytes"]) == ("nvme", False, 1000204886016)
    assert disk["serial_number"] == "PHLJ1234"
    assert disk["path"] is None


def test_processors_are_counted_over_all_sockets() -> None:
    cpu = {
        "ProcessorType": "CPU",
        "TotalCores": 16,
        "TotalThreads": 32,
        "Model": "Xeon",
        "InstructionSet": "x86-64",
    }
    empty = {"ProcessorType": "CPU", "Status": {"State": "Absent"}}
    gpu = {"ProcessorType": "GPU", "Manufacturer": "NVIDIA", "Model": "H100"}
    assert cpu_of({}, [cpu, cpu, empty, gpu]) == {
        "sockets": 2,
        "cores": 32,
        "threads": 64,
        "model": "Xeon",
        "architecture": "x86_64",
    }
    assert gpus_of([cpu, gpu]) == [{"vendor": "NVIDIA", "model": "H100", "pci_address": None}]


def test_the_summary_stands_in_for_processors_that_are_not_told() -> None:
    summary = {"Count": 2, "CoreCount": 8, "LogicalProcessorCount": 16, "Model": "EPYC"}
    assert cpu_of(summary, None)["threads"] == 16
    assert gpus_of(None) is None


def test_memory_may_be_a_fraction_of_a_gibibyte() -> None:
    assert memory_of({"TotalSystemMemoryGiB": 0.5}) == {"size_bytes": 512 * 2**20}
    assert memory_of({}) == {"size_bytes": None}


@pytest.mark.parametrize(
    ("resource", "supported", "enabled"),
    [
        (None, None, None),
        ({"SecureBootEnable": True}, True, True),
        ({"SecureBootEnable": False, "SecureBootCurrentBoot": "Enabled"}, True, False),
        ({"SecureBootCurrentBoot": "Enabled"}, True, True),
        ({}, False, None),
    ],
)
def test_secure_boot_is_what_the_next_boot_does(
    resource: dict[str, Any] | None, supported: bool | None, enabled: bool | None
) -> None:
    assert secure_boot_of(resource) == {"supported": supported, "enabled": enabled}


def test_one_broken_part_leaves_the_rest_known_and_is_named(
    scripted: ScriptedBmc, connector: RedfishConnector
) -> None:
    collection(scripted, "EthernetInterfaces", {"MACAddress": "52:54:00:00:00:01"})
    collection(scripted, "Processors", {"ProcessorType": "CPU", "TotalCores": 4})

    def script(request: Any) -> Answer | None:
        if request.path.startswith(f"{BASE}/Processors"):
            return Answer(503, headers={"Retry-After": "0"})
        return None

    scripted.script = script
    found = inspect_system(scripted.root, scripted.system, connector, Deadline(10))
    assert [nic["mac"] for nic in found.inventory["nics"]] == ["52:54:00:00:00:01"]
    assert found.inventory["gpus"] is None
    assert [each["resource"] for each in found.incomplete] == [f"{BASE}/Processors"]


def test_an_expanded_collection_costs_one_request(
    scripted: ScriptedBmc, connector: RedfishConnector
) -> None:
    query = "?$expand=.($levels=1)"
    path = f"{BASE}/EthernetInterfaces"
    scripted.system["EthernetInterfaces"] = {"@odata.id": path}
    members = [
        {"@odata.id": f"{path}/{number}", "MACAddress": f"52:54:00:00:00:0{number}"}
        for number in range(3)
    ]
    scripted.resources[path + query] = {"Members": members}
    root = {"ProtocolFeaturesSupported": {"ExpandQuery": {"Levels": True, "NoLinks": True}}}
    before = len(scripted.requests)
    found = inspect_system(root, scripted.system, connector, Deadline(10))
    assert len(found.inventory["nics"]) == 3
    assert len(scripted.requests) == before + 1


def test_a_machine_without_disks_has_none_and_an_untold_one_is_unknown(
    scripted: ScriptedBmc, connector: RedfishConnector
) -> None:
    untold = inspect_system(scripted.root, scripted.system, connector, Deadline(10))
    assert untold.inventory["disks"] is None
    collection(scripted, "Storage", {"Drives": []})
    told = inspect_system(scripted.root, scripted.system, connector, Deadline(10))
    assert told.inventory["disks"] == []
