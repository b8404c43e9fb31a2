"""One server for each test module, and Google's clients for it. Tests share it: each makes topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.integration.google.real_client import Google, connected


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.fixture(scope="module")
def google(server: LocalServer) -> Iterator[Google]:
    yield from connected(server.grpc)


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    """The time of `timed`; it stands still until a test moves it."""
    return ManualClock()


@pytest.fixture(scope="module")
def timed(clock: ManualClock) -> Iterator[Google]:
    """Clients of a server whose time a test moves: minutes and days pass at once."""
    with LocalServer(clock=clock) as server:
        yield from connected(server.grpc)
