# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: Barewright contributors
"""Build an OS image: ``image.raw.zst`` and ``manifest.yml``.

The role runs it with its options as JSON; it prints ``{changed, directory, manifest}``. The image
is a GPT with an EFI system partition from which UEFI (systemd-boot) and BIOS (syslinux) start the
same kernel, a small empty volume for the seed, and ext4. All of it is made in files, by tools that
need neither loop devices nor mounts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import uuid
from pathlib import Path
from typing import Any

import barewright_images
import yaml
from barewright_images.errors import BuildFault, run_as_script, say
from barewright_images.host import remove_tree, require_tools, run, run_again_as_root
from barewright_images.rootfs import ARCHIVE, PACKAGES, RootfsSpec, make_rootfs, overlay, unpack
from barewright_images.store import build_once, digest_of, sha256_of
from gpt_image import (
    BASIC_DATA_TYPE,
    ESP_TYPE,
    LEGACY_BIOS_BOOTABLE,
    LINUX_ROOT_X86_64_TYPE,
    Partition,
    write_table,
)

HERE = Path(__file__).resolve().parent
TOOLS = ["mmdebstrap", "mke2fs", "mkfs.vfat", "mcopy", "zstd", "tar"]
BIOS_TOOLS = ["syslinux"]
BOOT_CODE = Path("/usr/lib/SYSLINUX/gptmbr.bin")
SYSTEMD_BOOT = "usr/lib/systemd/boot/efi/systemd-bootx64.efi"
IMAGE = "image.raw.zst"
MIB = 1 << 20

# Raised when the same files and options have to give another result.
RECIPE = 1

SEED_BYTES = 8 * MIB
"""Empty, and before the root partition, which so can grow to the end of any disk."""

ZSTD_LEVEL = 6

# Links are made here, as not every way to ship a collection keeps them.
KERNEL_HOOKS = [
    "etc/initramfs/post-update.d/zz-barewright-esp",
    "etc/kernel/postinst.d/zz-barewright-esp",
    "etc/kernel/postrm.d/zz-barewright-esp",
]
MASKED_UNITS = {
    "common": [
        # Without unattended-upgrades they only load package lists, at the worst time: first boot.
        "system/apt-daily.timer",
        "system/apt-daily-upgrade.timer",
        "system/dpkg-db-backup.timer",
        # Snapshots of LVM volumes, which there are none of.
        "system/e2scrub_all.timer",
        "system/e2scrub_reap.service",
        # SSH over vsock and unix sockets; it complains on machines without.
        "system-generators/systemd-ssh-generator",
        # A console on a screen starts without it, and logind waits for it.
        "system/modprobe@drm.service",
    ],
    "cloud": [],
    # Each costs a tenth of a second of a slow machine's start, and nothing here uses them.
    "light": [
        "system/dev-hugepages.mount",
        "system/dev-mqueue.mount",
        "system/sys-fs-fuse-connections.mount",
        "system/sys-kernel-config.mount",
        "system/sys-kernel-debug.mount",
        "system/sys-kernel-tracing.mount",
        "system/systemd-binfmt.service",
        "system/systemd-network-generator.service",
        "system/systemd-networkd-persistent-storage.service",
        "system/systemd-pstore.service",
        "system/systemd-udev-load-credentials.service",
    ],
}
# They say that the machine is not initialised before they run; SSH would wait for them in vain.
LATE_UNITS = {
    "cloud": ["systemd-timesyncd.service"],
    "light": ["systemd-resolved.service"],
}
ENABLED_UNITS = {"cloud": [], "light": ["barewright-seed.service", "barewright-seed-final.service"]}


def assemble(work: Path, rootfs: Path, options: dict[str, Any]) -> None:
    """Make ``image.raw`` in ``work``; runs as root, or as root of a user namespace."""
    root = work / "root"
    unpack(rootfs / ARCHIVE, root)
    for name in ("common", options["flavour"]):
        overlay(HERE / name, root)
    guids = {name: uuid.uuid4() for name in ("esp", "seed", "root", "disk")}
    _complete(root, options, guids)

    esp = work / "esp"
    esp.mkdir()
    inner_esp = root / "boot/efi"
    run(["chroot", str(root), "/usr/lib/barewright/update-esp", "/boot/efi"])
    for path in inner_esp.iterdir():
        shutil.move(path, esp)
    (esp / "EFI/BOOT").mkdir(parents=True)
    shutil.copy2(root / SYSTEMD_BOOT, esp / "EFI/BOOT/BOOTX64.EFI")

    used = int(run(["du", "-s", "-B1", "--apparent-size", str(root)]).split()[0])
    # Inode tables, journal and metadata take about a tenth; the rest is asked for.
    root_bytes = _round_up(used * 115 // 100 + (64 + options["free_mib"]) * MIB)
    partitions = _layout(options, guids, root_bytes)
    image = work / "image.raw"
    with image.open("wb") as stream:
        stream.truncate(partitions[-1].start_bytes + root_bytes + MIB)
    sector_bytes = options["sector_bytes"]
    _make_esp(image, partitions[0], esp, sector_bytes)
    _make_vfat(
        image, partitions[1], "CIDATA", sector_bytes, fat_bits=12, cluster=4096 // sector_bytes
    )
    _make_root(image, partitions[2], root)
    write_table(
        image,
        partitions,
        sector_bytes=sector_bytes,
        disk_guid=guids["disk"],
        boot_code=BOOT_CODE.read_bytes() if _boots_bios(sector_bytes) else b"",
    )
    remove_tree(root)
    remove_tree(esp)


def _boots_bios(sector_bytes: int) -> bool:
    # BIOS reads disks by 512 bytes, and syslinux knows no other sector.
    return sector_bytes == 512


def _round_up(size_bytes: int) -> int:
    return -(-size_bytes // MIB) * MIB


def _layout(
    options: dict[str, Any], guids: dict[str, uuid.UUID], root_bytes: int
) -> list[Partition]:
    """ESP, seed and root, each at a multiple of 1 MiB."""
    esp_bytes = options["esp_mib"] * MIB
    attributes = LEGACY_BIOS_BOOTABLE if _boots_bios(options["sector_bytes"]) else 0
    return [
        Partition("esp", ESP_TYPE, guids["esp"], MIB, esp_bytes, attributes),
        Partition("seed", BASIC_DATA_TYPE, guids["seed"], MIB + esp_bytes, SEED_BYTES),
        Partition(
            "root",
            LINUX_ROOT_X86_64_TYPE,
            guids["root"],
            MIB + esp_bytes + SEED_BYTES,
            root_bytes,
        ),
    ]


def _complete(root: Path, options: dict[str, Any], guids: dict[str, uuid.UUID]) -> None:
    """What depends on this one image: where its root is, and links no package makes."""
    (root / "boot/efi").mkdir(parents=True, exist_ok=True)
    (root / "etc/fstab").write_text(
        "# SPDX-License-Identifier: GPL-3.0-or-later\n"
        f"PARTUUID={guids['root']} / ext4 defaults,errors=remount-ro 0 1\n"
        f"PARTUUID={guids['esp']} /boot/efi vfat noauto,umask=0077 0 0\n"
    )
    (root / "etc/kernel").mkdir(exist_ok=True)
    (root / "etc/kernel/cmdline").write_text(
        f"root=PARTUUID={guids['root']} ro {options['command_line']}\n"
    )
    links = {"etc/resolv.conf": "../run/systemd/resolve/stub-resolv.conf"}
    links |= dict.fromkeys(KERNEL_HOOKS, "/usr/lib/barewright/run-update-esp")
    masked = [*MASKED_UNITS["common"], *MASKED_UNITS[options["flavour"]]]
    links |= {f"etc/systemd/{unit}": "/dev/null" for unit in masked}
    for name, target in links.items():
        link = root / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    for unit in LATE_UNITS[options["flavour"]]:
        text = (root / "usr/lib/systemd/system" / unit).read_text()
        text = re.sub(r"^Before=.*$", "Before=shutdown.target", text, flags=re.MULTILINE)
        text = text.replace("[Unit]\n", "[Unit]\nAfter=ssh.service\n", 1)
        (root / "etc/systemd/system" / unit).write_text(text)
    units = ["systemd-networkd.service", "ssh.service", *ENABLED_UNITS[options["flavour"]]]
    run(["chroot", str(root), "systemctl", "--quiet", "enable", *units])
    with (root / "usr/lib/os-release").open("a", encoding="utf-8") as stream:
        stream.write(f"VARIANT_ID={options['flavour']}\nIMAGE_ID={options['name']}\n")
        stream.write(f"IMAGE_VERSION={options['key']}\n")
    excludes = "".join(f"path-exclude={pattern}\n" for pattern in options["excluded_paths"])
    (root / "etc/dpkg/dpkg.cfg.d/50barewright").write_text(excludes)
    for path in (root / "var/cache/apt").glob("*.bin"):
        path.unlink()
    # ldconfig, the message catalogue and the like are as fresh as /usr: systemd-update-done(8).
    for name in ("etc/.updated", "var/.updated"):
        (root / name).touch()


def _make_vfat(
    image: Path, partition: Partition, label: str, sector_bytes: int, *, fat_bits: int, cluster: int
) -> None:
    """``cluster`` counts sectors; mkfs.vfat would choose it for the size of the whole file."""
    run(
        [
            *("mkfs.vfat", "-n", label, "-S", str(sector_bytes)),
            *("-F", str(fat_bits), "-s", str(cluster)),
            f"--offset={partition.start_bytes // sector_bytes}",
            str(image),
            str(partition.size_bytes // 1024),
        ]
    )


def _make_esp(image: Path, partition: Partition, tree: Path, sector_bytes: int) -> None:
    # UEFI wants FAT32 on fixed disks, which a small volume is only with the smallest clusters.
    _make_vfat(image, partition, "ESP", sector_bytes, fat_bits=32, cluster=1)
    names = sorted(str(path) for path in tree.iterdir())
    run(["mcopy", "-s", "-Q", "-i", f"{image}@@{partition.start_bytes}", *names, "::/"])
    if _boots_bios(sector_bytes):
        run(
            [
                *("syslinux", "--install", "--directory", "/syslinux"),
                *("--offset", str(partition.start_bytes), str(image)),
            ]
        )


def _make_root(image: Path, partition: Partition, tree: Path) -> None:
    run(
        [
            *("mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-L", "root", "-m", "1"),
            # Nothing is left for the first boot to initialise in the background.
            *("-E", f"offset={partition.start_bytes},lazy_itable_init=0,lazy_journal_init=0"),
            *("-d", str(tree), str(image), f"{partition.size_bytes // 4096}"),
        ]
    )


def publish(work: Path, rootfs: Path, options: dict[str, Any]) -> None:
    """Assemble in a namespace where that is needed, pack the result and describe it."""
    require_tools(TOOLS)
    if _boots_bios(options["sector_bytes"]):
        require_tools(BIOS_TOOLS)
        if not BOOT_CODE.is_file():
            raise BuildFault(
                "BUILD_TOOLS_MISSING",
                wanted="the boot code of syslinux for GPT disks",
                found=f"no {BOOT_CODE}",
                cure="apt-get install syslinux",
            )
    run_again_as_root([__file__, "assemble", str(work), str(rootfs), json.dumps(options)])
    raw = work / "image.raw"
    raw_size_bytes = raw.stat().st_size
    packed = work / IMAGE
    run(["zstd", "-q", "-T0", f"-{ZSTD_LEVEL}", "--rm", str(raw), "-o", str(packed)])
    packages = dict(line.split(" ", 1) for line in (rootfs / PACKAGES).read_text().splitlines())
    kernels = [name for name in packages if re.match(r"linux-image-\d", name)]
    manifest = {
        "name": options["name"],
        "key": options["key"],
        "built_at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "flavour": options["flavour"],
        "suite": options["suite"],
        "architecture": "amd64",
        "kernel_version": kernels[0].removeprefix("linux-image-") if kernels else None,
        "boot_modes": ["bios", "uefi"] if _boots_bios(options["sector_bytes"]) else ["uefi"],
        "file": IMAGE,
        "format": "raw",
        "compression": "zst",
        "sha256": sha256_of(packed),
        "size_bytes": packed.stat().st_size,
        "raw_size_bytes": raw_size_bytes,
        "sector_bytes": options["sector_bytes"],
        "packages": packages,
    }
    (work / "manifest.yml").write_text(yaml.safe_dump(manifest, sort_keys=False))


def build() -> dict[str, Any]:
    """The command line of the role's task."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    outer = commands.add_parser("build")
    outer.add_argument("--plan-only", action=argparse.BooleanOptionalAction)
    outer.add_argument("options", type=json.loads)
    inner = commands.add_parser("assemble")
    inner.add_argument("work", type=Path)
    inner.add_argument("rootfs", type=Path)
    inner.add_argument("options", type=json.loads)
    arguments = parser.parse_args()
    options = arguments.options
    if arguments.command == "assemble":
        assemble(arguments.work, arguments.rootfs, options)
        return {}

    options["excluded_paths"] += [
        f"/usr/lib/modules/*/kernel/{folder}/*" for folder in options["excluded_modules"]
    ]
    spec = RootfsSpec(
        suite=options["suite"],
        components=options["components"],
        packages=options["packages"],
        excluded_paths=options["excluded_paths"],
        skeleton=HERE / "skeleton",
        mirror=options["mirror"] or None,
        security_mirror=options["security_mirror"] or None,
        keyring=Path(options["keyring"]),
    )
    decisive = ("flavour", "name", "sector_bytes", "esp_mib", "free_mib", "command_line")
    key = digest_of(
        [RECIPE, spec.key(), [options[name] for name in decisive]],
        [HERE, Path(barewright_images.__file__).parent],
    )
    options["key"] = key

    def make(work: Path) -> None:
        rootfs, _changed = make_rootfs(
            spec, Path(options["work_dir"]), options["flavour"], again=options["rebuild"]
        )
        say(f"assembling image {options['name']}")
        publish(work, rootfs, options)

    directory, changed = build_once(
        Path(options["output_dir"]),
        key,
        make,
        again=options["rebuild"],
        plan_only=arguments.plan_only,
    )
    manifest = directory / "manifest.yml"
    return {
        "changed": changed,
        "directory": str(directory),
        "manifest": yaml.safe_load(manifest.read_text()) if manifest.is_file() else None,
    }


if __name__ == "__main__":
    run_as_script(build)
