"""A temporary certificate and keys for a federation on one machine."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
DAYS = 30


def make_certificate(folder: Path) -> None:
    """Write server.pem and server.key for this machine's loopback addresses.

    The certificate is signed with its own key and cannot sign others.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = _new_key()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write_private(folder / "server.pem", certificate.public_bytes(Encoding.PEM))
    _write_private(folder / "server.key", private)


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


def _write_private(path: Path, data: bytes) -> None:
    """Write a new file that only this user can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(data)
