"""Addresses of hubs as people write them."""

import pytest

from penstock.errors import InvalidArgument
from penstock.hub.client.client import HINT, checked_address, hub_url


def test_an_address_becomes_that_of_the_websocket(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("http://127.0.0.1:8085", "ws://127.0.0.1:8085/ws"),
        ("http://hub.example.org/", "ws://hub.example.org:8085/ws"),
        ("https://hub.example.org:443", "wss://hub.example.org:443/ws"),
        ("127.0.0.1:9000", "ws://127.0.0.1:9000/ws"),
        ("http://[::1]:8085", "ws://[::1]:8085/ws"),
        ("ws://127.0.0.1:8085", "ws://127.0.0.1:8085/ws"),
        ("ws://127.0.0.1:8085/", "ws://127.0.0.1:8085/ws"),
        ("wss://example.org/behind/a/proxy", "wss://example.org/behind/a/proxy"),
    ]
    for server, url in rows:
        with subtests.test(server=server, url=url):
            assert hub_url(server) == url


def test_what_is_no_address_of_a_hub_is_refused_and_what_may_be_secret_not_repeated(subtests: pytest.Subtests) -> None:
    rows: list[object] = [
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
    ]
    for server in rows:
        with subtests.test(server=server):
            with pytest.raises(InvalidArgument) as refused:
                hub_url(server)
            assert "secret" not in str(refused.value)


def test_what_is_no_address_of_an_actor_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[object] = ["ann", "@(ann)", "@(Browser/ann)", "@(a/b/c)", "@(a/b", "", None, "@(a/" + "b" * 300 + ")"]
    for address in rows:
        with subtests.test(address=address), pytest.raises(InvalidArgument, match="browser/ui"):
            checked_address(address)


def test_what_is_no_address_of_a_hub_is_answered_with_how_one_looks(subtests: pytest.Subtests) -> None:
    for server in ("ftp://host", ":8085", "http://host/there", "http://ann:secret@host"):
        with subtests.test(server=server):
            with pytest.raises(InvalidArgument) as refused:
                hub_url(server)

            assert refused.value.hint is not None
            assert refused.value.hint.startswith(HINT)
            assert "secret" not in str(refused.value)
