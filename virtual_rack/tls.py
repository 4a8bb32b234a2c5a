# SPDX-License-Identifier: Apache-2.0
# Copyright: Barewright contributors
"""The certificate authority of a rack, and the certificates of its BMCs."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from virtual_rack.layout import RackLayout

_LIFETIME = datetime.timedelta(days=825)
# The clock of a machine that compares may run behind.
_BACKDATE = datetime.timedelta(days=1)
_RENEW_BEFORE = datetime.timedelta(days=30)


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Barewright virtual rack"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Put the file there at once and with that mode from the start."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    partial.replace(path)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


class CertificateAuthority:
    """A CA that signs certificates of BMCs; one per rack: to trust one rack trusts no other."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self.certificate = certificate

    @classmethod
    def create(cls, name: str) -> CertificateAuthority:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        subject = _name(f"{name} CA")
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATE)
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(identifier, critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def load(cls, certificate: Path, key: Path) -> CertificateAuthority:
        private_key = serialization.load_pem_private_key(key.read_bytes(), password=None)
        if not isinstance(private_key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key}: not a key of this rack")
        return cls(private_key, x509.load_pem_x509_certificate(certificate.read_bytes()))

    def save(self, certificate: Path, key: Path) -> None:
        _write(key, _key_bytes(self._key), 0o600)
        _write(certificate, self.certificate.public_bytes(serialization.Encoding.PEM), 0o644)

    def usable(self) -> bool:
        """Whether it stays valid long enough to be used again."""
        now = datetime.datetime.now(datetime.UTC)
        return self.certificate.not_valid_after_utc > now + _RENEW_BEFORE

    def issue(
        self,
        certificate: Path,
        key: Path,
        *,
        common_name: str,
        addresses: Iterable[ipaddress.IPv4Address],
        names: Iterable[str] = (),
    ) -> None:
        """Write a certificate, followed by the CA's, and its key, for a server there."""
        private_key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        alternative_names: list[x509.GeneralName] = [x509.IPAddress(a) for a in addresses]
        alternative_names += [x509.DNSName(name) for name in names]
        issued = (
            x509.CertificateBuilder()
            .subject_name(_name(common_name))
            .issuer_name(self.certificate.subject)
            .public_key(private_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATE)
            .not_valid_after(self.certificate.not_valid_after_utc)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(private_key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        _write(key, _key_bytes(private_key), 0o600)
        pem = serialization.Encoding.PEM
        _write(certificate, issued.public_bytes(pem) + self.certificate.public_bytes(pem), 0o644)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def prepare(layout: RackLayout, rack: str, addresses: dict[str, ipaddress.IPv4Address]) -> None:
    """Have a CA and a certificate for each BMC (name and address) in the directory of a rack.

    A CA that is there stays, so that what trusts the rack goes on trusting it; the certificates are
    new.
    """
    layout.ssl.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = None
    if layout.ca_key.exists() and layout.ca_certificate.exists():
        authority = CertificateAuthority.load(layout.ca_certificate, layout.ca_key)
    if authority is None or not authority.usable():
        authority = CertificateAuthority.create(rack)
        authority.save(layout.ca_certificate, layout.ca_key)
    for server, address in addresses.items():
        authority.issue(
            layout.certificate(server),
            layout.certificate_key(server),
            common_name=server,
            addresses=[address],
        )
