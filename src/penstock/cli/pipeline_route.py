"""`penstock pipeline route`: the router's deliveries on Spark."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from penstock.cli.arguments import duration, whole
from penstock.cli.command import Parser
from penstock.cli.output import complain
from penstock.cli.pipeline_run import (
    RESTARTS,
    Screen,
    add_log,
    add_spark,
    again,
    check,
    log_of,
    spark_session,
    sum_up,
    told_to_stop,
)
from penstock.cli.router import add_places, fetch, places_of
from penstock.cli.settings import add_flags, settings_of
from penstock.clock import monotonic
from penstock.errors import InvalidArgument
from penstock.pipeline.progress import Lag, QueryProgress, Report
from penstock.router.core.config import merge
from penstock.values.wording import count

if TYPE_CHECKING:
    from penstock.pipeline.jobs.route import Batch, Route

PREFIX = "router_"
SETTINGS = (
    "allow",
    "breaker_scope",
    "fifo",
    "http_version",
    "max_attempts",
    "payload",
    "per_target",
    "signing_secret_file",
    "timeout",
)
"""The settings of a router that its deliveries know."""


def configure(parser: Parser) -> None:
    """The configuration, how deliveries are made, and Spark."""
    add_places(parser)
    add_log(parser)
    parser.add_argument("--once", action="store_true", help="deliver what can be delivered now, then end")
    parser.add_argument(
        "--interval", metavar="DURATION", type=duration, default=1, help="how often to look for messages when there are none (1s)"
    )
    parser.add_argument(
        "--rows", metavar="N", type=whole(1, 200_000), default=50_000, help="at most N new messages of a queue in a batch (50000)"
    )
    parser.add_argument(
        "--budget",
        metavar="DURATION",
        type=duration,
        default=60,
        help="how long a task works on a batch: it starts calls in the first half, and cuts off those without an answer (1m)",
    )
    parser.add_argument(
        "--tasks", metavar="N", type=whole(1, 1_000), help="how many tasks deliver a batch (default: as many as Spark has cores)"
    )
    parser.add_argument(
        "--restarts",
        metavar="N",
        type=whole(0),
        default=RESTARTS,
        help=f"how often in a row it starts again after a failure that may pass, such as a server that restarts ({RESTARTS})",
    )
    add_flags(parser, {PREFIX + name for name in SETTINGS}, file_flag="--settings", prefix=PREFIX)
    add_spark(parser)


def run(found: argparse.Namespace) -> int:
    """Route until it is stopped, or nothing is left."""
    route = route_of(found)
    from penstock.pipeline.jobs.route import RouteJob, sources  # noqa: PLC0415  # `--help` needs no pipeline

    assert route.target.endpoint is not None, "checked with the flags"
    names = [source.address for source in sources(route.config, route.target.endpoint)]
    check(route.target, names=[name for name in names if name.startswith("queue:") and not name.startswith("queue:router.")])
    progress, begun = QueryProgress("route", monotonic()), monotonic()
    with told_to_stop() as stop, spark_session(found, "route", stop) as spark:
        with Screen(is_json=found.json) as screen:

            def told(batch: Batch) -> None:
                report = Report(batch.number, str(batch.number), batch.settled, batch.seconds, Lag(batch.carried, None), 0)
                progress.add(report, monotonic())
                screen.show([progress])
                if batch.cut:
                    complain(
                        f"{count(batch.cut, 'call')} had no answer within the budget and will be repeated:"
                        ' raise --budget, or give pools with slow targets "engine": "local"'
                    )

            job = RouteJob(spark, route)
            again(lambda: job.run(stop, told), stop, found.restarts)
        sum_up([progress], monotonic() - begun, is_json=found.json)
    return 0


def route_of(found: argparse.Namespace) -> Route:
    """What the flags and the configuration say."""
    from penstock.pipeline.jobs.route import Route  # noqa: PLC0415
    from penstock.router.host import options_of  # noqa: PLC0415

    target = log_of(found)
    if target.endpoint is None:
        raise InvalidArgument("messages are leased from a server, and a data directory is meant", hint="name one with --endpoint")
    settings, _ = settings_of(found, prefix=PREFIX)
    passed_over: list[str] = []
    config = merge(asyncio.run(fetch(places_of(found), passed_over)))
    for key in passed_over:
        complain(f"{key} is not known and is passed over")
    return Route(
        target=target,
        config=config,
        options=options_of(settings),
        rows=found.rows,
        budget=found.budget,
        interval=found.interval,
        tasks=found.tasks,
        is_once=found.once,
    )
