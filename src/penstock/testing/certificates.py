"""Certificates for a test, made in memory: a test authority, and servers that it certifies, or does not.

authority = Authority()
with Target(tls=authority.server("127.0.0.1")) as target:
    ...                                                  # a client with `authority.client()` trusts it, no other does
"""

from __future__ import annotations

import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from penstock.clock import SystemClock
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition
from penstock.extras import how_to_install

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID
except ImportError as error:
    raise FailedPrecondition("certificates need the cryptography library", hint=how_to_install("server")) from error

_DAY = timedelta(days=1)
_SIGNS_CERTIFICATES = x509.KeyUsage(
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


class Authority:
    """A certificate authority. Only clients from `client` trust it."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Penstock test authority")
        builder = _builder(self._name, self._key.public_key(), days=30)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_SIGNS_CERTIFICATES, critical=True)
        self._certificate = _sign(builder, self._name, self._key)

    @property
    def pem(self) -> bytes:
        """The authority's certificate, for other clients that should trust it."""
        return self._certificate.public_bytes(Encoding.PEM)

    def client(self) -> ssl.SSLContext:
        """A client that trusts only this authority."""
        return ssl.create_default_context(cadata=self.pem.decode())

    def server(self, host: str = "127.0.0.1", *, days: int = 1) -> ssl.SSLContext:
        """A server of this name or address with a valid certificate. With negative `days` it expired that many days ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(host), key.public_key(), days=days).add_extension(_names(host), critical=False)
        return _context(key, _sign(builder, self._name, self._key))


def self_signed(host: str = "127.0.0.1") -> ssl.SSLContext:
    """A server with a self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(host), key.public_key(), days=1).add_extension(_names(host), critical=False)
    return _context(key, _sign(builder, _name(host), key))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _names(host: str) -> x509.SubjectAlternativeName:
    try:
        return x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))])
    except ValueError:
        return x509.SubjectAlternativeName([x509.DNSName(host)])


def _builder(name: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(SystemClock().now() / SECOND, UTC)
    end = now + days * _DAY
    builder = x509.CertificateBuilder().subject_name(name).public_key(key).serial_number(x509.random_serial_number())
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    return builder.not_valid_before(min(now, end) - _DAY).not_valid_after(end)


def _sign(builder: x509.CertificateBuilder, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """Sign with the issuer's key, and name that key: clients from Python 3.13 on verify strictly, as RFC 5280 requires."""
    named = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return builder.issuer_name(issuer).add_extension(named, critical=False).sign(key, hashes.SHA256())


def _context(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with tempfile.TemporaryDirectory() as folder:  # OpenSSL reads keys only from files
        path = Path(folder, "server.pem")
        path.write_bytes(private + certificate.public_bytes(Encoding.PEM))
        context.load_cert_chain(path)
    return context
