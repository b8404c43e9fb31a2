"""Brokers for the tests of both faces: in memory and on disk, on one clock, closed at the end.

`queue` and `manager` run each test in memory, and in the long ring also on disk. `restart_queue` and `restart_manager` are for
tests of what survives: each call closes the one before and opens the same data directory again.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock import MessageQueue, QueueManager
from penstock.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", pytest.param("durable", marks=pytest.mark.long)])
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "data" if request.param == "durable" else None


@pytest.fixture
def queue(clock: ManualClock, data_dir: Path | None) -> Iterator[MessageQueue]:
    with MessageQueue(clock=clock, data_dir=data_dir) as queue:
        yield queue


@pytest.fixture
def manager(clock: ManualClock, data_dir: Path | None) -> Iterator[QueueManager]:
    with QueueManager(clock=clock, data_dir=data_dir) as manager:
        yield manager


@pytest.fixture
def restart_queue(clock: ManualClock, tmp_path: Path) -> Iterator[Callable[[], MessageQueue]]:
    with ExitStack() as stack:

        def restart() -> MessageQueue:
            stack.close()
            return stack.enter_context(MessageQueue(clock=clock, data_dir=tmp_path / "data"))

        yield restart


@pytest.fixture
def restart_manager(clock: ManualClock, tmp_path: Path) -> Iterator[Callable[[], QueueManager]]:
    with ExitStack() as stack:

        def restart() -> QueueManager:
            stack.close()
            return stack.enter_context(QueueManager(clock=clock, data_dir=tmp_path / "data"))

        yield restart
