"""Certificates and keys for a federation on one machine: made for the occasion, worth nothing afterwards."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
DAYS = 30


def make_certificates(folder: Path) -> None:
    """ca.crt, and server.pem with server.key, good for this machine's loopback addresses. The authority's own key is
    used once and never written."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    authority, server = _key(), _key()
    ca = _name("fedssl, for one occasion")
    basic = x509.BasicConstraints(ca=True, path_length=0)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    root = (
        _dated(ca, ca, authority)
        .add_extension(basic, critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    certificate = (
        _dated(_name("localhost"), ca, server)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(issuer, critical=False)
        .sign(authority, hashes.SHA256())
    )
    _write(folder / "ca.crt", _pem(root))
    _write(folder / "server.pem", _pem(certificate))
    _write(folder / "server.key", _private(server))


def make_node_key(path: Path) -> Path:
    """A node's private key at `path`, as OpenSSH writes it, and its public one at `path`.pub, which this returns."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key, public = _key(), path.with_name(path.name + ".pub")
    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    _write(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def _key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _name(text: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _dated(subject: Any, issuer: Any, key: Any) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return bytes(certificate.public_bytes(Encoding.PEM))


def _private(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _write(path: Path, data: bytes) -> None:
    """For this user's eyes only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(data)
