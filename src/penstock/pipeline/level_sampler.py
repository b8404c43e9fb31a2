"""Samples a server's levels while the metrics job runs, and writes them to the table `levels` and the stream `_penstock.levels`.

Each window ends with a message, so event time advances even if nothing else happens. This closes the windows of the metrics.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import PenstockError
from penstock.pipeline.core.levels import SAMPLES, Sample, rows
from penstock.pipeline.lake.table import SHAPES, Lake
from penstock.pipeline.lake.writing import append_rows
from penstock.pipeline.own_topics import log_with_topic, publish_document
from penstock.pipeline.schemas import LEVELS_STREAM

if TYPE_CHECKING:
    from penstock.log.http import HttpLog
    from penstock.pipeline.job import Plan

log = logging.getLogger("penstock.pipeline")
NAME = "levels"
MIN_SECONDS = 0.2


def start(plan: Plan, is_over: Callable[[], bool]) -> None:
    """Start sampling in a thread, until `is_over` returns true."""
    threading.Thread(target=_run, args=(plan, is_over), name="penstock-levels", daemon=True).start()


def _run(plan: Plan, is_over: Callable[[], bool]) -> None:
    told = ""
    while not is_over():
        try:
            with log_with_topic(plan.target, LEVELS_STREAM) as server:
                _sample(plan, server, is_over)
        except PenstockError as error:
            if str(error) != told:
                told = str(error)
                log.warning("queues and pools are not sampled: %s", error)
            threading.Event().wait(_seconds(plan))


def _sample(plan: Plan, server: HttpLog, is_over: Callable[[], bool]) -> None:
    table, pause = Lake(plan.lake).table(NAME), threading.Event()
    before, samples = _levels(server), list[Sample]()
    while not is_over():
        pause.wait(max(_seconds(plan) / SAMPLES, MIN_SECONDS))
        samples.append(_levels(server))
        if len(samples) == SAMPLES:
            found = rows(samples, before)
            append_rows(found, table, SHAPES[NAME], day="window_end")
            publish_document(server, LEVELS_STREAM, msgspec.json.encode(found))
            before, samples = samples[-1], []


def _levels(server: HttpLog) -> Sample:
    return server.levels(Sample)


def _seconds(plan: Plan) -> float:
    """The length of a window in seconds."""
    return float(plan.window.split()[0]) / 1000 if plan.window.endswith("milliseconds") else 60.0
