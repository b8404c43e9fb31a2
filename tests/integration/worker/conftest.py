"""Where a worker works in these tests: on a broker in this process, and on a server that the tests share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from penstock import PubSub
from penstock.testing.server import LocalServer

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.fixture
def project() -> str:
    """A project of the server for each test."""
    return f"project-{next(_numbers)}"


@pytest.fixture(params=["embedded", "server"])
def make(request: pytest.FixtureRequest, project: str) -> Callable[[], PubSub]:
    """Makes a client of either kind, not yet open."""
    if request.param == "embedded":
        return PubSub
    url = request.getfixturevalue("server").url
    return lambda: PubSub(url, project=project)
