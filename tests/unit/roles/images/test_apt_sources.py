# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

from pathlib import Path

import pytest
from barewright_images.apt_sources import (
    Mirror,
    Source,
    choose_mirror,
    parse_deb822,
    parse_one_line,
    read_host_sources,
)
from hypothesis import given
from hypothesis import strategies as st

# As the installer of Debian 12 and the cloud image of Debian 13 write them; the mirror is invented.
ONE_LINE = """
# deb cdrom:[Debian GNU/Linux 12.0.0 _Bookworm_]/ bookworm main
deb http://mirror.example/debian/ bookworm main non-free-firmware
deb-src http://mirror.example/debian/ bookworm main
deb [arch=amd64 signed-by=/k.gpg] https://packages.example/postgresql bookworm-pgdg main
deb http://mirror.example/debian-security bookworm-security main
deb http://mirror.example/debian/ bookworm-updates main
"""
DEB822 = """
Types: deb deb-src
URIs: https://other.example/linux/debian
Suites: trixie
Components: stable

# A comment
Types: deb
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: trixie
Components: main
"""


@pytest.mark.parametrize(
    ("sources", "codename", "expected"),
    [
        (
            parse_one_line(ONE_LINE),
            "bookworm",
            Mirror("http://mirror.example/debian/", "http://mirror.example/debian-security"),
        ),
        (
            parse_deb822(DEB822),
            "trixie",
            Mirror("http://mirror.example/debian", "http://mirror.example/debian-security"),
        ),
    ],
)
def test_the_debian_mirror_of_the_host_is_found_among_other_archives(
    sources: list[Source], codename: str, expected: Mirror
) -> None:
    assert choose_mirror(sources, codename) == expected


def test_a_mirror_is_never_invented() -> None:
    others = [
        *parse_one_line("deb http://archive.example/ubuntu noble main"),
        *parse_one_line("deb cdrom:[Debian]/ bookworm main"),
        *parse_deb822(DEB822.split("\n\n")[0]),
    ]
    assert choose_mirror(others, "bookworm") is None


def test_a_disabled_source_is_not_used() -> None:
    uris = {uri for source in parse_deb822(DEB822) for uri in source.uris}
    assert "http://disabled.example/debian" not in uris


def test_a_list_of_mirrors_is_followed_as_cloud_images_use_it(tmp_path: Path) -> None:
    listed = tmp_path / "mirrors/debian.list"
    listed.parent.mkdir()
    listed.write_text("# first is best\nhttp://near.example/debian\nhttp://far.example/debian\n")
    parts = tmp_path / "apt/sources.list.d"
    parts.mkdir(parents=True)
    (parts / "debian.sources").write_text(
        f"Types: deb\nURIs: mirror+file:{listed}\nSuites: trixie\nComponents: main\n"
    )
    found = choose_mirror(read_host_sources(tmp_path / "apt"), "trixie")
    assert found == Mirror("http://near.example/debian", None)


def test_updates_and_security_come_with_the_suite() -> None:
    lines = Mirror("http://m.example/debian", "http://m.example/s").apt_lines("trixie", ["main"])
    assert lines == [
        "deb http://m.example/debian trixie main",
        "deb http://m.example/debian trixie-updates main",
        "deb http://m.example/s trixie-security main",
    ]
    assert len(Mirror("http://m.example/debian", "x").apt_lines("sid", ["main"])) == 1


@given(st.text())
def test_no_text_in_etc_apt_crashes_the_readers(text: str) -> None:
    for source in parse_one_line(text) + parse_deb822(text):
        assert source.uris
        assert source.suites
