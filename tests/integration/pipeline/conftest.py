"""A server for each test, with a clock that stands still; and both ways to its log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.integration.pipeline.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = ManualClock()
    with LocalServer(clock=clock, data_dir=tmp_path / "data") as server:
        yield World(server, clock, tmp_path / "data")


@pytest.fixture(params=["endpoint", pytest.param("path", marks=pytest.mark.long)])
def way(world: World, request: pytest.FixtureRequest) -> World:
    world.way = request.param
    return world
