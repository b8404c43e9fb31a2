"""One server for all tests of a process; each test has a project of its own on it, and so begins with nothing."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.server import LocalServer
from tests.acceptance.command import Penstock

NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


@pytest.fixture
def penstock(server: LocalServer, tmp_path: Path) -> Penstock:
    return Penstock(tmp_path, {"PENSTOCK_SERVER": server.url, "PENSTOCK_PROJECT": f"test-{next(NUMBERS)}"})
