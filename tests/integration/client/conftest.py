"""Where the broker of a client is: in this process, in memory and on disk, and behind a socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.stream_drivers import PLACES, Place, places


@pytest.fixture(params=[*PLACES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from places(request, tmp_path)
