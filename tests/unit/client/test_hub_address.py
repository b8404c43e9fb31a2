"""Addresses of hubs as people write them."""

import pytest

from penstock.client.hub_address import HINT, checked_address, hub_url
from penstock.errors import InvalidArgument


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("http://127.0.0.1:8085", "ws://127.0.0.1:8085/ws"),
        ("http://hub.example.org/", "ws://hub.example.org:8085/ws"),
        ("https://hub.example.org:443", "wss://hub.example.org:443/ws"),
        ("127.0.0.1:9000", "ws://127.0.0.1:9000/ws"),
        ("http://[::1]:8085", "ws://[::1]:8085/ws"),
        ("ws://127.0.0.1:8085", "ws://127.0.0.1:8085/ws"),
        ("ws://127.0.0.1:8085/", "ws://127.0.0.1:8085/ws"),
        ("wss://example.org/behind/a/proxy", "wss://example.org/behind/a/proxy"),
    ],
)
def test_an_address_becomes_that_of_the_websocket(server: str, url: str) -> None:
    assert hub_url(server) == url


@pytest.mark.parametrize(
    "server",
    [
        None,
        8085,
        "",
        "ws://",
        "ws://:8085/ws",
        "ws://host:0/ws",
        "ws://host:99999/ws",
        "ws://a b/ws",
        "penstock://host:8087",
        "ftp://host",
        "http://host/path",
        "ws://user:secret@host/ws",
        "ws://host/ws?token=secret",
        "ws://host/ws#secret",
    ],
)
def test_what_is_no_address_of_a_hub_is_refused_and_what_may_be_secret_not_repeated(server: object) -> None:
    with pytest.raises(InvalidArgument) as refused:
        hub_url(server)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("address", ["ann", "@(ann)", "@(Browser/ann)", "@(a/b/c)", "@(a/b", "", None, "@(a/" + "b" * 300 + ")"])
def test_what_is_no_address_of_an_actor_is_refused(address: object) -> None:
    with pytest.raises(InvalidArgument, match="browser/ui"):
        checked_address(address)


@pytest.mark.parametrize("server", ["ftp://host", ":8085", "http://host/there", "http://ann:secret@host"])
def test_what_is_no_address_of_a_hub_is_answered_with_how_one_looks(server: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        hub_url(server)

    assert refused.value.hint is not None
    assert refused.value.hint.startswith(HINT)
    assert "secret" not in str(refused.value)
