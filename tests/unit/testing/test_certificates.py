"""Certificates for tests are trusted, or refused for the reason that was asked for. Handshakes are done in memory."""

import ssl

import pytest

from penstock.testing.certificates import Authority, self_signed


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "127.0.0.1") -> None:
    """Do a whole handshake, without a socket."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in tuple(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_client_that_trusts_the_authority_accepts_its_servers(host: str) -> None:
    authority = Authority()
    shake_hands(authority.client(), authority.server(host), host)


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        (lambda authority: authority.server(days=-1), "certificate has expired"),
        (lambda authority: authority.server("other.example"), "certificate is not valid for '127.0.0.1'"),
        (lambda authority: Authority().server(), "unable to get local issuer certificate|signature failure"),
        (lambda authority: self_signed(), "self.signed certificate"),
    ],
)
def test_other_certificates_are_refused(server: object, problem: str) -> None:
    assert callable(server)
    authority = Authority()
    with pytest.raises(ssl.SSLCertVerificationError, match=problem):
        shake_hands(authority.client(), server(authority))
