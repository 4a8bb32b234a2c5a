# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""Where the files of a rack lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RackLayout:
    """Names every file below the directory of one rack."""

    directory: Path

    @property
    def record(self) -> Path:
        """The running supervisor: JSON, present only while a rack is up (or was killed)."""
        return self.directory / "rack.json"

    @property
    def spec(self) -> Path:
        """The spec that the rack was started with, completed with every default."""
        return self.directory / "spec.yml"

    @property
    def lock(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return self.directory / "rack.lock"

    @property
    def supervisor_log(self) -> Path:
        return self.directory / "supervisor.log"

    @property
    def light_log(self) -> Path:
        return self.directory / "light.log"

    @property
    def accelerator(self) -> Path:
        """What the KVM probe found, valid for one boot of this computer."""
        return self.directory / "accelerator.json"

    @property
    def ca_certificate(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def ssl(self) -> Path:
        return self.directory / "ssl"

    @property
    def ca_key(self) -> Path:
        return self.ssl / "ca.key"

    def certificate(self, server: str) -> Path:
        return self.ssl / f"{server}.crt"

    def certificate_key(self, server: str) -> Path:
        return self.ssl / f"{server}.key"

    def server(self, server: str) -> Path:
        return self.directory / "servers" / server

    def console_log(self, server: str) -> Path:
        """What the machine wrote to its serial port, all boots one after the other."""
        return self.server(server) / "console.log"

    def journal(self, server: str) -> Path:
        """Every command that the BMC received, JSON lines."""
        return self.server(server) / "journal.jsonl"

    def bmc_log(self, server: str) -> Path:
        return self.server(server) / "bmc.log"

    def qemu_log(self, server: str) -> Path:
        return self.server(server) / "qemu.log"

    def nvram(self, server: str, *, secure_boot: bool) -> Path:
        """The variables of the UEFI firmware; those with enrolled keys are another file."""
        return self.server(server) / ("nvram-secure-boot.fd" if secure_boot else "nvram.fd")

    def disk(self, server: str, index: int) -> Path:
        """The raw, sparse contents of a disk, counted as in the spec from 0."""
        return self.server(server) / "disks" / f"{index}.raw"
