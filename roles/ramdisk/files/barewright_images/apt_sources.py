# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: Barewright contributors
"""Which Debian mirror does this host use? Read from its apt configuration.

Formats: sources.list(5), one line or deb822. A mirror is never invented: a host without a Debian
source has to be told one.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

RELEASE_NAMES = frozenset({"stable", "oldstable", "testing", "unstable", "sid"})

# Settings of the host that say how its mirror is reached and how old its index may be. All else of
# the host's apt configuration describes the host, not the system that is built.
FORWARDED_OPTIONS = re.compile(
    r"Acquire::(?:https?::Proxy(?:::.*)?|https?::Timeout|Retries|Check-Valid-Until|Check-Date)"
)


@dataclasses.dataclass(frozen=True)
class Source:
    """One binary (``deb``) source: where, which suites, which components."""

    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Mirror:
    """``uri`` serves the archive, ``security_uri`` its security updates (None: unknown)."""

    uri: str
    security_uri: str | None

    def apt_lines(self, suite: str, components: Iterable[str]) -> list[str]:
        """The sources.list lines for ``suite`` with its updates."""
        if suite in {"unstable", "sid"}:
            return [f"deb {self.uri} {suite} {' '.join(components)}"]
        joined = " ".join(components)
        lines = [f"deb {self.uri} {suite} {joined}", f"deb {self.uri} {suite}-updates {joined}"]
        if self.security_uri:
            lines.append(f"deb {self.security_uri} {suite}-security {joined}")
        return lines


def parse_one_line(text: str) -> list[Source]:
    """Sources of a ``sources.list``. Lines that are not ``deb`` lines are passed over."""
    sources = []
    for line in text.splitlines():
        line = line.split("#", 1)[0].strip()
        match = re.fullmatch(r"deb\s+(?:\[[^\]]*\]\s*)?(\S+)\s+(\S+)\s*(.*)", line)
        if match:
            uri, suite, components = match.groups()
            sources.append(Source((uri,), (suite,), tuple(components.split())))
    return sources


def parse_deb822(text: str) -> list[Source]:
    """Sources of a ``*.sources`` file without its disabled and its source stanzas."""
    sources = []
    for stanza in re.split(r"\n\s*\n", "\n".join(_without_comments(text))):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line[:1].isspace() and key:
                fields[key] += " " + line.strip()
            elif ":" in line:
                name, value = line.split(":", 1)
                key = name.strip().lower()
                fields[key] = value.strip()
        if fields.get("enabled", "yes").lower() in {
            "no",
            "false",
            "0",
            "off",
            "without",
            "disable",
        }:
            continue
        if "deb" in fields.get("types", "").split() and fields.get("uris") and fields.get("suites"):
            sources.append(
                Source(
                    tuple(fields["uris"].split()),
                    tuple(fields["suites"].split()),
                    tuple(fields.get("components", "").split()),
                )
            )
    return sources


def _without_comments(text: str) -> Iterable[str]:
    return (line for line in text.splitlines() if not line.startswith("#"))


def choose_mirror(sources: Iterable[Source], codename: str) -> Mirror | None:
    """The first source that serves a whole Debian release with component ``main``.

    ``codename`` is the host's own release: sources of other archives name suites such as
    ``bookworm-pgdg`` or components other than main, and so do not match.
    """
    found: str | None = None
    security: str | None = None
    for source in sources:
        usable = [uri for uri in source.uris if re.match(r"(https?|ftp|file|copy)(\+\S+)?:", uri)]
        if not usable or "main" not in source.components:
            continue
        for suite in source.suites:
            release = suite.removesuffix("-security").removesuffix("/updates")
            if release != codename and release not in RELEASE_NAMES:
                continue
            if release == suite:
                found = found or usable[0]
            else:
                security = security or usable[0]
    return Mirror(found, security) if found else None


def read_host_sources(etc_apt: Path = Path("/etc/apt")) -> list[Source]:
    """All binary sources of this host in the order in which apt reads them.

    ``mirror+file:`` addresses, which cloud images use, are replaced by what their file lists.
    """
    sources: list[Source] = []
    main = etc_apt / "sources.list"
    if main.is_file():
        sources += parse_one_line(main.read_text(encoding="utf-8", errors="replace"))
    parts = etc_apt / "sources.list.d"
    for path in sorted(parts.iterdir()) if parts.is_dir() else []:
        if path.suffix == ".list":
            sources += parse_one_line(path.read_text(encoding="utf-8", errors="replace"))
        elif path.suffix == ".sources":
            sources += parse_deb822(path.read_text(encoding="utf-8", errors="replace"))
    return [dataclasses.replace(s, uris=tuple(_resolve(s.uris))) for s in sources]


def _resolve(uris: Iterable[str]) -> Iterable[str]:
    for uri in uris:
        if not uri.startswith("mirror+file:"):
            yield uri
            continue
        listed = Path(uri.removeprefix("mirror+file:"))
        if listed.is_file():
            for line in listed.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.strip() and not line.startswith("#"):
                    yield line.split()[0]


def host_codename(os_release: Path = Path("/etc/os-release")) -> str:
    """VERSION_CODENAME of this host, empty if it has none."""
    match = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', os_release.read_text(), re.MULTILINE)
    return match.group(1) if match else ""


def forwarded_apt_options() -> list[str]:
    """Proxy, timeout and index age settings of this host, as ``Name "value"`` for apt.conf."""
    dump = subprocess.run(
        ["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True
    ).stdout
    return [
        line.rstrip(";")
        for line in dump.splitlines()
        if FORWARDED_OPTIONS.match(line.split(" ", 1)[0]) and not line.endswith('"";')
    ]
