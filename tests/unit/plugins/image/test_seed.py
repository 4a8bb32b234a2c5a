# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.barewright.metal.plugins.module_utils import gpt, seed
from ansible_collections.barewright.metal.plugins.module_utils.block_device import BlockDevice
from ansible_collections.barewright.metal.plugins.module_utils.fault import Fault
from ansible_collections.barewright.metal.plugins.modules import node_seed
from ansible_collections.barewright.metal.tests.unit.plugins.image.rig import (
    DISK_BYTES,
    MIB,
    loop_device,
    new_gpt,
    sgdisk_problems,
    write_table,
)

REJOIN = seed.Rejoin("http://10.77.0.1:8080", "alpha", "d-1")
NETWORK = {"version": 2, "ethernets": {"lan": {"dhcp4": True}}}
KNOWN = seed.Secrets("PRIVATE CANARY\n", "ssh-ed25519 AAAA alpha", "TOKEN-CANARY")


def request(**changes):
    options = {
        "instance_id": "i-1",
        "hostname": "alpha",
        "fqdn": "alpha.example.org",
        "user_data": {"users": [{"name": "op"}], "runcmd": [["true"]]},
        "network_config": NETWORK,
        "rejoin": REJOIN,
    }
    return seed.SeedRequest(**{**options, **changes})


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(seed, "SCRATCH_ROOT", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


@pytest.fixture
def system(tmp_path):
    """A disk as image_stream leaves it, of either sector size."""

    def make(sector_bytes=512, last_bytes=0):
        content = bytearray(DISK_BYTES)
        table = new_gpt(DISK_BYTES, sector_bytes)
        table.add(last_bytes or 4 * MIB, gpt.BASIC_DATA_GUID, "root")
        if not last_bytes:
            entry = table.partitions[0]
            length = entry.sectors
            table.entries[32:48] = (2048).to_bytes(8, "little") + (2047 + length).to_bytes(
                8, "little"
            )
        write_table(content, table)
        path = tmp_path / f"disk-{sector_bytes}"
        path.write_bytes(content)
        return path

    return make


def write(path, wanted=None, check_mode=False, with_diff=False):
    return node_seed.write_seed(str(path), wanted or request(), check_mode, with_diff)


def read(path, result, name):
    """A file of the seed, as mtools reads it from the disk."""
    place = f"{path}@@{result['partition']['offset_bytes']}"
    done = subprocess.run(["mtype", "-i", place, f"::/{name}"], capture_output=True, check=True)
    return yaml.safe_load(done.stdout)


def test_a_new_seed_is_a_vfat_partition_at_the_end_of_the_disk(system):
    path = system()
    result = write(path)
    assert result["changed"]
    partition = result["partition"]
    assert partition["created"]
    assert partition["size_bytes"] == seed.PARTITION_BYTES
    assert DISK_BYTES - 2 * MIB <= partition["offset_bytes"] + partition["size_bytes"] <= DISK_BYTES
    assert sgdisk_problems(path) == ""
    blkid = ["blkid", "-p", "-o", "export", "-O", str(partition["offset_bytes"]), str(path)]
    found = subprocess.run(blkid, capture_output=True, text=True, check=True).stdout
    assert "LABEL=CIDATA" in found
    assert "TYPE=vfat" in found
    assert read(path, result, "meta-data") == {"instance-id": "i-1", "local-hostname": "alpha"}
    assert read(path, result, "network-config") == NETWORK


def test_the_host_key_of_the_seed_is_the_one_that_is_returned(system, tmp_path):
    path = system()
    result = write(path)
    user_data = read(path, result, "user-data")
    key = tmp_path / "key"
    key.write_text(user_data["ssh_keys"]["ed25519_private"])
    key.chmod(0o600)
    public = subprocess.run(
        ["ssh-keygen", "-y", "-f", str(key)], capture_output=True, text=True, check=True
    ).stdout
    assert public.split()[:2] == result["ssh_host_public_key"].split()
    assert user_data["ssh_deletekeys"] is True
    assert user_data["ssh_genkeytypes"] == ["ed25519"]


def test_a_second_run_changes_nothing_and_keeps_key_and_token(system):
    path = system()
    first = write(path)
    content = path.read_bytes()
    second = write(path)
    assert not second["changed"]
    assert second["host_key_kept"]
    assert not second["partition"]["created"]
    for name in ("ssh_host_public_key", "rejoin_token_sha256"):
        assert second[name] == first[name]
    assert path.read_bytes() == content


def test_another_hostname_keeps_the_key_and_another_instance_gets_a_new_one(system):
    path = system()
    first = write(path)
    renamed = write(path, request(hostname="beta"))
    assert renamed["changed"]
    assert renamed["ssh_host_public_key"] == first["ssh_host_public_key"]
    reinstalled = write(path, request(instance_id="i-2"))
    assert reinstalled["ssh_host_public_key"] != first["ssh_host_public_key"]
    assert reinstalled["rejoin_token_sha256"] != first["rejoin_token_sha256"]


def test_nothing_of_an_older_seed_stays_on_the_disk(system):
    path = system()
    write(path, request(user_data={"password": "OLD-CANARY" * 300}))
    write(path, request(network_config=None, instance_id="i-2"))
    content = path.read_bytes()
    assert b"OLD-CANARY" not in content
    assert b"dhcp4" not in content


def test_a_seed_partition_of_the_image_is_used(system, tmp_path):
    path = system()
    result = write(path)
    offset, size = result["partition"]["offset_bytes"], result["partition"]["size_bytes"]
    image = tmp_path / "image.vfat"
    with open(image, "wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.vfat", "-n", "CIDATA", str(image)], check=True, capture_output=True)
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(image.read_bytes())
    used = write(path)
    assert used["changed"]
    assert used["partition"]["offset_bytes"] == offset
    assert not used["partition"]["created"]
    assert read(path, used, "meta-data")["instance-id"] == "i-1"


def test_a_seed_partition_in_a_dos_table_is_used(tmp_path):
    path = tmp_path / "disk"
    content = bytearray(DISK_BYTES)
    start = 16 * MIB // 512
    content[446:462] = (
        bytes([0, 0, 0, 0, 0x0C, 0, 0, 0])
        + start.to_bytes(4, "little")
        + (4 * MIB // 512).to_bytes(4, "little")
    )
    content[510:512] = b"\x55\xaa"
    path.write_bytes(content)
    place = f"{path}@@{16 * MIB}"
    mformat = ["mformat", "-i", place, "-v", "cidata", "-T", "8192", "-h", "16", "-s", "32", "::"]
    subprocess.run(mformat, check=True)
    result = write(path)
    assert result["partition"] == {
        "number": 1,
        "offset_bytes": 16 * MIB,
        "size_bytes": 4 * MIB,
        "created": False,
    }
    assert read(path, result, "meta-data")["instance-id"] == "i-1"


def test_check_mode_writes_nothing_and_makes_no_key(system, scratch):
    path = system()
    before = path.read_bytes()
    result = write(path, check_mode=True)
    assert result["changed"]
    assert result["partition"]["created"]
    assert result["ssh_host_public_key"] is None
    assert result["rejoin_token_sha256"] is None
    assert path.read_bytes() == before
    done = write(path)
    planned = write(path, check_mode=True)
    assert not planned["changed"]
    assert planned["ssh_host_public_key"] == done["ssh_host_public_key"]
    assert list(scratch.iterdir()) == []


def test_no_secret_is_in_the_result_or_the_diff(system):
    path = system()
    wanted = request(
        user_data={
            "users": [{"name": "op", "hashed_passwd": "CANARY-1", "passwd": "CANARY-2"}],
            "chpasswd": {"list": "op:CANARY-3"},
            "write_files": [{"path": "/x", "content": "CANARY-4"}],
        },
        rejoin=seed.Rejoin("http://10.77.0.1:8080", "alpha", "d-1", "CANARY-5-token"),
    )
    for check_mode in (True, False, False):
        result = json.dumps(write(path, wanted, check_mode, with_diff=True))
        assert "CANARY" not in result
        assert "PRIVATE KEY" not in result
        assert "alpha.example.org" in result


@pytest.mark.parametrize("sector_bytes", gpt.SECTOR_SIZES)
def test_a_block_device_of_either_sector_size_gets_a_seed(system, sector_bytes):
    with loop_device(system(sector_bytes), "--sector-size", str(sector_bytes)) as device:
        result = write(device)
        assert sgdisk_problems(device) == ""
        assert result["partition"]["offset_bytes"] % MIB == 0
        assert not write(device)["changed"]


@pytest.mark.parametrize("sector_bytes", gpt.SECTOR_SIZES)
def test_the_kernel_mounts_the_seed(system, tmp_path, sector_bytes):
    path = system(sector_bytes)
    with loop_device(path, "--sector-size", str(sector_bytes)) as device:
        place = write(device)["partition"]
    offset = f"--offset={place['offset_bytes']}"
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    with loop_device(path, "--sector-size", str(sector_bytes), offset) as partition:
        mount = ["mount", "-o", "ro", "-t", "vfat", partition, str(mounted)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if "unknown filesystem type" in done.stderr or "permission denied" in done.stderr.lower():
            pytest.skip(f"vfat cannot be mounted here: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        try:
            names = sorted(os.listdir(mounted))
        finally:
            subprocess.run(["umount", str(mounted)], check=True)
    assert names == ["meta-data", "network-config", "user-data"]


def test_a_disk_without_room_or_table_is_named(system, tmp_path):
    full = system(last_bytes=DISK_BYTES - 4 * MIB)
    before = full.read_bytes()
    with pytest.raises(Fault, match="SEED_NO_ROOM"):
        write(full)
    assert full.read_bytes() == before
    empty = tmp_path / "empty"
    empty.write_bytes(bytes(DISK_BYTES))
    with pytest.raises(Fault, match="SEED_NO_ROOM"):
        write(empty)


@pytest.mark.parametrize(
    "changes",
    [
        {"instance_id": ""},
        {"instance_id": "a b"},
        {"hostname": "alpha.example.org"},
        {"hostname": "-alpha"},
        {"fqdn": "alpha..org"},
        {"network_config": {"version": 1}},
        {"network_config": {"ethernets": {}}},
        {"user_data": {"ssh_keys": {}}},
        {"user_data": {"ssh_deletekeys": False}},
        {"user_data": {"runcmd": "reboot"}},
        {"rejoin": seed.Rejoin("ftp://host", "alpha", "d-1")},
        {"rejoin": seed.Rejoin("http://host/'; reboot", "alpha", "d-1")},
        {"rejoin": seed.Rejoin("http://host", 'al"pha', "d-1")},
    ],
)
def test_what_a_seed_cannot_say_is_refused(changes):
    with pytest.raises(Fault, match="SEED_INVALID"):
        request(**changes).check()


def test_the_outer_key_of_a_network_configuration_is_optional():
    inner = seed.render(request(), KNOWN)["network-config"]
    outer = seed.render(request(network_config={"network": NETWORK}), KNOWN)["network-config"]
    assert inner == outer


def test_given_lists_come_before_those_of_the_seed():
    given_files = [{"path": "/mine", "content": "x"}]
    text = seed.render(request(user_data={"write_files": given_files, "runcmd": ["mine"]}), KNOWN)
    user_data = yaml.safe_load(text["user-data"])
    assert text["user-data"].startswith("#cloud-config\n")
    assert user_data["write_files"][0] == given_files[0]
    assert user_data["runcmd"][0] == "mine"
    assert user_data["manage_etc_hosts"] == "localhost"
    assert (user_data["hostname"], user_data["fqdn"]) == ("alpha", "alpha.example.org")
    paths = {entry["path"]: entry for entry in user_data["write_files"][1:]}
    assert paths["/etc/barewright/rejoin.json"]["permissions"] == "0600"
    deploy = json.loads(paths["/etc/barewright/deploy.json"]["content"])
    assert deploy == {"deploy_id": "d-1", "node": "alpha", "instance_id": "i-1"}


def test_without_rejoin_the_seed_has_no_unit():
    text = seed.render(request(rejoin=None), KNOWN)["user-data"]
    assert "rejoin" not in text
    assert KNOWN.rejoin_token not in text


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(TEXT.map(lambda name: f"x{name}"), JSON, max_size=4))
def test_what_is_written_is_the_same_as_yaml_and_as_json(user_data):
    text = seed.render(request(user_data=user_data, rejoin=None), KNOWN)["user-data"]
    as_json = json.loads(text.removeprefix("#cloud-config\n"))
    assert yaml.safe_load(text) == as_json
    assert {name: as_json[name] for name in user_data} == user_data


@given(st.binary(min_size=512, max_size=512))
def test_noise_in_a_boot_sector_is_no_seed(noise):
    label = seed._vfat_label(noise)
    assert label is None or b"\x29" in noise


def test_a_broken_seed_is_replaced(system):
    path = system()
    first = write(path)
    start = first["partition"]["offset_bytes"] + 512
    with open(path, "r+b") as disk:
        disk.seek(start)
        disk.write(b"\xff" * 65536)
    second = write(path)
    assert second["changed"]
    assert not second["partition"]["created"]
    assert read(path, second, "meta-data")["instance-id"] == "i-1"


@pytest.fixture
def receiver():
    bodies, answers = [], [503, 204]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["Content-Length"])
            bodies.append((self.path, self.headers["Content-Type"], self.rfile.read(length)))
            self.send_response(answers.pop(0) if answers else 204)
            self.end_headers()

        def log_message(self, *_arguments):
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield running.server_address[1], bodies
    running.shutdown()
    running.server_close()


@pytest.mark.parametrize("client", ["python3", "curl", "wget"])
def test_the_rejoin_script_tells_this_boot_with_each_client_until_it_is_heard(
    tmp_path, receiver, client
):
    if not shutil.which(client):
        pytest.skip(f"{client} is not installed")
    port, bodies = receiver
    rejoin = seed.Rejoin(f"http://127.0.0.1:{port}/", "alpha", "d-1")
    files = {
        entry["path"]: entry["content"]
        for entry in json.loads(
            seed.render(request(rejoin=rejoin), KNOWN)["user-data"].removeprefix("#cloud-config\n")
        )["write_files"]
    }
    etc, run, programs = tmp_path / "etc", tmp_path / "run", tmp_path / "bin"
    for folder in (etc, run, programs):
        folder.mkdir()
    (etc / "rejoin.json").write_text(files["/etc/barewright/rejoin.json"])
    script = files["/usr/local/lib/barewright/rejoin"]
    script = script.replace("/etc/barewright", str(etc)).replace("/run/barewright", str(run))
    for name in ("sed", "mkdir", "sleep", "tail", "rm", client):
        # a shim of a version manager is no python3 that a system has
        real = sys.executable if name == "python3" else shutil.which(name)
        (programs / name).symlink_to(real)
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        env={"PATH": str(programs)},
        timeout=30,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(bodies) == 2
    path, kind, body = bodies[-1]
    assert (path, kind) == ("/v1/rejoin", "application/json")
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot_id:
        assert json.loads(body) == {
            "node": "alpha",
            "token": KNOWN.rejoin_token,
            "deploy_id": "d-1",
            "boot_id": boot_id.read().strip(),
        }
    assert not (run / "rejoin.json").exists()


def test_a_disk_that_loses_what_is_written_is_found_out(system, monkeypatch):
    path = system()
    plain = BlockDevice.write

    def lose(self, offset, content):
        if offset < DISK_BYTES - 4 * MIB and offset > 4 * MIB:
            return
        plain(self, offset, content)

    monkeypatch.setattr(BlockDevice, "write", lose)
    with pytest.raises(Fault, match="DISK_READBACK_DIFFERS"):
        write(path)
