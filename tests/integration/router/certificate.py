"""A certificate for 127.0.0.1 that vouches for itself, in the files that servers of other vendors read."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

STORE_PASSWORD = "penstock"


class CertificateFiles:
    """Written to a folder when it is made: a certificate and a key as PEM, and both in a PKCS #12 store."""

    def __init__(self, folder: Path) -> None:
        self.certificate = folder / "certificate.pem"
        self.key = folder / "key.pem"
        self.store = folder / "store.p12"
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        self.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        protection = BestAvailableEncryption(STORE_PASSWORD.encode())
        self.store.write_bytes(pkcs12.serialize_key_and_certificates(b"server", key, certificate, None, protection))
