# Copyright: Barewright contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cloud-init seed of an installed system: a NoCloud file system on the system's own disk.

What cloud-init reads is a vfat file system with the label CIDATA and the files ``meta-data``,
``user-data`` and ``network-config``. They are written as JSON, which is YAML, so that they can be
read without a YAML parser. The file system is made as a file in memory by mtools and written as a
whole: nothing is mounted, and nothing of an older seed stays behind. See docs/seed.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shlex
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import gpt
from .block_device import BlockDevice
from .fault import Fault

LABEL = "CIDATA"
PARTITION_BYTES = 8 << 20
SCRATCH_ROOT = "/run/barewright"
"""A tmpfs: the private key is never on a disk but in the seed itself."""

FILE_NAMES = ("meta-data", "user-data", "network-config")

_FILE_SYSTEM_BYTES = 16 << 20
_CLOUD_CONFIG = "#cloud-config\n"
_TOOL_SECONDS = 60

# What goes into a JSON body and a file name unchanged; the boot protocol allows no more.
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")

Json = dict[str, Any]


@dataclass(frozen=True)
class Rejoin:
    """Whom the installed system tells of each of its boots. ``token`` None: one is made here."""

    url: str
    node: str
    deploy_id: str
    token: str | None = None

    def check(self) -> None:
        """Raise SEED_INVALID for what the boot protocol would refuse."""
        if not re.fullmatch(r"https?://[^\s'\"]+", self.url):
            raise _invalid("rejoin.url of http or https", self.url)
        for name in ("node", "deploy_id"):
            value = getattr(self, name)
            if not _IDENTIFIER.fullmatch(value):
                raise _invalid(f"rejoin.{name} of letters, digits, '.', '_', ':' and '-'", value)


@dataclass(frozen=True)
class SeedRequest:
    """What the seed says. ``fqdn`` empty: the host has no domain."""

    instance_id: str
    hostname: str
    fqdn: str | None = None
    user_data: Mapping[str, Any] = field(default_factory=dict)
    network_config: Mapping[str, Any] | None = None
    rejoin: Rejoin | None = None

    def check(self) -> None:
        """Raise SEED_INVALID for what cloud-init, or the boot protocol, would not take."""
        if not _IDENTIFIER.fullmatch(self.instance_id):
            raise _invalid(
                "an instance_id of letters, digits, '.', '_', ':' and '-'", self.instance_id
            )
        if not _HOST_NAME.fullmatch(self.hostname):
            raise _invalid("a hostname of one RFC 1123 label", self.hostname)
        if self.fqdn and not all(_HOST_NAME.fullmatch(part) for part in self.fqdn.split(".")):
            raise _invalid("an fqdn of RFC 1123 labels", self.fqdn)
        for name in ("ssh_keys", "ssh_genkeytypes", "ssh_deletekeys"):
            if name in self.user_data:
                raise _invalid(
                    "user_data that leaves the SSH host key to the seed", f"it has {name}"
                )
        for name in ("write_files", "runcmd"):
            if not isinstance(self.user_data.get(name, []), list):
                raise _invalid(f"user_data.{name} as a list", "something else")
        if self.network_config is not None and self.network().get("version") != 2:
            raise _invalid("network_config of version 2", str(self.network().get("version")))
        if self.rejoin is not None:
            self.rejoin.check()

    def network(self) -> Json:
        """The network configuration without the outer key ``network`` that some write."""
        given = dict(self.network_config or {})
        inner = given.get("network")
        return dict(inner) if isinstance(inner, dict) else given


@dataclass(frozen=True)
class Place:
    """Where on the disk the seed is, or will be."""

    offset: int
    size_bytes: int
    number: int
    exists: bool


@dataclass(frozen=True)
class Secrets:
    """What must stay the same while the instance is the same."""

    ssh_private_key: str
    ssh_public_key: str
    rejoin_token: str


PLACEHOLDERS = Secrets("(made when written)", "(made when written)", "(made when written)")
"""What check mode shows in place of secrets that it does not make."""


def find_place(device: BlockDevice) -> Place:
    """The partition that holds a vfat file system called CIDATA, or the place for a new one.

    Fault: SEED_NO_ROOM.
    """
    for number, offset, size in _partitions(device):
        if _vfat_label(device.read(offset, 512)) == LABEL:
            return Place(offset, size, number, exists=True)
    _table, added = _table_with_seed(device)
    return Place(
        added.first_lba * device.sector_bytes,
        added.sectors * device.sector_bytes,
        added.number,
        exists=False,
    )


def _partitions(device: BlockDevice) -> list[tuple[int, int, int]]:
    """``(number, offset, size)`` of every partition, sizes in bytes."""
    try:
        table = gpt.parse(device.read, device.sector_bytes)
    except gpt.GptError:
        places = gpt.dos_partitions(device.read(0, 512), device.sector_bytes)
        return [(index + 1, offset, size) for index, (offset, size) in enumerate(places)]
    return [
        (each.number, each.first_lba * device.sector_bytes, each.sectors * device.sector_bytes)
        for each in table.partitions
    ]


def _vfat_label(sector: bytes) -> str | None:
    """The label in the boot sector of a FAT12, FAT16 or FAT32 file system, in upper case."""
    if len(sector) < 512 or sector[510:512] != b"\x55\xaa":
        return None
    for signature, start, kind in ((0x26, 0x2B, 0x36), (0x42, 0x47, 0x52)):
        if sector[signature] == 0x29 and sector[kind : kind + 3] == b"FAT":
            return sector[start : start + 11].decode("ascii", "replace").strip().upper()
    return None


def _table_with_seed(device: BlockDevice) -> tuple[gpt.Gpt, gpt.Partition]:
    try:
        table = gpt.parse(device.read, device.sector_bytes)
        table.relocate(device.sectors)
        added = table.add(PARTITION_BYTES, gpt.BASIC_DATA_GUID, LABEL)
    except gpt.GptError as error:
        raise Fault(
            "SEED_NO_ROOM",
            wanted=f"{device.path}: room for a partition of {PARTITION_BYTES} bytes in a GPT",
            found=str(error),
        ) from error
    return table, added


def read_files(device: BlockDevice, place: Place, scratch: str) -> dict[str, str]:
    """The seed's files by name; those that are missing are left out."""
    if not place.exists or _vfat_bytes(device.read(place.offset, 512)) > _FILE_SYSTEM_BYTES:
        # The seeds that are written here are never larger.
        return {}
    image = os.path.join(scratch, "found.img")
    with open(image, "wb") as stream:
        stream.write(device.read(place.offset, min(place.size_bytes, _FILE_SYSTEM_BYTES)))
    return _read_image(image, scratch)


def _vfat_bytes(sector: bytes) -> int:
    sector_bytes, short_count = struct.unpack_from("<H6xH", sector, 0x0B)
    (long_count,) = struct.unpack_from("<I", sector, 0x20)
    return int(sector_bytes) * int(short_count or long_count)


def _read_image(image: str, scratch: str) -> dict[str, str]:
    listing = _tool(["mdir", "-b", "-i", image, "::"], may_fail=True)
    files = {}
    for line in listing.splitlines():
        name = line.strip().removeprefix("::/")
        if name in FILE_NAMES:
            target = os.path.join(scratch, f"read-{name}")
            _tool(["mcopy", "-n", "-i", image, f"::/{name}", target])
            with open(target, encoding="utf-8", errors="replace") as stream:
                files[name] = stream.read()
            os.unlink(target)
    return files


def secrets_in(files: Mapping[str, str], request: SeedRequest) -> Secrets | None:
    """Host key and rejoin token of a seed that was written for the same instance."""
    try:
        instance_id = json.loads(files["meta-data"])["instance-id"]
        user_data = json.loads(files["user-data"].removeprefix(_CLOUD_CONFIG))
        keys = user_data["ssh_keys"]
        found = Secrets(keys["ed25519_private"], keys["ed25519_public"], _token_in(user_data) or "")
    except (KeyError, TypeError, ValueError):
        return None
    return found if instance_id == request.instance_id else None


def _token_in(user_data: Json) -> str | None:
    for entry in user_data.get("write_files", []):
        if entry.get("path") == "/etc/barewright/rejoin.json":
            return str(json.loads(entry["content"])["token"])
    return None


def make_secrets(found: Secrets | None, request: SeedRequest, scratch: str) -> Secrets:
    """The secrets to write: the found ones, completed by new ones."""
    token = (request.rejoin.token if request.rejoin else None) or (found and found.rejoin_token)
    token = token or secrets.token_urlsafe(32)
    if found is not None:
        return Secrets(found.ssh_private_key, found.ssh_public_key, token)
    path = os.path.join(scratch, "ssh_host_ed25519_key")
    _tool(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", request.hostname, "-f", path])
    with open(path, encoding="ascii") as private, open(f"{path}.pub", encoding="ascii") as public:
        return Secrets(private.read(), public.read().strip(), token)


def render(request: SeedRequest, known: Secrets) -> dict[str, str]:
    """The files of the seed."""
    meta_data = {"instance-id": request.instance_id, "local-hostname": request.hostname}
    files = {
        "meta-data": _json(meta_data),
        "user-data": _CLOUD_CONFIG + _json(_user_data(request, known)),
    }
    if request.network_config is not None:
        files["network-config"] = _json(request.network())
    return files


def _user_data(request: SeedRequest, known: Secrets) -> Json:
    given = dict(request.user_data)
    ours: Json = {
        "hostname": request.hostname,
        "fqdn": request.fqdn or request.hostname,
        # cloud-init deletes the keys that came with the image, then writes these.
        "ssh_deletekeys": True,
        "ssh_genkeytypes": ["ed25519"],
        "ssh_keys": {
            "ed25519_private": known.ssh_private_key,
            "ed25519_public": known.ssh_public_key,
        },
    }
    merged = {"manage_etc_hosts": "localhost", **given, **ours}
    if request.rejoin is not None:
        merged["write_files"] = [
            *given.get("write_files", []),
            *_rejoin_files(request.rejoin, request.instance_id, known),
        ]
        merged["runcmd"] = [*given.get("runcmd", []), _START_REJOIN]
    return merged


_START_REJOIN = [
    "sh",
    "-c",
    "command -v systemctl >/dev/null || exit 0; systemctl daemon-reload; "
    "systemctl enable barewright-rejoin.service; "
    "systemctl start --no-block barewright-rejoin.service",
]


def _rejoin_files(rejoin: Rejoin, instance_id: str, known: Secrets) -> list[Json]:
    deploy = {
        "deploy_id": rejoin.deploy_id,
        "node": rejoin.node,
        "instance_id": instance_id,
    }
    body = {
        "node": rejoin.node,
        "token": known.rejoin_token,
        "boot_id": "BOOT_ID",
        "deploy_id": rejoin.deploy_id,
    }
    script = _REJOIN_SCRIPT.replace(
        "REJOIN_URL", shlex.quote(rejoin.url.rstrip("/") + "/v1/rejoin")
    )
    return [
        _file("/etc/barewright/deploy.json", "0644", _json(deploy)),
        _file("/etc/barewright/rejoin.json", "0600", _json(body)),
        _file("/usr/local/lib/barewright/rejoin", "0755", script),
        _file("/etc/systemd/system/barewright-rejoin.service", "0644", _REJOIN_UNIT),
    ]


def _file(path: str, permissions: str, content: str) -> Json:
    return {
        "path": path,
        "owner": "root:root",
        "permissions": permissions,
        "content": content,
    }


_REJOIN_UNIT = """\
[Unit]
Description=Tell the boot server that this boot is up
Wants=network-online.target
After=network-online.target ssh.service sshd.service

[Service]
Type=simple
ExecStart=/bin/sh /usr/local/lib/barewright/rejoin
Restart=on-failure
RestartSec=10
RuntimeDirectory=barewright
RuntimeDirectoryPreserve=yes

[Install]
WantedBy=multi-user.target
"""

# Plain sh and one of three clients, whichever the system has. The token goes through a file, as
# arguments are for everyone to see; a server that is away, or does not know us yet, is asked again.
_REJOIN_SCRIPT = """\
#!/bin/sh
set -u
umask 077
url=REJOIN_URL
mkdir -p /run/barewright
body=/run/barewright/rejoin.json
read -r boot_id </proc/sys/kernel/random/boot_id
sed "s/BOOT_ID/$boot_id/" /etc/barewright/rejoin.json >"$body" || exit 1

post() {
    if command -v python3 >/dev/null; then
        python3 -c '
import sys, urllib.request
body = open(sys.argv[2], "rb").read()
headers = {"Content-Type": "application/json"}
request = urllib.request.Request(sys.argv[1], body, headers, method="POST")
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10)
' "$url" "$body"
    elif command -v curl >/dev/null; then
        curl --silent --show-error --fail --noproxy '*' --max-time 10 --output /dev/null \\
            --header 'Content-Type: application/json' --data-binary "@$body" "$url"
    else
        wget --quiet --no-proxy --timeout=10 --tries=1 --output-document=/dev/null \\
            --header='Content-Type: application/json' --post-file="$body" "$url"
    fi
}

delay=2
until post 2>/run/barewright/rejoin.error; do
    tail -n 1 /run/barewright/rejoin.error >&2
    sleep "$delay"
    delay=$((delay * 2))
    [ "$delay" -le 300 ] || delay=300
done
rm -f "$body"
"""


def write(device: BlockDevice, place: Place, files: Mapping[str, str], scratch: str) -> None:
    """Write the seed, then the partition table when the partition is new; read all of it back.

    Faults: TOOL_FAILED, SEED_NO_ROOM, DISK_*.
    """
    content = _make_image(device.sector_bytes, place, files, scratch)
    device.write(place.offset, content)
    rest = place.size_bytes - len(content)
    if rest > 0:
        # An older, larger file system may have left a key here.
        start = place.offset + len(content)
        if not device.punch(start, rest):
            device.zero(start, rest)
    device.sync()
    if not place.exists:
        _write_table(device, place)
    if device.read(place.offset, len(content)) != content:
        raise _differs(device, "the seed")
    found = find_place(device)
    if (found.offset, found.exists) != (place.offset, True):
        raise _differs(device, "a partition with the seed")
    device.reread_partitions()


def _make_image(sector_bytes: int, place: Place, files: Mapping[str, str], scratch: str) -> bytes:
    """A FAT file system whose sectors are the disk's: the kernel mounts no smaller ones."""
    image = os.path.join(scratch, "seed.img")
    sectors = min(place.size_bytes, _FILE_SYSTEM_BYTES) // sector_bytes
    with open(image, "wb") as stream:
        stream.truncate(sectors * sector_bytes)
    size_code = sector_bytes.bit_length() - 1 - 7  # mformat counts from 128 bytes
    geometry = ["-S", str(size_code), "-T", str(sectors), "-h", "16", "-s", "32"]
    _tool(["mformat", "-i", image, "-v", LABEL, *geometry, "::"])
    for name, text in files.items():
        source = os.path.join(scratch, name)
        with open(source, "w", encoding="utf-8") as stream:
            stream.write(text)
        _tool(["mcopy", "-i", image, source, f"::/{name}"])
        os.unlink(source)
    if _read_image(image, scratch) != dict(files):
        raise Fault("TOOL_FAILED", wanted="mtools to keep the seed's files", found="other content")
    with open(image, "rb") as stream:
        return stream.read()


def _write_table(device: BlockDevice, place: Place) -> None:
    table, added = _table_with_seed(device)
    if added.first_lba * device.sector_bytes != place.offset:
        raise _differs(device, "the partition table of a moment ago")
    sector_bytes = device.sector_bytes
    # The backup first: at every moment one of the two copies is whole.
    for copy in (table.backup(), table.primary()):
        for lba, content in copy.items():
            device.write(lba * sector_bytes, content)
        device.sync()
    first = device.read(0, sector_bytes)
    device.write(0, gpt.protect(first, device.sectors))
    device.sync()
    for lba in (1, device.sectors - 1):
        try:
            written = gpt.parse(device.read, sector_bytes, lba)
        except gpt.GptError as error:
            raise _differs(device, f"a valid table in sector {lba}") from error
        if written.entries != table.entries:
            raise _differs(device, f"the new table in sector {lba}")


def scratch_directory() -> tempfile.TemporaryDirectory[str]:
    """A private directory in memory for the making of a seed."""
    os.makedirs(SCRATCH_ROOT, mode=0o755, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="seed-", dir=SCRATCH_ROOT)


# Keys of cloud-config whose values are not for a terminal.
_PRIVATE_KEYS = re.compile(r"(?i)passw|token|secret|private|content$|chpasswd|hashed")


def shown(files: Mapping[str, str]) -> str:
    """The files for a diff, with everything left out that is, or may be, a secret."""
    lines = []
    for name in FILE_NAMES:
        if name in files:
            text = files[name].removeprefix(_CLOUD_CONFIG)
            try:
                text = json.dumps(_redacted(json.loads(text)), indent=2, sort_keys=True)
            except ValueError:
                text = "(not written by barewright)"
            lines.append(f"--- {name}\n{text}\n")
    return "".join(lines)


def _redacted(value: Any, key: str = "") -> Any:
    if _PRIVATE_KEYS.search(key):
        return "(not shown)"
    if isinstance(value, dict):
        return {name: _redacted(each, str(name)) for name, each in value.items()}
    if isinstance(value, list):
        return [_redacted(each) for each in value]
    return value


def public_key(known: Secrets) -> str:
    """Type and key, without the comment: what known_hosts wants."""
    return " ".join(known.ssh_public_key.split()[:2])


def token_sha256(known: Secrets) -> str:
    """What the boot server keeps of the rejoin token."""
    return hashlib.sha256(known.rejoin_token.encode()).hexdigest()


# Characters that JSON leaves as they are and YAML forbids, or takes for the end of a line.
_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def _json(content: Json) -> str:
    """JSON that is YAML as well. Escaping all of Unicode would not be: YAML knows no surrogates."""
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return _NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _invalid(wanted: str, found: str) -> Fault:
    return Fault("SEED_INVALID", wanted=wanted, found=found)


def _differs(device: BlockDevice, wanted: str) -> Fault:
    return Fault("DISK_READBACK_DIFFERS", wanted=f"{wanted} on {device.path}", found="other bytes")


def _tool(command: list[str], may_fail: bool = False) -> str:
    # mtools would ask questions, check names against a configuration, or lock a device.
    environment = {**os.environ, "MTOOLSRC": os.devnull, "MTOOLS_SKIP_CHECK": "1", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TOOL_SECONDS,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Fault("TOOL_FAILED", wanted=f"to run {command[0]}", found=str(error)) from error
    if done.returncode != 0 and not may_fail:
        raise Fault(
            "TOOL_FAILED",
            wanted=f"{command[0]} to succeed",
            found=done.stderr.decode("utf-8", "replace").strip()[-500:],
            details={"exit_status": done.returncode},
        )
    return done.stdout.decode("utf-8", "replace")
