"""What the commands of the pipeline share: their flags, the plan and the Spark session made of these, and running queries.

Queries run from a terminal: signals stop them, their progress is shown, and a summary ends the run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Self, TypeVar

from penstock.backoff import exponential
from penstock.cli.arguments import duration, pair, whole
from penstock.cli.output import clipped, complain, redraw, redraw_lines, say, say_json_line, short
from penstock.cli.session import add_target, target_of
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import Aborted, InvalidArgument, PenstockError
from penstock.pipeline.progress import QueryProgress
from penstock.values.wording import count, octets, span

if TYPE_CHECKING:
    from penstock.pipeline.job import Plan, Start, Target
    from penstock.pipeline.session import Spark


T = TypeVar("T")

DEFAULT_LAKE = "lake"
DRAW = SECOND // 4
TELL = 5 * SECOND
RESTARTS = 10
MAX_PAUSE = 60 * SECOND
CALM = 10 * 60 * SECOND
"""Seconds without a failure after which the next one counts as the first again."""


def add_spark(parser: argparse.ArgumentParser) -> None:
    """Which Spark does the work."""
    group = parser.add_argument_group("Spark")
    place = group.add_mutually_exclusive_group()
    place.add_argument(
        "--master",
        metavar="URL",
        help="a cluster, as in spark://host:7077 (default: this machine; beside the server all processors but one)",
    )
    place.add_argument("--remote", metavar="URL", help="a Spark Connect server, as in sc://host:15002")
    group.add_argument(
        "--foreground", action="store_true", help="keep the priority and take all processors, also on the server's machine"
    )
    group.add_argument("--driver-memory", metavar="SIZE", help="as in 4g (default: a quarter of this machine's, up to 4g)")
    group.add_argument(
        "--conf", metavar="NAME=VALUE", type=pair, action="append", default=[], help="a setting of Spark; give several"
    )


def add_log(parser: argparse.ArgumentParser) -> None:
    """Where the log is, and `--json`."""
    add_target(parser, "--endpoint", data_dir="a data directory on this machine, for reading; a server may have it open")


def add_lake(parser: argparse.ArgumentParser) -> None:
    """Where the lake is."""
    parser.add_argument(
        "--lake",
        metavar="PLACE",
        default=DEFAULT_LAKE,
        help=f"the lake: a directory, or s3://…, gs://… or az://… with options from the environment (default: {DEFAULT_LAKE})",
    )


def add_job(parser: argparse.ArgumentParser) -> None:
    """What every job takes that reads the log and continues."""
    add_log(parser)
    add_lake(parser)
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="where Spark keeps its progress (default: _penstock/checkpoints in the lake)"
    )
    parser.add_argument("--once", action="store_true", help="take what is there now, then end")
    parser.add_argument(
        "--interval",
        metavar="DURATION",
        type=duration,
        default=1,
        help="how often a batch begins, when there is something new (1s)",
    )
    parser.add_argument("--streams", metavar="PATTERN", default=".*", help="a regular expression of streams (default: all)")
    parser.add_argument("--max-rows", metavar="N", type=whole(1), help="at most N rows in a batch")
    parser.add_argument(
        "--restarts",
        metavar="N",
        type=whole(0),
        default=RESTARTS,
        help=f"how often in a row it starts again after a failure that may pass, such as a server that restarts ({RESTARTS})",
    )
    add_spark(parser)


def add_watermark(parser: argparse.ArgumentParser) -> None:
    """How late is too late."""
    parser.add_argument(
        "--watermark", metavar="DURATION", type=duration, default=600, help="how late an event may come and still count (10m)"
    )


def add_window(parser: argparse.ArgumentParser) -> None:
    """What metrics are made of."""
    parser.add_argument("--window", metavar="DURATION", type=duration, default=60, help="how long a window is (1m)")


def add_hold(parser: argparse.ArgumentParser) -> None:
    """What the archive keeps: whether the broker waits for it, and whether it makes typed tables."""
    parser.add_argument(
        "--hold", action="store_true", help="what is not archived yet stays in the log, whatever its retention says"
    )
    parser.add_argument(
        "--typed", action="store_true", help="also keep a table with the schema's fields as columns for each topic with a schema"
    )


def log_of(found: argparse.Namespace) -> Target:
    """The log that is meant, found as every command finds its broker."""
    from penstock.pipeline.job import Target  # noqa: PLC0415  # `--help` needs no pipeline

    target = target_of(found, os.environ)
    if target.ca is not None and f"{target.server}".startswith("https:"):
        raise InvalidArgument(
            "the pipeline trusts what the system trusts, and a CA is given", hint=f"set SSL_CERT_FILE={target.ca}"
        )
    target.check_directory()
    path = None if target.data_dir is None else os.path.abspath(target.data_dir)  # noqa: PTH100  # links stay as they are
    return Target(endpoint=target.server, path=path, token=target.token, project=target.project)


def plan_of(found: argparse.Namespace) -> Plan:
    """What the flags say. Flags that a command does not take have their default."""
    from penstock.pipeline.job import Plan  # noqa: PLC0415

    lake = lake_of(found)
    if found.checkpoint is None and "://" in lake and not lake.startswith("file:"):
        raise InvalidArgument(
            f"--checkpoint is missing, and the lake is {lake}, expected a directory",
            hint="Spark keeps its progress on a file system",
        )
    return Plan(
        target=log_of(found),
        lake=lake,
        checkpoints=found.checkpoint or f"{lake.rstrip('/')}/_penstock/checkpoints",
        is_once=found.once,
        interval=interval(found.interval),
        streams=found.streams,
        watermark=interval(getattr(found, "watermark", 600)),
        window=interval(getattr(found, "window", 60)),
        max_rows=found.max_rows,
        hold=getattr(found, "hold", False),
        typed=getattr(found, "typed", False),
    )


def lake_of(found: argparse.Namespace) -> str:
    """The place of the lake; a directory with its whole path, since Spark's workers may run in other directories."""
    lake: str = found.lake
    if not lake.strip():
        raise InvalidArgument.of("--lake", lake, "a directory or a URL")
    return lake if "://" in lake else os.path.abspath(lake)  # noqa: PTH100


def interval(seconds: float) -> str:
    """A duration as Spark writes it."""
    return f"{round(seconds * 1000)} milliseconds"


def check(target: Target | None = None, streams: str | None = None, names: Sequence[str] | None = None) -> None:
    """Tell at once what would fail after the seconds that Spark takes to start: no Java, no package, no server, no stream."""
    from penstock.pipeline.java import check_java  # noqa: PLC0415
    from penstock.pipeline.session import check_packages  # noqa: PLC0415

    check_packages()
    check_java()
    if target is not None:
        from penstock.pipeline.job import check_log  # noqa: PLC0415

        check_log(target, streams, names)


def near(found: argparse.Namespace, target: Target) -> Target:
    """The log, read in the directory of its server if Spark is on this machine alone and can open that."""
    from penstock.pipeline.job import nearby  # noqa: PLC0415  # `--help` needs no pipeline
    from penstock.pipeline.session import is_alone  # noqa: PLC0415

    return nearby(target) if found.remote is None and is_alone(found.master or "local") else target


def spark_of(found: argparse.Namespace, command: str) -> Spark:
    """The Spark session that is meant. Beside the server it stands back."""
    from penstock.pipeline.priority import is_on_this_machine  # noqa: PLC0415  # `--help` needs no pipeline
    from penstock.pipeline.session import session  # noqa: PLC0415

    server = log_of(found).endpoint
    return session(
        f"penstock pipeline {command}",
        master=found.master,
        remote=found.remote,
        driver_memory=found.driver_memory,
        conf=dict(found.conf),
        background=not found.foreground and (server is None or is_on_this_machine(server)),
    )


def run_queries(found: argparse.Namespace, name: str, stages: Sequence[Start], plan: Plan) -> int:
    """Run jobs, one after the other, until they end, fail, or are stopped; returns the exit code."""
    begun, done = monotonic(), list[QueryProgress]()
    with told_to_stop() as stop, spark_session(found, name, stop) as spark:
        for start in stages:
            done += _run_stage(start, spark, plan, stop, found)
    sum_up(done, monotonic() - begun, is_json=found.json)
    return 0


def _run_stage(start: Start, spark: Spark, plan: Plan, stop: threading.Event, found: argparse.Namespace) -> list[QueryProgress]:
    """Run queries to their end; again from the start when one fails for a passing reason: each row counts once anyway."""
    from penstock.pipeline.failure import as_penstock_error  # noqa: PLC0415  # `--help` needs no pipeline
    from penstock.pipeline.progress import watch  # noqa: PLC0415

    def act() -> list[QueryProgress]:
        with as_penstock_error():
            queries = start(spark, plan)
        with Screen(is_json=found.json) as screen:
            return watch(queries, stop, screen.show)

    return again(act, stop, found.restarts) or []


def again(act: Callable[[], T], stop: threading.Event, restarts: int) -> T | None:
    """The result of an act, repeated after errors that may pass, `restarts` times in a row at most; None if stopped first."""
    failures = 0
    while not stop.is_set():
        begun = monotonic()
        try:
            return act()
        except PenstockError as error:
            failures = 1 if monotonic() - begun > CALM else failures + 1
            # Two archives that write one lake would take turns forever.
            if not error.transient or isinstance(error, Aborted) or failures > restarts:
                raise
            pause = exponential(failures, SECOND, MAX_PAUSE)
            complain(f"{error}; starting again in {span(pause / SECOND)} ({failures} of {restarts})")
            stop.wait(pause / SECOND)
    return None


@contextmanager
def told_to_stop() -> Iterator[threading.Event]:
    """An event that the first SIGTERM or Ctrl-C sets; the second ends the process at once."""
    stop = threading.Event()

    def end(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)  # Java sees that its input ends, and goes too
        stop.set()

    kept = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextmanager
def spark_session(found: argparse.Namespace, name: str, stop: threading.Event | None = None) -> Iterator[Spark]:
    """The session for a command, ended afterwards unless this process had it before."""
    from penstock.pipeline.session import has_session, ui_address  # noqa: PLC0415

    is_ours = not has_session()
    is_shown = sys.stderr.isatty() and is_ours
    if is_shown:
        redraw("starting Spark …")
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        spark = spark_of(found, name)
    finally:
        signal.signal(signal.SIGINT, interrupted)  # Spark takes Ctrl-C for itself when it starts
        if is_shown:
            redraw("")
    if is_ours and (address := ui_address(spark)) and not (stop is not None and stop.is_set()):
        complain(f"Spark is at {address}")
    try:
        yield spark
    finally:
        if is_ours:
            spark.stop()


class Screen:
    """Shows how far queries are: in place on a terminal, else a line now and then; with `--json` a document for each report."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._is_terminal = sys.stderr.isatty()
        self._drawn = 0
        self._told_at = self._drawn_at = monotonic()
        self._told: dict[str, int] = {}

    def show(self, meters: Sequence[QueryProgress]) -> None:
        """Tell what is new."""
        now = monotonic()
        if self._is_json:
            for meter in meters:
                if meter.last is not None and self._is_news(meter, meter.last.batch):
                    say_json_line(document(meter, now))
        elif self._is_terminal and now - self._drawn_at >= DRAW:
            self._drawn_at = now
            width = shutil.get_terminal_size().columns - 1
            redraw_lines([clipped(line(meter, now), width) for meter in meters], self._drawn)
            self._drawn = len(meters)
        elif not self._is_terminal and now - self._told_at >= TELL:
            self._told_at = now
            for meter in meters:
                if self._is_news(meter, meter.rows):
                    complain(line(meter, now))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the lines off the terminal: the summary, or an error, says it all."""
        if self._drawn:
            redraw_lines([], self._drawn)
            self._drawn = 0

    def _is_news(self, meter: QueryProgress, what: int) -> bool:
        is_news = self._told.get(meter.query, 0 if not self._is_json else -1) != what
        self._told[meter.query] = what
        return is_news


def line(meter: QueryProgress, now: int) -> str:
    """How far a query is, for a person."""
    if meter.last is None:
        return f"{meter.query:<20}  waits for its first batch"
    parts = [f"{meter.query:<20}  {count(meter.rows, 'row')}", f"{short(meter.rate(now))}/s"]
    if meter.last.lag is not None:
        size = meter.last.lag.bytes
        parts.append(f"{short(meter.last.lag.rows)} behind" + (f" ({octets(size)})" if size else ""))
    if meter.batches:
        parts.append(f"batch {meter.last.batch} took {span(meter.last.seconds)}")
    return "  ".join(parts)


def document(meter: QueryProgress, now: int) -> dict[str, object]:
    """How far a query is, for a program."""
    last = meter.last
    return {
        "query": meter.query,
        "rows": meter.rows,
        "batches": meter.batches,
        "rate": round(meter.rate(now), 1),
        "batch": None if last is None else last.batch,
        "batch_rows": 0 if last is None else last.rows,
        "batch_seconds": 0 if last is None else last.seconds,
        "lag": None if last is None or last.lag is None else last.lag.rows,
        "lag_bytes": None if last is None or last.lag is None else last.lag.bytes,
    }


def sum_up(meters: Sequence[QueryProgress], duration: int, *, is_json: bool) -> None:
    """The last words."""
    seconds = duration / SECOND
    if is_json:
        done = {meter.query: {"rows": meter.rows, "batches": meter.batches} for meter in meters}
        say_json_line({"done": done, "seconds": round(seconds, 3)})
        return
    for meter in meters:
        say(f"{meter.query}: {count(meter.rows, 'row')} in {count(meter.batches, 'batch', 'batches')}, {span(seconds)}")
