# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: Barewright contributors
"""A Debian root filesystem as ``rootfs.tar.zst``, by mmdebstrap, as root or as an ordinary user.

apt checks the signatures of the archive against the keyring of the host; packages are kept in a
cache per suite, so that another build fetches only what is new.
"""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from .apt_sources import (
    Mirror,
    choose_mirror,
    forwarded_apt_options,
    host_codename,
    read_host_sources,
)
from .errors import BuildFault, say
from .host import remove_tree, require_subordinate_ids, require_tools, run, tool_failed
from .store import build_once, digest_of, locked

ARCHIVE = "rootfs.tar.zst"
PACKAGES = "packages.txt"

# Raised when the same options have to give another result.
RECIPE = 1


@dataclasses.dataclass(frozen=True)
class RootfsSpec:
    """What a root filesystem is made of.

    ``skeleton`` is a folder whose files are there before the first package is installed.
    ``excluded_paths`` are dpkg ``path-exclude`` patterns. ``make_initrd`` lets a kernel
    package make its initramfs. ``mirror`` and ``security_mirror`` are None where the host's own apt
    configuration is to decide; they are part of the key only when given.
    """

    suite: str
    components: Sequence[str]
    packages: Sequence[str]
    excluded_paths: Sequence[str] = ()
    make_initrd: bool = True
    skeleton: Path | None = None
    mirror: str | None = None
    security_mirror: str | None = None
    keyring: Path = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

    def key(self) -> str:
        """Digest of everything that decides what is in the archive."""
        options = dataclasses.asdict(self)
        options["packages"] = sorted(set(self.packages))
        options["recipe"] = RECIPE
        del options["skeleton"], options["keyring"]
        return digest_of(options, [self.skeleton] if self.skeleton else [])

    def chosen_mirror(self) -> Mirror:
        """The mirror that was given, else the host's; fault BUILD_MIRROR_UNKNOWN."""
        if self.mirror:
            return Mirror(self.mirror, self.security_mirror)
        chosen = choose_mirror(read_host_sources(), host_codename())
        if chosen is None:
            raise BuildFault(
                "BUILD_MIRROR_UNKNOWN",
                wanted="a Debian mirror",
                found="no source of a Debian release with component main in /etc/apt",
                cure="name one with ramdisk_mirror or image_build_mirror",
            )
        if self.security_mirror:
            return dataclasses.replace(chosen, security_uri=self.security_mirror)
        return chosen


def normalised_tar(tree: Path) -> bytes:
    """``tree`` as a tar in which everything belongs to root, whoever owns the checkout."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(tree.rglob("*")):
            info = archive.gettarinfo(str(path), "./" + str(path.relative_to(tree)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = "root"
            executable = path.is_dir() or bool(path.stat().st_mode & 0o100)
            info.mode = 0o755 if executable else 0o644
            if info.isreg():
                with path.open("rb") as stream:
                    archive.addfile(info, stream)
            else:
                archive.addfile(info)
    return buffer.getvalue()


def make_rootfs(
    spec: RootfsSpec, cache: Path, name: str, *, again: bool = False, plan_only: bool = False
) -> tuple[Path, bool]:
    """``<cache>/rootfs-<name>/<key>/`` with ARCHIVE and PACKAGES, and whether it changed."""
    return build_once(
        cache / f"rootfs-{name}",
        spec.key(),
        lambda work: _debootstrap(spec, cache, work),
        again=again,
        plan_only=plan_only,
    )


def _debootstrap(spec: RootfsSpec, cache: Path, work: Path) -> None:
    require_tools(["mmdebstrap", "apt-config", "tar", "zstd"])
    require_subordinate_ids()
    if not spec.keyring.is_file():
        raise BuildFault(
            "BUILD_KEYRING_MISSING",
            wanted=f"the archive keys in {spec.keyring}",
            found="no such file",
            cure="apt-get install debian-archive-keyring, or set ramdisk_keyring or"
            " image_build_keyring",
        )
    mirror = spec.chosen_mirror()
    archives = cache / "apt" / spec.suite
    say(f"packages of {spec.suite} from {mirror.uri}")
    with locked(cache / "apt" / f".{spec.suite}.lock"):
        archives.mkdir(parents=True, exist_ok=True)
        fresh = archives.with_name(f".{spec.suite}.new")
        remove_tree(fresh)
        fresh.mkdir()
        command = _mmdebstrap(spec, mirror, archives, fresh, work)
        packing = ["zstd", "-q", "-1", "-T0", "-o", str(work / ARCHIVE)]
        _piped(command, packing, work / "log", make_initrd=spec.make_initrd)
        old = archives.with_name(f".{spec.suite}.old")
        remove_tree(old)
        archives.rename(old)
        fresh.rename(archives)
        remove_tree(old)


def _mmdebstrap(
    spec: RootfsSpec, mirror: Mirror, archives: Path, fresh: Path, work: Path
) -> list[str]:
    command = [
        "mmdebstrap",
        "--mode=unshare" if os.geteuid() else "--mode=root",
        "--variant=essential",
        "--format=tar",
        f"--keyring={spec.keyring}",
        f"--include={','.join(sorted(set(spec.packages)))}",
        "--skip=download/empty,essential/unlink,cleanup/apt/cache",
        '--aptopt=APT::Install-Recommends "false"',
        # A crash throws the whole tree away, so nothing is gained by syncing each file.
        "--dpkgopt=force-unsafe-io",
        # Configuration files of the skeleton stay as they are.
        "--dpkgopt=force-confold",
    ]
    command += [f"--aptopt={option}" for option in forwarded_apt_options()]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in spec.excluded_paths]
    # Hooks run in a shell; the folders come from the operator and may hold anything but these.
    for path in (archives, fresh, work):
        if any(character in str(path) for character in " '\"\\$`\n"):
            raise BuildFault(
                "BUILD_PATH_UNUSABLE",
                wanted="a cache folder without blanks and quotes in its path",
                found=str(path),
                cure="choose another cache folder",
            )
    command += [
        '--setup-hook=mkdir -p "$1/var/cache/apt/archives"',
        f"--setup-hook=sync-in {archives} /var/cache/apt/archives",
    ]
    if spec.skeleton:
        skeleton = work / "skeleton.tar"
        skeleton.write_bytes(normalised_tar(spec.skeleton))
        command.append(f"--essential-hook=tar-in {skeleton} /")
    command += [
        # Versions that the mirror no longer offers leave the cache here, the only place where apt
        # knows what it offers.
        '--customize-hook=APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -qq autoclean >&2',
        f"--customize-hook=sync-out /var/cache/apt/archives {fresh}",
        '--customize-hook=rm -rf "$1/var/cache/apt/archives" "$1/etc/apt/apt.conf.d/99mmdebstrap"'
        ' "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"',
        # The image must not know the machine that built it.
        '--customize-hook=rm -f "$1"/etc/ssh/ssh_host_* "$1/etc/hostname" "$1/etc/resolv.conf"'
        ' "$1/var/lib/dbus/machine-id" "$1/var/lib/systemd/random-seed"; : > "$1/etc/machine-id"',
        "--customize-hook=chroot \"$1\" dpkg-query -W -f '${Package} ${Version}\\n'"
        ' > "$1/packages"',
        f"--customize-hook=download /packages {work / PACKAGES}",
        '--customize-hook=rm "$1/packages"',
        spec.suite,
        "-",
        *mirror.apt_lines(spec.suite, spec.components),
    ]
    return command


def unpack(archive: Path, into: Path) -> None:
    """Unpack ARCHIVE without device nodes, which a user namespace may not make."""
    into.mkdir()
    run(
        [
            *("tar", "--use-compress-program=zstd", "-xf", str(archive), "-C", str(into)),
            *("--numeric-owner", "--xattrs", "--xattrs-include=security.capability"),
            "--exclude=./dev/*",
        ]
    )


def overlay(tree: Path, onto: Path) -> None:
    """Lay the files of ``tree`` over a root filesystem, all owned by root."""
    run(["tar", "-xf", "-", "-C", str(onto), "--numeric-owner"], data=normalised_tar(tree))


def _piped(first: list[str], second: list[str], log: Path, *, make_initrd: bool) -> None:
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    if os.geteuid():
        # It may lie under a home folder, which subordinate ids cannot enter.
        environment.pop("TMPDIR", None)
    if not make_initrd:
        environment["INITRD"] = "No"
    with log.open("wb") as errors:
        producer = subprocess.Popen(
            first, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, env=environment
        )
        try:
            consumer = subprocess.run(second, stdin=producer.stdout, stderr=errors, check=False)
        finally:
            if producer.stdout:
                producer.stdout.close()
            status = producer.wait()
    if status or consumer.returncode:
        raise tool_failed(first[0], status or consumer.returncode, log.read_bytes())
