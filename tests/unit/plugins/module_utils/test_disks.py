# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils import disks

PCI = "/sys/devices/pci0000:00"


def ata_text(text: str, length: int) -> bytes:
    """Text as IDENTIFY DEVICE holds it: bytes swapped in pairs."""
    padded = text.ljust(length).encode()
    swapped = bytearray(padded)
    swapped[0::2], swapped[1::2] = padded[1::2], padded[0::2]
    return bytes(swapped)


def ata_page(serial: str, model: str) -> bytes:
    """VPD page 89h around IDENTIFY DEVICE data."""
    identify = bytearray(512)
    identify[20:40] = ata_text(serial, 20)
    identify[54:94] = ata_text(model, 40)
    return bytes([0, 0x89]) + (568).to_bytes(2, "big") + bytes(56) + bytes(identify)


@pytest.fixture
def server(tree):
    """A constructed server with one disk of every bus, and things that are no disks."""
    nvme = f"{PCI}/0000:00:03.0/nvme/nvme0"
    tree.write(f"{nvme}/serial", "NVME-1")
    tree.write(f"{nvme}/model", "Fast Disk 9000")
    tree.write(f"{nvme}/firmware_rev", "1.0")
    for namespace in (1, 26):
        base = tree.disk(f"nvme0n{namespace}", nvme, 2048 * 1024, f"259:{namespace}")
        tree.write(f"{base}/nsid", str(namespace))
        tree.write(f"{base}/wwid", f"eui.00253850114E{namespace:04X}")

    virtio = f"{PCI}/0000:00:04.0/virtio1"
    base = tree.disk("vda", virtio, 8192, "254:0", write_zeroes_max_bytes=2147483136)
    tree.write(f"{base}/serial", "VIRTIO-1")
    tree.write(f"{virtio}/vendor", "0x1af4")
    for number, start, size in ((1, 2048, 2048), (2, 4096, 1024)):
        tree.write(f"{base}/vda{number}/partition", str(number))
        tree.write(f"{base}/vda{number}/start", str(start))
        tree.write(f"{base}/vda{number}/size", str(size))
        tree.write(f"{base}/vda{number}/dev", f"254:{number}")
        tree.folder(f"{base}/vda{number}/holders")
    tree.folder(f"{base}/vda2/holders/dm-0")

    sata = f"{PCI}/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0"
    tree.disk("sda", sata, 4096, "8:0", rotational=1)
    tree.write(f"{sata}/type", "0")
    tree.write(f"{sata}/vendor", "ATA     ")
    tree.write(f"{sata}/model", "SPINNING DISK WI")
    tree.write(f"{sata}/vpd_pg89", ata_page("SATA-1", "SPINNING DISK WITH A LONG NAME"))
    tree.write(f"{sata}/wwid", "naa.5000C500A1B2C3D4")

    scsi = f"{PCI}/0000:00:05.0/virtio2/host1/target1:0:0/1:0:0:0"
    tree.disk("sdb", scsi, 4096, "8:16", logical_block_size=4096)
    tree.write(f"{scsi}/type", "0")
    tree.write(f"{scsi}/vendor", "QEMU")
    tree.write(f"{scsi}/model", "QEMU HARDDISK")
    tree.write(f"{scsi}/vpd_pg80", b"\x00\x80\x00\x06SCSI-1")
    tree.write(f"{scsi}/wwid", "t10.QEMU QEMU HARDDISK SCSI-1")

    usb = f"{PCI}/0000:00:06.0/usb1/1-1/1-1:1.0/host2/target2:0:0/2:0:0:0"
    reader = tree.disk("sdc", usb, 0, "8:32")
    tree.write(f"{usb}/type", "0")
    tree.write(f"{reader}/removable", "1")

    cdrom = f"{PCI}/0000:00:1f.2/ata2/host3/target3:0:0/3:0:0:0"
    tree.disk("sr0", cdrom, 100, "11:0")
    tree.write(f"{cdrom}/type", "5")
    for name in ("loop0", "ram0", "zram0", "dm-0", "md0"):
        tree.write(f"/sys/devices/virtual/block/{name}/size", "100")
        tree.link(f"/sys/block/{name}", f"/sys/devices/virtual/block/{name}")

    tree.write(
        "/run/udev/data/b254:0",
        "S:disk/by-path/pci-0000:00:04.0\nS:disk/by-id/virtio-VIRTIO-1\nE:ID_BUS=",
    )
    tree.write(
        "/proc/self/mountinfo",
        "20 1 0:2 / / rw - overlay overlay rw\n"
        "33 20 254:1 / /mnt/with\\040space rw,relatime shared:1 - ext4 /dev/vda1 rw",
    )
    tree.write("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/sda partition 1 0 -2")
    return tree.files


def by_name(files):
    return {disk.name: disk for disk in disks.read_disks(files)}


def test_every_whole_disk_and_namespace_is_listed_and_nothing_else(server):
    assert list(by_name(server)) == ["nvme0n1", "nvme0n26", "sda", "sdb", "vda"]


def test_each_bus_tells_its_serial_number_and_wwn(server):
    found = {
        name: (disk.bus, disk.serial_number, disk.wwn) for name, disk in by_name(server).items()
    }
    assert found == {
        "nvme0n1": ("nvme", "NVME-1", "eui.00253850114e0001"),
        "nvme0n26": ("nvme", "NVME-1", "eui.00253850114e001a"),
        "sda": ("sata", "SATA-1", "0x5000c500a1b2c3d4"),
        "sdb": ("scsi", "SCSI-1", None),
        "vda": ("virtio", "VIRTIO-1", None),
    }


def test_a_sata_model_is_not_cut_to_the_length_that_scsi_has(server):
    assert by_name(server)["sda"].model == "SPINNING DISK WITH A LONG NAME"


def test_sizes_are_bytes_whatever_the_sectors_of_the_disk_are(server):
    disk = by_name(server)["sdb"]
    assert (disk.size_bytes, disk.logical_sector_bytes) == (4096 * 512, 4096)


def test_manufacturer_is_no_translation_and_no_number(server):
    found = by_name(server)
    assert found["sdb"].manufacturer == "QEMU"
    assert found["sda"].manufacturer is None
    assert found["vda"].manufacturer is None


def test_links_of_udev_become_stable_names(server):
    disk = by_name(server)["vda"]
    assert disk.by_id == "/dev/disk/by-id/virtio-VIRTIO-1"
    assert disk.by_path == "/dev/disk/by-path/pci-0000:00:04.0"


def test_mounts_swap_and_holders_of_disk_and_partitions_are_named(server):
    found = by_name(server)
    assert [str(holder) for holder in found["vda"].holders] == [
        "vda1 is mounted on /mnt/with space",
        "vda2 is held by dm-0",
    ]
    assert [str(holder) for holder in found["sda"].holders] == ["sda is swap, /dev/sda"]
    assert [part.start_bytes for part in found["vda"].partitions] == [2048 * 512, 4096 * 512]


def test_namespaces_know_their_controller_and_number(server):
    found = by_name(server)
    assert found["nvme0n26"].namespace_id == 26
    assert found["nvme0n26"].controllers == ("nvme0",)


def test_namespaces_of_a_multipath_subsystem_know_all_controllers(tree):
    subsystem = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    base = tree.disk("nvme0n1", subsystem, 4096, "259:0")
    tree.write(f"{base}/nsid", "1")
    for controller in ("nvme0", "nvme1"):
        tree.folder(f"/sys/devices/pci/{controller}")
        tree.link(f"{subsystem}/{controller}", f"/sys/devices/pci/{controller}")
    hidden = tree.disk("nvme0c0n1", "/sys/devices/pci/nvme0", 4096, "259:1")
    tree.write(f"{hidden}/hidden", "1")
    (disk,) = disks.read_disks(tree.files)
    assert disk.controllers == ("nvme0", "nvme1")


def test_a_broken_disk_without_capacity_is_listed(tree):
    tree.disk("vda", "/sys/devices/virtio0", 0, "254:0")
    (disk,) = disks.read_disks(tree.files)
    assert disk.size_bytes == 0


def test_more_than_26_disks_keep_the_order_of_numbers(tree):
    for number in (2, 10, 1):
        tree.disk(f"nvme{number}n1", f"/sys/devices/nvme/nvme{number}", 8, f"259:{number}")
    names = [disk.name for disk in disks.read_disks(tree.files)]
    assert names == ["nvme1n1", "nvme2n1", "nvme10n1"]


@pytest.mark.parametrize(
    ("kind", "from_memory"),
    [("overlay", True), ("rootfs", True), ("tmpfs", True), ("ext4", False), ("btrfs", False)],
)
def test_only_a_system_that_runs_from_memory_counts_as_ramdisk(tree, kind, from_memory):
    tree.write("/proc/self/mountinfo", f"20 1 0:2 / / rw - {kind} root rw")
    assert disks.runs_from_memory(tree.files) is from_memory


def test_a_machine_whose_mounts_cannot_be_read_is_no_ramdisk(tree):
    assert not disks.runs_from_memory(tree.files)


@given(st.text())
def test_parsers_of_kernel_text_take_anything(text):
    disks.parse_mounts(text)
    disks.parse_swaps(text)
    disks.parse_udev(text)
    disks.normal_wwn(text)


@given(st.binary())
def test_parsers_of_pages_take_anything(data):
    disks.parse_vpd_text(data)
    disks.ata_string(data[: len(data) // 2 * 2])


@given(st.text(string.ascii_letters + string.digits + "-", min_size=1, max_size=20))
def test_ata_strings_come_back_as_they_were(text):
    assert disks.ata_string(ata_text(text, 20)) == text


@given(st.text(st.characters(exclude_characters="\n\r", codec="ascii", categories=("L", "N"))))
def test_udev_links_come_back_as_they_were(name):
    assert disks.parse_udev(f"S:disk/by-id/{name}\n").links == (f"disk/by-id/{name}",)
