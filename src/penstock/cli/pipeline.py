"""`penstock pipeline …`: the jobs on Spark. What each does is in `penstock.pipeline.jobs`; here they get their flags."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.cli import pipeline_redrive, pipeline_replay, pipeline_route, pipeline_triage
from penstock.cli import pipeline_run as options
from penstock.cli.arguments import size, whole
from penstock.cli.command import Parser, Verbs
from penstock.cli.output import complain, say, say_json, table
from penstock.cli.pipeline_run import run_queries
from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.values.wording import count, octets, span

COLUMNS = (
    "WINDOW",
    "STREAM",
    "SUBSCRIPTION",
    "CONSUMER",
    "PUBLISHED",
    "ACKED",
    "REDELIVERED",
    "DEAD",
    "WAIT P50",
    "P99",
    "PROCESSING P50",
    "P99",
)


LEVEL_COLUMNS = (
    "WINDOW",
    "KIND",
    "NAME",
    "PRIORITY",
    "READY",
    "MOST",
    "IN FLIGHT",
    "DELAYED",
    "DEAD",
    "OLDEST",
    "RETRIES",
    "UTILISATION",
    "RATE-LIMIT WAITS",
    "OPEN",
)


def configure(parser: Parser) -> None:
    """The jobs."""
    verbs = Verbs(parser)

    archive = verbs.add("archive", "keep all streams and events in a lake, each row exactly once", run_job)
    options.add_job(archive)
    options.add_hold(archive)

    compact = verbs.add("compact", "make few large files of the lake's many small ones", run_compact)
    compact.add_argument("--json", action="store_true", help="print JSON, for programs")
    options.add_lake(compact)
    compact.add_argument("--target-size", metavar="SIZE", type=size, default=128 << 20, help="of a file (128MiB)")

    lifecycle = verbs.add("lifecycle", "make a row of the life of each message in each subscription", run_job)
    options.add_job(lifecycle)
    options.add_watermark(lifecycle)

    metrics = verbs.add("metrics", "make rates, percentiles and ratios of every minute", run_job)
    options.add_job(metrics)
    options.add_watermark(metrics)
    options.add_window(metrics)

    run = verbs.add("run", "run archive, lifecycle and metrics together in one Spark session", run_job)
    options.add_job(run)
    options.add_hold(run)
    options.add_watermark(run)
    options.add_window(run)

    pipeline_replay.configure(verbs.add("replay", "publish a range of a stream again", pipeline_replay.run))
    pipeline_route.configure(verbs.add("route", "deliver the messages of queues to HTTP endpoints", pipeline_route.run))
    pipeline_triage.configure(verbs.add("triage", "group dead letters by what they died of", pipeline_triage.run))
    pipeline_redrive.configure(verbs.add("redrive", "deliver dead letters again, each once", pipeline_redrive.run))
    _add_show(verbs.add("show", "show the metrics of the last minutes", run_show))

    init = verbs.add("init", "write a project for Spark Declarative Pipelines", run_init)
    init.add_argument("directory", metavar="DIR", help="the project's directory, made if it is not there")
    init.add_argument("--name", metavar="NAME", help="the project's name (default: that of its directory)")
    init.add_argument("--force", action="store_true", help="replace files that are there")
    options.add_log(init)


def run_job(found: argparse.Namespace) -> int:
    """Run one that continues."""
    plan = options.plan_of(found)
    options.check(plan.target, plan.streams)
    plan = replace(plan, target=options.near(found, plan.target))
    # Run together and once, metrics come after the lives that they are made of.
    stages = _job("run_all").stages(plan) if found.command == "run" else [_job(found.command).start]
    return run_queries(found, found.command, stages, plan)


def run_compact(found: argparse.Namespace) -> int:
    """Compact the lake."""
    from penstock.pipeline.session import check_packages  # noqa: PLC0415  # `--help` needs no pipeline

    check_packages()
    report = _job("compact").compact(options.lake_of(found), target_bytes=found.target_size)
    if found.json:
        say_json(report._asdict())
        return 0
    if report.files_before == 0:
        say("nothing to compact")
    else:
        sizes = f"{octets(report.bytes_before)} became {octets(report.bytes_after)}"
        say(f"made {report.files_after:,} of {count(report.files_before, 'file')}: {sizes}")
    if report.files_removed:
        say(f"removed {count(report.files_removed, 'file')} that nobody has needed for a week")
    return 0


def run_init(found: argparse.Namespace) -> int:
    """Write the project."""
    from penstock.pipeline.project import write_project  # noqa: PLC0415  # `--help` needs none of it

    target = options.log_of(found)
    if target.endpoint is None:
        raise InvalidArgument("the project reads from a server, and a data directory is meant", hint="name one with --server URL")
    name = found.name or Path(found.directory).absolute().name
    written = [str(path) for path in write_project(found.directory, endpoint=target.endpoint, name=name, force=found.force)]
    if found.json:
        say_json({"name": name, "files": written})
    else:
        say("\n".join(written))
        complain(f"next: cd {found.directory} && spark-pipelines run")
    return 0


def _job(name: str) -> Any:  # Any: a module
    """A job's module, which imports pyspark."""
    return import_module(f"penstock.pipeline.jobs.{name}")


def _add_show(parser: Parser) -> None:
    """The flags of `show`."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    options.add_lake(parser)
    parser.add_argument(
        "--minutes", metavar="N", type=whole(1, 100_000), default=10, help="how far back from the newest window (10)"
    )
    parser.add_argument("--html", metavar="FILE", help="write a page with plots")
    parser.add_argument("--levels", action="store_true", help="show how full queues and how busy pools were, window by window")


def run_show(found: argparse.Namespace) -> int:
    """Show the metrics."""
    from penstock.pipeline.plot import write_html  # noqa: PLC0415  # `--help` needs no lake
    from penstock.pipeline.recent_metrics import LEVELS, METRICS, recent  # noqa: PLC0415

    lake = options.lake_of(found)
    rows = recent(lake, found.minutes, LEVELS if found.levels else METRICS)
    if found.levels and found.html is not None:
        raise InvalidArgument("--html has no page for --levels", hint="leave one of them out")
    if found.html is not None:
        say(str(write_html(rows, found.html)))
    elif found.json:
        say_json(rows)
    elif found.levels:
        say(table([LEVEL_COLUMNS, *map(_level_cells, rows)]))
    else:
        say(table([COLUMNS, *map(_cells, rows)]))
        with suppress(FailedPrecondition):  # a lake of an earlier version, or made from a data directory
            levels = recent(lake, found.minutes, LEVELS)
            last = levels[-1]["window_start"]
            say("")
            say(table([LEVEL_COLUMNS, *(_level_cells(row) for row in levels if row["window_start"] == last)]))
    return 0


def _level_cells(row: Mapping[str, Any]) -> Sequence[str]:
    """A row of the table of levels."""
    return [
        f"{row['window_start']:%H:%M:%S}",
        row["kind"],
        row["name"],
        "-" if row["priority"] is None else str(row["priority"]),
        *(f"{row[name]:,}" for name in ("ready", "ready_max", "in_flight", "delayed", "dead")),
        _milliseconds(row["oldest_age_ms"]),
        f"{row['retries']:,}",
        "-" if row["utilisation"] is None else f"{row['utilisation']:.0%}",
        f"{row['rate_limit_waits']:,}",
        _milliseconds(row["open_ms"]) if row["kind"] == "target" else "-",
    ]


def _cells(row: Mapping[str, object]) -> Sequence[str]:
    """A row of the table."""
    start = row["window_start"]
    return [
        f"{start:%H:%M:%S}" if isinstance(start, datetime) else str(start),
        *(str(row[name] or "-") for name in ("stream", "subscription", "consumer")),
        *(f"{row[name]:,}" for name in ("published", "acked", "redelivered", "dead_lettered")),
        *(_milliseconds(row[name]) for name in ("wait_p50_ms", "wait_p99_ms", "processing_p50_ms", "processing_p99_ms")),
    ]


def _milliseconds(value: object) -> str:
    return span(value / 1000) if isinstance(value, int | float) else "-"
