# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from barewright_images.rootfs import RootfsSpec, normalised_tar
from barewright_images.store import build_once, digest_of


def _maker(text: str, built: list[str]) -> object:
    def make(work: Path) -> None:
        built.append(text)
        (work / "artefact").write_text(text)

    return make


def test_the_same_input_is_built_once(tmp_path: Path) -> None:
    built: list[str] = []
    for expected_change in (True, False):
        folder, changed = build_once(
            tmp_path, "k1", _maker("one", built), again=False, plan_only=False
        )
        assert changed is expected_change
    assert built == ["one"]
    assert (tmp_path / "current/artefact").read_text() == "one"
    assert folder == tmp_path / "k1"


def test_a_rebuild_replaces_what_is_there(tmp_path: Path) -> None:
    built: list[str] = []
    build_once(tmp_path, "k1", _maker("one", built), again=False, plan_only=False)
    _, changed = build_once(tmp_path, "k1", _maker("two", built), again=True, plan_only=False)
    assert changed
    assert (tmp_path / "current/artefact").read_text() == "two"


def test_a_failed_build_publishes_nothing_and_keeps_the_former(tmp_path: Path) -> None:
    build_once(tmp_path, "k1", _maker("one", []), again=False, plan_only=False)

    def break_down(work: Path) -> None:
        (work / "artefact").write_text("half")
        raise RuntimeError("no space left")

    with pytest.raises(RuntimeError):
        build_once(tmp_path, "k2", break_down, again=False, plan_only=False)
    assert (tmp_path / "current/artefact").read_text() == "one"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "current", "k1"]


def test_what_a_killed_builder_left_is_swept_away(tmp_path: Path) -> None:
    left = tmp_path / ".work-killed/root"
    left.mkdir(parents=True)
    (left / "file").write_text("x")
    left.chmod(0o500)
    build_once(tmp_path, "k1", _maker("one", []), again=False, plan_only=False)
    assert not left.parent.exists()


def test_planning_builds_nothing_and_tells_the_truth(tmp_path: Path) -> None:
    folder = tmp_path / "artefacts"
    assert build_once(folder, "k1", _maker("one", []), again=False, plan_only=True)[1]
    assert not folder.exists()
    build_once(folder, "k1", _maker("one", []), again=False, plan_only=False)
    assert not build_once(folder, "k1", _maker("one", []), again=False, plan_only=True)[1]
    assert build_once(folder, "k2", _maker("two", []), again=False, plan_only=True)[1]


def test_an_older_build_that_is_asked_for_again_becomes_current(tmp_path: Path) -> None:
    for key in ("k1", "k2"):
        build_once(tmp_path, key, _maker(key, []), again=False, plan_only=False)
    built: list[str] = []
    _, changed = build_once(tmp_path, "k1", _maker("k1", built), again=False, plan_only=False)
    assert changed
    assert built == []
    assert os.readlink(tmp_path / "current") == "k1"


def test_only_the_newest_builds_are_kept(tmp_path: Path) -> None:
    for index in range(4):
        build_once(tmp_path, f"k{index}", _maker("x", []), again=False, plan_only=False)
        os.utime(tmp_path / f"k{index}", (index, index))
    build_once(tmp_path, "k9", _maker("x", []), again=False, plan_only=False)
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink()}
    assert folders == {"k3", "k9"}


def test_the_digest_sees_content_name_and_mode_of_files_but_not_their_age(tmp_path: Path) -> None:
    file = tmp_path / "script"
    file.write_text("echo")
    first = digest_of({"a": 1}, [tmp_path])
    os.utime(file, (0, 0))
    assert digest_of({"a": 1}, [tmp_path]) == first
    file.chmod(0o755)
    executable = digest_of({"a": 1}, [tmp_path])
    file.write_text("echo changed")
    changed = digest_of({"a": 1}, [tmp_path])
    file.rename(tmp_path / "other")
    assert len({first, executable, changed, digest_of({"a": 1}, [tmp_path])}) == 4
    assert digest_of({"a": 2}, [tmp_path]) != digest_of({"a": 1}, [tmp_path])


def test_the_host_s_own_mirror_is_no_reason_to_build_again() -> None:
    spec = RootfsSpec(suite="trixie", components=["main"], packages=["b", "a"])
    again = RootfsSpec(suite="trixie", components=["main"], packages=["a", "b", "b"])
    named = RootfsSpec(suite="trixie", components=["main"], packages=["a"], mirror="http://m/")
    assert spec.key() == again.key()
    assert spec.key() != named.key()


def test_files_of_an_image_belong_to_root_whoever_owns_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir(mode=0o700)
    (tmp_path / "bin/tool").write_text("#!/bin/sh\n")
    (tmp_path / "bin/tool").chmod(0o700)
    (tmp_path / "conf").write_text("x")
    (tmp_path / "conf").chmod(0o600)
    with tarfile.open(fileobj=io.BytesIO(normalised_tar(tmp_path))) as archive:
        members = {member.name: member for member in archive.getmembers()}
    assert {(m.uid, m.gid, m.uname) for m in members.values()} == {(0, 0, "root")}
    assert {name: oct(m.mode) for name, m in members.items()} == {
        "./bin": "0o755",
        "./bin/tool": "0o755",
        "./conf": "0o644",
    }
