"""Where a worker works in these tests: on a broker in this process, and on the server that the tests share."""

from __future__ import annotations

import pytest

from penstock import PubSub
from penstock.testing.server import LocalServer
from tests.integration.worker.doing import Make


@pytest.fixture
def server(shared_server: LocalServer) -> LocalServer:
    return shared_server


@pytest.fixture(params=["embedded", "server"])
def make(request: pytest.FixtureRequest, project: str) -> Make:
    """Makes a client of either kind, not yet open."""
    if request.param == "embedded":
        return PubSub
    url = request.getfixturevalue("shared_server").url
    return lambda: PubSub(url, project=project)
