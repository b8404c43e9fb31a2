"""One Spark session for all tests of a pytest process: starting one takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from penstock.errors import FailedPrecondition
from penstock.pipeline.session import session
from penstock.testing.server import LocalServer
from tests.spark.settings import PYTHONPATH, QUICK, SMALL_DATA
from tests.spark.sink_place import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores, in UTC, with filters pushed down; without a web page."""
    try:
        with pytest.MonkeyPatch.context() as patch:  # Java keeps the environment that it was started in
            patch.setenv("PYTHONPATH", PYTHONPATH)
            started = session("penstock tests", master="local[2]", driver_memory="1g", conf=QUICK | SMALL_DATA)
    except FailedPrecondition as error:
        if "CI" in os.environ:
            raise
        pytest.skip(str(error))  # a laptop without Java
    yield started
    started.stop()


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A server of its own for the tests of a file that write."""
    with LocalServer() as server:
        here = Place(server)
        yield here
        here.log.close()
