# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: Barewright contributors
"""Build the ramdisk: ``vmlinuz``, ``initrd`` and ``manifest.yml``.

The role runs it with its options as JSON; it prints ``{changed, directory, manifest}``. The initrd
is an uncompressed cpio of busybox, three kernel modules and a squashfs that holds everything else.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
from pathlib import Path
from typing import Any

import yaml
from barewright_images.errors import BuildFault, run_as_script, say
from barewright_images.host import remove_tree, require_tools, run, run_again_as_root
from barewright_images.rootfs import ARCHIVE, PACKAGES, RootfsSpec, make_rootfs, overlay, unpack
from barewright_images.store import build_once, digest_of, sha256_of

HERE = Path(__file__).resolve().parent
TOOLS = ["mmdebstrap", "mksquashfs", "cpio", "xz", "zstd", "tar"]

# Raised when the same files and options have to give another result.
RECIPE = 1

# Needed before the squashfs is mounted; all else is in there.
FIRST_MODULES = ["loop", "squashfs", "overlay"]

# What the boot scripts call; they find these first.
BUSYBOX_NAMES = ["cat", "dmesg", "head", "hostname", "ip", "mkdir", "mount", "sed", "setsid"]
BUSYBOX_NAMES += ["sleep", "sync", "tail", "timeout", "tr", "udhcpc", "uname"]

# Made here, as not every way to ship a collection keeps links.
LINKS = {
    "etc/mtab": "/proc/self/mounts",
    "etc/resolv.conf": "/run/resolv.conf",
    "usr/local/sbin/halt": "poweroff",
    "usr/local/sbin/reboot": "poweroff",
    "usr/local/sbin/shutdown": "poweroff",
    "usr/sbin/init": "../bin/busybox",
    "usr/sbin/udhcpc": "../bin/busybox",
}

# Level 15 takes two minutes instead of four seconds and saves 6 MB of 110.
SQUASHFS_LEVEL = 4


def kept_modules(dependencies: dict[str, list[str]], dropped_prefixes: list[str]) -> set[str]:
    """Which modules stay: those without one of ``dropped_prefixes``, with all that they depend on.

    Paths are as in modules.dep, relative to ``/lib/modules/<version>``; prefixes are relative to
    ``kernel/`` there.
    """
    prefixes = tuple(f"kernel/{prefix}" for prefix in dropped_prefixes)
    kept: set[str] = set()
    waiting = [module for module in dependencies if not module.startswith(prefixes)]
    while waiting:
        module = waiting.pop()
        if module not in kept:
            kept.add(module)
            waiting.extend(dependencies.get(module, []))
    return kept


def parse_modules_dep(text: str) -> dict[str, list[str]]:
    """modules.dep as ``{module: [modules that it needs]}``."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {module: needed.split() for module, needed in pairs}


def load_order(dependencies: dict[str, list[str]], names: list[str]) -> list[str]:
    """Paths of the modules called ``names`` and what they need, in an order that loads."""
    by_name = {Path(path).name.split(".")[0]: path for path in dependencies}
    order: list[str] = []

    def add(path: str) -> None:
        for needed in dependencies.get(path, []):
            add(needed)
        if path not in order:
            order.append(path)

    for name in names:
        add(by_name[name])
    return order


def prune_modules(root: Path, version: str, dropped_prefixes: list[str]) -> dict[str, list[str]]:
    """Remove unwanted modules and unpack the others, which load faster; returns modules.dep.

    The squashfs compresses them again. depmod runs after, on what is left.
    """
    folder = root / "usr/lib/modules" / version
    kept = kept_modules(parse_modules_dep((folder / "modules.dep").read_text()), dropped_prefixes)
    packed = []
    for path in folder.rglob("*.ko*"):
        if str(path.relative_to(folder)) not in kept:
            path.unlink()
        elif path.suffix == ".xz":
            packed.append(str(path))
    for start in range(0, len(packed), 200):
        run(["xz", "--decompress", "--threads=1", *packed[start : start + 200]])
    run(["chroot", str(root), "depmod", version])
    return parse_modules_dep((folder / "modules.dep").read_text())


def assemble(work: Path, rootfs: Path, options: dict[str, Any]) -> None:
    """Make vmlinuz and initrd in ``work``; runs as root, or as root of a user namespace."""
    root = work / "root"
    unpack(rootfs / ARCHIVE, root)
    version = _kernel_version(root)
    dependencies = prune_modules(root, version, options["dropped_modules"])
    shutil.move(root / f"boot/vmlinuz-{version}", work / "vmlinuz")
    for pattern in options["dropped_paths"]:
        for path in root.glob(pattern.lstrip("/")):
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
            else:
                path.unlink()
    overlay(HERE / "rootfs", root)
    _complete(root, options)

    first = work / "first"
    _first_stage(first, root, version, dependencies)
    run(
        [
            *("mksquashfs", str(root), str(first / "root.squashfs"), "-noappend", "-no-progress"),
            *("-comp", "zstd", "-Xcompression-level", str(SQUASHFS_LEVEL), "-b", "64K"),
        ]
    )
    names = "\n".join(sorted(str(path.relative_to(first)) for path in first.rglob("*")))
    run(
        [
            *("cpio", "--quiet", "--create", "--format=newc", "--owner=0:0", "--reproducible"),
            *("--directory", str(first), "--file", str(work / "initrd")),
        ],
        data=names.encode(),
    )
    remove_tree(root)
    remove_tree(first)


def _kernel_version(root: Path) -> str:
    versions = sorted(path.name for path in (root / "usr/lib/modules").iterdir())
    if len(versions) != 1:
        raise BuildFault(
            "BUILD_FAILED",
            wanted="one kernel in the ramdisk",
            found=", ".join(versions) or "none",
            cure="name exactly one kernel package in ramdisk_kernel_package",
        )
    return versions[0]


def _complete(root: Path, options: dict[str, Any]) -> None:
    """What no package brings: an init, the links of files that live in memory, a name."""
    for name in BUSYBOX_NAMES:
        link = root / "usr/lib/barewright/bin" / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to("/usr/bin/busybox")
    for name, target in LINKS.items():
        link = root / name
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    with (root / "usr/lib/os-release").open("a", encoding="utf-8") as stream:
        stream.write('VARIANT="Barewright ramdisk"\nVARIANT_ID=barewright-ramdisk\n')
        stream.write(f"BUILD_ID={options['key']}\n")


def _first_stage(first: Path, root: Path, version: str, dependencies: dict[str, list[str]]) -> None:
    """What the initrd holds beside the squashfs."""
    (first / "modules").mkdir(parents=True)
    (first / "bin").mkdir()
    shutil.copy2(HERE / "initramfs/init", first / "init")
    (first / "init").chmod(0o755)
    shutil.copy2(root / "usr/bin/busybox", first / "bin/busybox")
    order = load_order(dependencies, FIRST_MODULES)
    for path in order:
        shutil.copy2(root / "usr/lib/modules" / version / path, first / "modules")
    names = "".join(f"{Path(path).name}\n" for path in order)
    (first / "modules/order").write_text(names)


def publish(work: Path, rootfs: Path, options: dict[str, Any]) -> None:
    """Assemble in a namespace where that is needed, then judge the result and describe it."""
    require_tools(TOOLS)
    run_again_as_root([__file__, "assemble", str(work), str(rootfs), json.dumps(options)])
    packages = dict(line.split(" ", 1) for line in (rootfs / PACKAGES).read_text().splitlines())
    files = {
        name: {"sha256": sha256_of(work / name), "size_bytes": (work / name).stat().st_size}
        for name in ("vmlinuz", "initrd")
    }
    size_bytes = sum((work / name).stat().st_size for name in files)
    if size_bytes > options["max_size_bytes"]:
        raise BuildFault(
            "BUILD_TOO_LARGE",
            wanted=f"a ramdisk of at most {options['max_size_bytes']} bytes",
            found=f"{size_bytes} bytes",
            cure="take packages out of ramdisk_extra_packages, drop more modules, or raise"
            " ramdisk_max_size_bytes",
        )
    manifest = {
        "name": "ramdisk",
        "key": options["key"],
        "built_at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "suite": options["suite"],
        "architecture": "amd64",
        "kernel_version": _kernel_of(packages),
        "command_line": options["command_line"],
        "files": files,
        "packages": packages,
    }
    (work / "manifest.yml").write_text(yaml.safe_dump(manifest, sort_keys=False))


def _kernel_of(packages: dict[str, str]) -> str:
    names = [name for name in packages if re.match(r"linux-image-\d", name)]
    return names[0].removeprefix("linux-image-")


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

    spec = RootfsSpec(
        suite=options["suite"],
        components=options["components"],
        packages=options["packages"],
        excluded_paths=options["excluded_paths"],
        make_initrd=False,
        mirror=options["mirror"] or None,
        security_mirror=options["security_mirror"] or None,
        keyring=Path(options["keyring"]),
    )
    decisive = ("dropped_modules", "dropped_paths", "command_line", "max_size_bytes")
    key = digest_of(
        [RECIPE, spec.key(), [options[name] for name in decisive]],
        [HERE],
    )
    options["key"] = key

    def make(work: Path) -> None:
        rootfs, _changed = make_rootfs(
            spec, Path(options["work_dir"]), "ramdisk", again=options["rebuild"]
        )
        say("assembling the ramdisk")
        publish(work, rootfs, options)

    output = Path(options["output_dir"])
    directory, changed = build_once(
        output, key, make, again=options["rebuild"], plan_only=arguments.plan_only
    )
    manifest = directory / "manifest.yml"
    return {
        "changed": changed,
        "directory": str(directory),
        "manifest": yaml.safe_load(manifest.read_text()) if manifest.is_file() else None,
    }


if __name__ == "__main__":
    run_as_script(build)
