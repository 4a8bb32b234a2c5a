# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The light image's seed reader, apart from what only a machine can show."""

from __future__ import annotations

import base64
import configparser
import getpass
import gzip
import json
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

STATIC = {
    "version": 2,
    "ethernets": {
        "uplink": {
            "match": {"macaddress": "52:54:00:77:00:01"},
            "addresses": ["10.77.3.1/16", "fd00:77::1/64"],
            "routes": [{"to": "default", "via": "10.77.0.1", "metric": 50}],
            "nameservers": {"addresses": ["10.77.0.1"], "search": ["lab.example"]},
            "mtu": 9000,
        },
        "eno2": {"dhcp4": True, "optional": True},
    },
}


def test_a_static_network_is_matched_by_mac(seed: ModuleType) -> None:
    units = seed.networkd_units(STATIC)
    assert set(units) == {"10-seed-uplink.network", "10-seed-eno2.network"}
    lines = units["10-seed-uplink.network"].splitlines()
    assert lines[:2] == ["[Match]", "MACAddress=52:54:00:77:00:01"]
    for expected in (
        "DHCP=no",
        "Address=10.77.3.1/16",
        "Address=fd00:77::1/64",
        "DNS=10.77.0.1",
        "Domains=lab.example",
        "MTUBytes=9000",
    ):
        assert expected in lines
    route = lines[lines.index("[Route]") :]
    assert route == ["[Route]", "Gateway=10.77.0.1", "Metric=50"]


def test_a_port_without_match_is_matched_by_name(seed: ModuleType) -> None:
    text = seed.networkd_units({"network": STATIC})["10-seed-eno2.network"]
    parser = configparser.ConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[method-assign,assignment]  # keys keep their case
    parser.read_string(text)
    assert parser["Match"]["Name"] == "eno2"
    assert parser["Network"]["DHCP"] == "ipv4"
    assert parser["Link"]["RequiredForOnline"] == "no"


def test_what_is_not_understood_is_named(
    seed: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    seed.networkd_units({"version": 2, "bonds": {}, "ethernets": {"a": {"wakeonlan": True}}})
    said = capsys.readouterr().out
    assert "bonds" in said
    assert "wakeonlan" in said


@pytest.mark.parametrize(
    "text",
    [
        '#cloud-config\n{"hostname": "alpha", "runcmd": ["true"]}',
        "#cloud-config\n# by hand\nhostname: alpha\nruncmd: ['true']\n",
    ],
)
def test_json_and_yaml_are_read_alike(seed: ModuleType, text: str) -> None:
    assert seed.parse(text) == {"hostname": "alpha", "runcmd": ["true"]}


@given(
    content=st.binary(max_size=200),
    encoding=st.sampled_from(["b64", "base64", "gz+b64", "gzip+base64"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_encoded_files_are_decoded(seed: ModuleType, content: bytes, encoding: str) -> None:
    data = gzip.compress(content) if "gz" in encoding else content
    entry = {"content": base64.b64encode(data).decode(), "encoding": encoding}
    assert seed.file_content(entry) == content


def test_files_get_their_permissions_and_may_be_appended_to(
    seed: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "etc/new/file"
    user = getpass.getuser()
    entry = {"path": str(path), "content": "one\n", "permissions": "0640", "owner": user}
    seed.write_seed_file(entry)
    seed.write_seed_file({"path": str(path), "content": "two\n", "append": True})
    assert path.read_text() == "one\ntwo\n"
    assert path.stat().st_mode & 0o777 == 0o640


def _seed(monkeypatch: pytest.MonkeyPatch, seed: ModuleType, **texts: object) -> list[str]:
    """Stand in for the volume and for what changes the system; returns what was done."""
    done: list[str] = []
    monkeypatch.setattr(seed, "find_volume", lambda: "/dev/seed")
    given_texts = {"meta-data": None, "user-data": None, "network-config": None, **texts}
    monkeypatch.setattr(seed, "read_volume", lambda _device: given_texts)
    for name in ("set_names", "set_host_keys", "set_users", "write_seed_file", "grow_root"):
        monkeypatch.setattr(seed, name, lambda *_a, _name=name: done.append(_name))
    return done


def test_an_instance_is_seeded_once_and_a_new_one_again(
    monkeypatch: pytest.MonkeyPatch, seed: ModuleType, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    user_data = {"runcmd": [["sh", "-c", f"echo list >>{ran}"], f"echo text >>{ran}", "exit 3"]}
    for instance, runs in (("i1", 1), ("i1", 1), ("i2", 2)):
        done = _seed(
            monkeypatch,
            seed,
            **{
                "meta-data": json.dumps({"instance-id": instance}),
                "user-data": "#cloud-config\n" + json.dumps(user_data),
            },
        )
        seed.local()
        seed.final()
        assert ran.read_text() == "list\ntext\n" * runs
        del done
    assert (tmp_path / "state/local-instance-id").read_text() == "i2\n"


def test_a_seed_cut_short_is_applied_again(
    monkeypatch: pytest.MonkeyPatch, seed: ModuleType, tmp_path: Path
) -> None:
    done = _seed(monkeypatch, seed, **{"meta-data": '{"instance-id": "i1"}'})
    monkeypatch.setattr(seed, "set_users", lambda _data: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        seed.local()
    assert "set_host_keys" in done
    done = _seed(monkeypatch, seed, **{"meta-data": '{"instance-id": "i1"}'})
    seed.local()
    assert "set_users" in done


def test_a_machine_without_seed_still_gets_a_host_key_of_its_own(
    monkeypatch: pytest.MonkeyPatch, seed: ModuleType
) -> None:
    done = _seed(monkeypatch, seed)
    monkeypatch.setattr(seed, "find_volume", lambda: None)
    seed.local()
    assert done == ["set_host_keys"]


def test_user_data_that_is_no_cloud_config_is_left_out(
    monkeypatch: pytest.MonkeyPatch, seed: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    _seed(monkeypatch, seed, **{"meta-data": '{"instance-id": "i"}', "user-data": "#!/bin/sh\nx"})
    seed.local()
    assert "no #cloud-config" in capsys.readouterr().out
