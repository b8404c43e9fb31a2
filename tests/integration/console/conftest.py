"""One browser for the console's tests, one server with a small shop and one without anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from penstock.testing.server import LocalServer
from tests.integration.console.shop import Shop, fill
from tests.integration.hub.chromium import chromium


@dataclass
class ShopServer:
    """A server and what is in it."""

    url: str
    shop: Shop


@pytest.fixture(scope="session")
def devtools() -> Iterator[str]:
    with chromium() as address:
        yield address


@pytest.fixture(scope="module")
def shop() -> Iterator[ShopServer]:
    """Shared: a test that changes something uses a queue of its own."""
    with LocalServer() as server:
        yield ShopServer(server.url, fill(server.broker))


@pytest.fixture(scope="module")
def nothing() -> Iterator[str]:
    """The address of a server that has nothing yet."""
    with LocalServer() as server:
        yield server.url
