"""Temporary certificates and keys for a federation on one machine."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
DAYS = 30


def make_certificates(folder: Path) -> None:
    """Write ca.crt, server.pem and server.key for this machine's loopback addresses.

    The authority's key is used once and never written.
    """
    authority_key = _new_key()
    server_key = _new_key()
    authority = _name("fedssl, temporary")
    root = _root_certificate(authority, authority_key)
    certificate = _server_certificate(authority, authority_key, server_key)
    _write_private(folder / "ca.crt", _certificate_pem(root))
    _write_private(folder / "server.pem", _certificate_pem(certificate))
    _write_private(folder / "server.key", _key_pem(server_key))


def _root_certificate(authority: Any, key: Any) -> Any:
    """Return the authority's certificate, signed with its own key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    constraints = x509.BasicConstraints(ca=True, path_length=0)
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        _dated_builder(authority, authority, key)
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )


def _server_certificate(authority: Any, authority_key: Any, key: Any) -> Any:
    """Return the server's certificate, signed by the authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
    constraints = x509.BasicConstraints(ca=False, path_length=None)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _dated_builder(_name("localhost"), authority, key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(constraints, critical=True)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def make_node_key(path: Path) -> Path:
    """Write a node's OpenSSH private key to `path` and return the path of its public key."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = _new_key()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public_path = path.with_name(path.name + ".pub")
    _write_private(path, private)
    _write_private(public_path, public + b"\n")
    return public_path


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _name(text: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _dated_builder(subject: Any, issuer: Any, key: Any) -> Any:
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


def _certificate_pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return bytes(certificate.public_bytes(Encoding.PEM))


def _key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _write_private(path: Path, data: bytes) -> None:
    """Write a new file that only this user can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(data)
