"""Where the brokers of the suites are: in this process, on disk, on a server whose clock tests control."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.conformance.stream_drivers import Durable, Memory, Place, Remote


@pytest.fixture(scope="session")
def manual_clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def manual_server(tmp_path_factory: pytest.TempPathFactory, manual_clock: ManualClock) -> Iterator[LocalServer]:
    """A server whose time tests move."""
    with LocalServer(data_dir=tmp_path_factory.mktemp("manual-server"), clock=manual_clock) as server:
        yield server


@pytest.fixture(
    params=["memory", pytest.param("durable", marks=pytest.mark.long), pytest.param("server", marks=pytest.mark.server)]
)
def place(request: pytest.FixtureRequest, tmp_path: Path, project: str, manual_clock: ManualClock) -> Place:
    """Where a broker is."""
    if request.param == "server":
        return Remote(project, manual_clock, request.getfixturevalue)
    return Memory() if request.param == "memory" else Durable(tmp_path / "data")
