# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils import inventory
from ansible_collections.barewright.metal.plugins.module_utils.bmc.inventory import (
    empty_inventory,
)

DMI = "/sys/class/dmi/id"
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def structure(kind: int, body: bytes, *strings: str) -> bytes:
    """A structure of an SMBIOS table."""
    text = b"".join(string.encode() + b"\0" for string in strings) or b"\0"
    return bytes([kind, 4 + len(body), 0, 0]) + body + text + b"\0"


def memory_device(size: int, extended: int = 0) -> bytes:
    body = bytearray(36)
    struct.pack_into("<H", body, 8, size)
    struct.pack_into("<I", body, 24, extended)
    return structure(17, bytes(body), "DIMM 0", "BANK 0")


def link_message(name: str, permanent: bytes) -> bytes:
    """An RTM_NEWLINK with a name, and a permanent address if there is one."""

    def attribute(kind: int, value: bytes) -> bytes:
        padding = bytes(-len(value) % 4)
        return struct.pack("=HH", 4 + len(value), kind) + value + padding

    payload = bytes(16) + attribute(3, name.encode() + b"\0")
    if permanent:
        payload += attribute(54, permanent)
    return struct.pack("=IHHII", 16 + len(payload), 16, 2, 1, 0) + payload


@pytest.fixture
def server(tree):
    """A constructed UEFI server."""
    for name, value in {
        "product_uuid": "4C4C4544-0035-3010-8043-B7C04F505232",
        "product_serial": "ABC123",
        "sys_vendor": "Vendor Inc.",
        "product_name": "Server 9000",
        "product_sku": "To be filled by O.E.M.",
        "bios_vendor": "EFI Vendor",
        "bios_version": "2.1.0",
    }.items():
        tree.write(f"{DMI}/{name}", value)
    tree.write(SECURE_BOOT, b"\x06\0\0\0\x01")
    tree.write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Fast  CPU @ 2.00GHz\n")
    tree.write("/proc/meminfo", "MemTotal:       3900000 kB\nMemFree: 1 kB\n")
    tree.write("/proc/sys/kernel/arch", "x86_64")
    tree.write(
        "/sys/firmware/dmi/tables/DMI",
        structure(1, bytes(20), "Vendor Inc.")
        + memory_device(2048)
        + memory_device(0)
        + memory_device(0x7FFF, 64 * 1024)
        + structure(127, b""),
    )
    for number in range(8):
        topology = f"/sys/devices/system/cpu/cpu{number}/topology"
        tree.write(f"{topology}/physical_package_id", str(number // 4))
        tree.write(f"{topology}/core_id", str(number // 2 % 2))
    tree.folder("/sys/devices/system/cpu/cpu8")  # possible, not online
    tree.folder("/sys/devices/system/cpu/cpufreq")

    card = "/sys/devices/pci0000:00/0000:00:02.0"
    tree.link(f"{card}/driver", "/sys/bus/pci/drivers/e1000e")
    tree.folder("/sys/bus/pci/drivers/e1000e")
    for name, carrier in (("ens2", "1"), ("ens3", "0")):
        tree.write(f"{card}/net/{name}/address", "52:54:00:77:00:01")
        tree.write(f"{card}/net/{name}/type", "1")
        tree.write(f"{card}/net/{name}/carrier", carrier)
        tree.write(f"{card}/net/{name}/speed", "10000" if carrier == "1" else "-1")
        tree.link(f"{card}/net/{name}/device", card)
        tree.link(f"/sys/class/net/{name}", f"{card}/net/{name}")
    tree.write("/sys/devices/virtual/net/lo/type", "772")
    tree.link("/sys/class/net/lo", "/sys/devices/virtual/net/lo")
    tree.write("/sys/devices/virtual/net/bond0/type", "1")
    tree.link("/sys/class/net/bond0", "/sys/devices/virtual/net/bond0")

    for address, kind, vendor, device in (
        ("0000:00:02.0", "0x020000", "0x8086", "0x10d3"),
        ("0000:03:00.0", "0x030000", "0x1a03", "0x2000"),
        ("0000:81:00.0", "0x030200", "0x10de", "0x2330"),
        ("0000:82:00.0", "0x120000", "0x1002", "0x74a1"),
    ):
        for name, value in (("class", kind), ("vendor", vendor), ("device", device)):
            tree.write(f"/sys/bus/pci/devices/{address}/{name}", value)
    tree.write(
        "/usr/share/misc/pci.ids",
        "# list\n10de  NVIDIA Corporation\n\t2330  GH100 [H100]\n\t\t10de 1626  H100 PCIe\n"
        "1af4  Red Hat\nC 03  Display controller\n\t00  VGA compatible controller\n",
    )
    return tree


def test_shape_is_the_one_that_the_bmc_fills_too(server):
    ours, theirs = inventory.read_inventory(server.files), empty_inventory("in_band")
    assert ours.keys() == theirs.keys()
    for part in ("system", "firmware", "cpu", "memory"):
        assert ours[part].keys() == theirs[part].keys()


def test_system_and_firmware_come_from_smbios_without_placeholders(server):
    found = inventory.read_inventory(server.files)
    assert found["system"] == {
        "uuid": "4c4c4544-0035-3010-8043-b7c04f505232",
        "serial_number": "ABC123",
        "manufacturer": "Vendor Inc.",
        "model": "Server 9000",
        "sku": None,
    }
    assert found["firmware"] == {
        "vendor": "EFI Vendor",
        "version": "2.1.0",
        "boot_mode": "uefi",
        "secure_boot": {"supported": True, "enabled": True},
    }


def test_memory_is_what_is_installed_and_not_what_the_kernel_got(server):
    assert inventory.read_inventory(server.files)["memory"] == {"size_bytes": (2 + 64) << 30}


def test_memory_falls_back_to_the_kernel_without_smbios(tree):
    tree.write("/proc/meminfo", "MemTotal:       1000 kB\n")
    assert inventory.read_inventory(tree.files)["memory"] == {"size_bytes": 1024000}


def test_sockets_cores_and_threads_are_counted_of_what_is_online(server):
    assert inventory.read_inventory(server.files)["cpu"] == {
        "sockets": 2,
        "cores": 4,
        "threads": 8,
        "model": "Fast CPU @ 2.00GHz",
        "architecture": "x86_64",
    }


def test_only_cards_that_are_hardware_are_listed(server):
    nics = inventory.read_nics(server.files, {"ens2": "52:54:00:77:00:99"})
    assert nics[0] == {
        "name": "ens2",
        "mac": "52:54:00:77:00:01",
        "permanent_mac": "52:54:00:77:00:99",
        "link_up": True,
        "speed_mbps": 10000,
        "pxe_capable": None,
        "driver": "e1000e",
    }
    assert [(nic["name"], nic["link_up"], nic["speed_mbps"]) for nic in nics[1:]] == [
        ("ens3", False, None)
    ]


def test_link_of_an_interface_that_is_down_is_unknown(tree):
    tree.write("/sys/devices/card/net/eth0/type", "1")
    tree.folder("/sys/devices/card/net/eth0/device")
    tree.link("/sys/class/net/eth0", "/sys/devices/card/net/eth0")
    (nic,) = inventory.read_nics(tree.files, {})
    assert nic["link_up"] is None
    assert nic["mac"] is None


def test_gpus_have_names_or_numbers_and_the_display_of_a_bmc_is_none(server):
    assert inventory.read_inventory(server.files)["gpus"] == [
        {"vendor": "NVIDIA Corporation", "model": "GH100 [H100]", "pci_address": "0000:81:00.0"},
        {"vendor": "0x1002", "model": "0x74a1", "pci_address": "0000:82:00.0"},
    ]


@pytest.mark.parametrize(
    ("content", "secure_boot"),
    [
        (b"\x06\0\0\0\x00", {"supported": True, "enabled": False}),
        (b"\x06\0\0\0\x01", {"supported": True, "enabled": True}),
    ],
)
def test_secure_boot_is_the_value_behind_the_attributes(tree, content, secure_boot):
    tree.write(SECURE_BOOT, content)
    assert inventory.read_inventory(tree.files)["firmware"]["secure_boot"] == secure_boot


def test_secure_boot_is_unknown_where_efivarfs_is_not_mounted(tree):
    tree.folder("/sys/firmware/efi/efivars")
    firmware = inventory.read_inventory(tree.files)["firmware"]
    assert firmware["boot_mode"] == "uefi"
    assert firmware["secure_boot"] == {"supported": None, "enabled": None}


def test_bios_has_no_secure_boot(tree):
    firmware = inventory.read_inventory(tree.files)["firmware"]
    assert firmware["boot_mode"] == "bios"
    assert firmware["secure_boot"] == {"supported": False, "enabled": False}


def test_a_machine_that_tells_nothing_has_unknown_values_and_no_parts(tree):
    found = inventory.read_inventory(tree.files)
    assert set(found["system"].values()) == {None}
    assert (found["nics"], found["disks"], found["gpus"]) == ([], [], [])


def test_this_machine_can_be_read():
    found = inventory.read_inventory()
    assert found["cpu"]["threads"] >= 1
    assert found["memory"]["size_bytes"] > 0


def test_permanent_addresses_are_read_by_name():
    messages = (
        link_message("lo", b"")
        + link_message("ens2", bytes.fromhex("525400770001"))
        + link_message("ib0", bytes(20))
        + struct.pack("=IHHIII", 20, 3, 2, 1, 0, 0)
    )
    assert inventory.parse_permanent_addresses(messages) == {"ens2": "52:54:00:77:00:01"}


@pytest.mark.parametrize(
    ("size", "extended", "found"),
    [
        (0, 0, None),
        (0xFFFF, 0, None),
        (512, 0, 512 << 20),
        (0x8000 | 64, 0, 64 << 10),
        (0x7FFF, 1 << 20, 1 << 40),
    ],
)
def test_sizes_of_memory_devices(size, extended, found):
    structures = inventory.parse_dmi(memory_device(size, extended))
    assert inventory.installed_memory_bytes(structures) == found


@given(st.lists(st.sampled_from([1024, 2048, 0]), max_size=8))
def test_every_memory_device_is_found_behind_any_other_structure(sizes):
    table = b"".join(
        structure(4, bytes(8), "CPU") + memory_device(size) + structure(19, bytes(3))
        for size in sizes
    )
    total = inventory.installed_memory_bytes(inventory.parse_dmi(table))
    assert (total or 0) == sum(sizes) << 20


@given(st.binary(max_size=300))
def test_parsers_of_bytes_take_anything(data):
    inventory.installed_memory_bytes(inventory.parse_dmi(data))
    inventory.parse_permanent_addresses(data)
    inventory.parse_permanent_addresses(link_message("x", b"")[:4] + data)


@given(st.text())
def test_parsers_of_text_take_anything(text):
    inventory.parse_cpu_model(text)
    inventory.parse_memory_total(text)
    inventory.parse_pci_names(text, [("10de", "2330")])
