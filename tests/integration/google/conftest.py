"""Google's clients for the server that the tests of a process share: each makes topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.integration.google.real_client import Google, connected


@pytest.fixture(scope="session")
def server(shared_server: LocalServer) -> LocalServer:
    return shared_server


@pytest.fixture(scope="session")
def google(server: LocalServer) -> Iterator[Google]:
    yield from connected(server.grpc)


@pytest.fixture(scope="session")
def clock() -> ManualClock:
    """The time of `timed`; it stands still until a test moves it."""
    return ManualClock()


@pytest.fixture(scope="session")
def timed(clock: ManualClock) -> Iterator[Google]:
    """Clients of a server whose time a test moves: minutes and days pass at once."""
    with LocalServer(clock=clock) as server:
        yield from connected(server.grpc)
