# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""From bare metal to a running system and back, on a rack of two virtual servers.

Runs the collection's own job playbooks with ``ansible-playbook``, as an operator would, and looks
at the disks from outside before and after. Everything lives below ``.cache/demo``; the rack dies
with this process, whatever ends it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
DIRECTORY = ROOT / ".cache" / "demo"
ARTEFACTS = ROOT / ".cache" / "artefacts"
RACK = DIRECTORY / "rack"
SPEC = ROOT / "demo" / "rack.yml"
# the server that shows cloud-init, and the one that shows how fast a light system is up
IMAGES = {"alpha": "cloud", "beta": "light"}
JOBS = ("enroll", "inspect", "commission", "deploy")


class DemoError(Exception):
    """A command of the demo failed; its own output says why."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    signal.signal(signal.SIGTERM, _terminate)
    clock = Clock()
    try:
        run_demo(clock)
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except DemoError as error:
        say(f"the demo failed: {error}")
        return 1
    finally:
        with ignoring_interrupts():
            rack("down")
    clock.show()
    return 0


def run_demo(clock: Clock) -> None:
    """The whole way; raises DemoError where something did not go as it must."""
    with clock.phase("build ramdisk and images"):
        say("building the ramdisk and two OS images (kept in .cache; nothing to do if there)")
        run([playbook(), "-i", "localhost,", "tests/support/build_images.yml"])
    rack("down")
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    marker = f"BAREWRIGHT-DEMO-{secrets.token_hex(8)}"
    site = Site(marker)
    with clock.phase("start the rack"):
        say("starting a rack of two servers, and its boot server")
        rack("up", str(SPEC), "--parent-pid", str(os.getpid()))
        site.run("demo/boot_server.yml")
    for job in JOBS:
        with clock.phase(job):
            say(f"ansible-playbook barewright.metal.{job}")
            site.run(f"barewright.metal.{job}")
    with clock.phase("log in"):
        say("logging in to both systems, and planting marks on their disks")
        site.run("demo/look.yml")
    planted = count_marks(marker)
    show_marks("before the release", planted)
    if not all(planted.values()):
        raise DemoError("a mark that was planted is not on its disk")
    with clock.phase("release"):
        say("ansible-playbook barewright.metal.release")
        site.run("barewright.metal.release")
    left = count_marks(marker)
    show_marks("after the release", left)
    if any(left.values()):
        raise DemoError("a mark survived the release")
    clock.take_steps(site.times_file)


class Site:
    """The demo's site: runs playbooks inside the rack's network."""

    def __init__(self, marker: str) -> None:
        self.times_file = DIRECTORY / "times.jsonl"
        self._variables = DIRECTORY / "variables.yml"
        images = {node: read_image(flavour) for node, flavour in IMAGES.items()}
        self._variables.write_text(
            yaml.safe_dump(
                {
                    "demo_dir": str(DIRECTORY),
                    "demo_artefacts": str(ARTEFACTS),
                    "demo_images": images,
                    "demo_marker": marker,
                }
            ),
            encoding="utf-8",
        )

    def run(self, name: str) -> None:
        """Run one playbook for both nodes."""
        rack(
            "exec",
            "--",
            playbook(),
            "-i",
            str(ROOT / "demo" / "site"),
            "-e",
            f"@{self._variables}",
            name,
            environment={
                "ANSIBLE_STDOUT_CALLBACK": "barewright.metal.progress",
                "BAREWRIGHT_TIMES_FILE": str(self.times_file),
                # a user's rack has root's name but not root's home
                "ANSIBLE_REMOTE_TMP": f"/tmp/barewright-ansible-{os.getuid()}",
            },
        )


def read_image(flavour: str) -> dict[str, object]:
    """``deploy_image`` of a built image, from the manifest that role image_build wrote."""
    folder = ARTEFACTS / f"image-{flavour}" / "current"
    manifest = yaml.safe_load((folder / "manifest.yml").read_text(encoding="utf-8"))
    keys = ("name", "sha256", "size_bytes", "raw_size_bytes", "compression", "sector_bytes")
    image = {key: manifest[key] for key in keys}
    image["url"] = f"http://10.77.0.1:8080/files/images/{flavour}/{manifest['file']}"
    return image


def count_marks(marker: str) -> dict[str, int]:
    """How often the mark stands on each disk, read from outside."""
    found = {}
    for disk in sorted(RACK.glob("servers/*/disks/*.raw")):
        with disk.open("rb") as stream:
            view = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            count, at = 0, view.find(marker.encode())
            while at >= 0:
                count, at = count + 1, view.find(marker.encode(), at + 1)
            view.close()
        found[f"{disk.parts[-3]} disk {disk.stem}"] = count
    return found


def show_marks(when: str, marks: dict[str, int]) -> None:
    """One line for each disk."""
    for disk, count in marks.items():
        print(f"    {disk:<16} {count} marks {when}, read from outside", flush=True)


class Clock:
    """The time of every phase, and of every step in it."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._phases: list[tuple[str, float]] = []
        self._steps: dict[str, dict[str, dict[str, float]]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure what happens inside."""
        started = time.monotonic()
        yield
        self._phases.append((name, time.monotonic() - started))

    def take_steps(self, times_file: Path) -> None:
        """Read what the callback wrote of each step."""
        for line in times_file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            steps = self._steps.setdefault(row["job"], {})
            steps.setdefault(row["title"], {})[row["node"]] = row["seconds"]

    def show(self) -> None:
        """Print the table."""
        if not self._phases:
            return
        print(f"\n{'phase':<44}{'alpha':>9}{'beta':>9}{'all':>9}   (seconds)")
        for name, seconds in self._phases:
            print(f"{name:<44}{'':>18}{seconds:9.1f}")
            for title, nodes in self._steps.get(name, {}).items():
                cells = "".join(f"{nodes[n]:9.1f}" if n in nodes else " " * 9 for n in IMAGES)
                print(f"  {title:<42}{cells}")
        print(f"{'total':<44}{'':>18}{time.monotonic() - self._started:9.1f}")


def playbook() -> str:
    """The ansible-playbook of this interpreter's environment."""
    return str(Path(sys.executable).parent / "ansible-playbook")


def rack(verb: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
    """Call the rack's own command line."""
    command = [sys.executable, "-m", "virtual_rack", verb, "--dir", str(RACK), *arguments]
    run(command, environment)


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a command in the checkout; raise DemoError when it fails.

    The command is asked to end when this process is interrupted or dies, so that what it started
    is cleaned up by whoever started it.
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
        stdin=subprocess.DEVNULL,
        preexec_fn=_end_with_parent,
    )
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    if code:
        shown = " ".join(Path(part).name if part.startswith("/") else part for part in command)
        raise DemoError(f"exit code {code} of: {shown}")


def _end_with_parent() -> None:
    # PR_SET_PDEATHSIG of prctl(2): SIGTERM, so that Ansible ends its workers too
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def say(text: str) -> None:
    """A heading of the demo."""
    print(f"\n=== {text}", flush=True)


@contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Let the clean-up end even when Ctrl-C is pressed again."""
    before: Callable[..., object] | int | None = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _terminate(number: int, frame: object) -> None:
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
