"""Processes that commit to a table in a loop are killed again and again, at any moment; readers look on."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import Aborted
from penstock.pipeline.core.offsets import Position
from penstock.pipeline.lake import table as table_module
from penstock.pipeline.lake.table import Lake, Table
from tests.unit.pipeline.test_lake_table import check_at_rest, compact, rows_of, staged

pytestmark = pytest.mark.server

KILLS = int(os.environ.get("PENSTOCK_LAKE_KILLS", "30"))


def forked(work: Callable[[], None]) -> int:
    """A child that does some work until it is killed."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001  # a child must never come back into pytest
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def grow(table: Table) -> None:
    """Append a few rows to what one look at the watermark showed; the other writer may have moved it since."""
    base = table.watermark()
    first = base.get("orders", Position(7, 0)).offset
    stop = first + random.SystemRandom().randint(1, 5)
    table.commit([staged(table, "orders", 7, first, stop)], watermark={"orders": Position(7, stop)}, base=base)


def writing(lake: Path) -> None:
    """Start as an archive does, then append, and merge now and then, without end."""
    table = Lake(lake).table("messages")
    table.recover()
    turn = 0
    while True:
        turn += 1
        try:
            if turn % 3:
                grow(table)
            else:
                table.recover()
                compact(table)
        except (Aborted, FileNotFoundError):  # the other writer was faster; what the test reads may be merged meanwhile
            continue


def offsets_seen(table: Table) -> list[int]:
    """Every row that a reader of the manifest finds, in order, whatever the writers are at."""
    found = []
    for file in table.files("orders"):
        for path in table.places(file):
            with suppress(FileNotFoundError):  # moved a moment ago: then it is at the next place
                found += [int(row.split()[2]) for row in rows_of(path)]
                break
        else:
            pytest.fail(f"{file.path} is nowhere")
    return found


@pytest.mark.timeout(120 + KILLS)
@pytest.mark.parametrize("writers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_killed_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writers: int) -> None:
    monkeypatch.setattr(table_module, "FOLD", 10)
    moments, pause = random.Random(writers), threading.Event()
    reader = Lake(tmp_path).table("messages")
    seen: list[int] = []
    children = [forked(lambda: writing(tmp_path)) for _ in range(writers)]
    try:
        for _ in range(KILLS):
            pause.wait(moments.uniform(0, 0.03))
            victim = moments.randrange(writers)
            os.kill(children[victim], signal.SIGKILL)
            _, status = os.waitpid(children[victim], 0)
            children[victim] = 0
            assert os.WIFSIGNALED(status), "it ended by itself"
            seen = offsets_seen(reader)
            assert seen == list(range(len(seen)))
            children[victim] = forked(lambda: writing(tmp_path))
        deadline = time.monotonic() + 60
        while not seen or seen[-1] < 10:  # on a busy machine most may die before their first commit
            assert time.monotonic() < deadline, "no writer gets anywhere"
            pause.wait(0.02)
            seen = offsets_seen(reader)
    finally:
        for child in filter(None, children):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    check_at_rest(tmp_path)
