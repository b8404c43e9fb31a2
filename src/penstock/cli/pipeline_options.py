"""The flags that the commands of the pipeline share, and what they come to: a plan, a Spark session."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.cli.arguments import duration, pair, whole
from penstock.cli.session import add_target, target_of
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.pipeline.job import Plan, Target
    from penstock.pipeline.session import Spark

DEFAULT_LAKE = "lake"


def add_spark(parser: argparse.ArgumentParser) -> None:
    """Which Spark does the work."""
    group = parser.add_argument_group("Spark")
    place = group.add_mutually_exclusive_group()
    place.add_argument("--master", metavar="URL", help="a cluster, as in spark://host:7077 (default: local[*], this machine)")
    place.add_argument("--remote", metavar="URL", help="a Spark Connect server, as in sc://host:15002")
    group.add_argument("--driver-memory", metavar="SIZE", help="as in 4g (default: a quarter of this machine's, up to 4g)")
    group.add_argument(
        "--conf", metavar="NAME=VALUE", type=pair, action="append", default=[], help="a setting of Spark; give several"
    )


def add_log(parser: argparse.ArgumentParser) -> None:
    """Where the log is, and `--json`."""
    add_target(parser, "--endpoint", data_dir="a data directory on this machine, for reading; a server may have it open")


def add_lake(parser: argparse.ArgumentParser) -> None:
    """Where the lake is."""
    parser.add_argument("--lake", metavar="DIR", default=DEFAULT_LAKE, help=f"the lake's directory (default: {DEFAULT_LAKE})")


def add_format(parser: argparse.ArgumentParser) -> None:
    """How the lake is written."""
    parser.add_argument(
        "--format", metavar="NAME", default="parquet", help="of the lake's files, as Spark names it (default: parquet)"
    )


def add_job(parser: argparse.ArgumentParser) -> None:
    """What every job takes that reads the log and goes on."""
    add_log(parser)
    add_lake(parser)
    add_format(parser)
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
    parser.add_argument("--max-rows", metavar="N", type=whole(1), help="at most so many rows a batch")
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
    """Whether the broker waits."""
    parser.add_argument(
        "--hold", action="store_true", help="what is not archived yet stays in the log, whatever its retention says"
    )


def log_of(found: argparse.Namespace) -> Target:
    """The log that is meant, found as every command finds its broker."""
    from penstock.pipeline.job import Target  # noqa: PLC0415  # `--help` needs no pipeline

    target = target_of(found, os.environ)
    target.check_directory()
    path = None if target.data_dir is None else os.path.abspath(target.data_dir)  # noqa: PTH100  # links stay as they are
    return Target(endpoint=target.server, path=path, token=target.token, project=target.project)


def plan_of(found: argparse.Namespace) -> Plan:
    """What the flags say. Flags that a command does not take have their default."""
    from penstock.pipeline.job import Plan  # noqa: PLC0415

    lake = lake_of(found)
    return Plan(
        target=log_of(found),
        lake=lake,
        checkpoints=found.checkpoint or f"{lake.rstrip('/')}/_penstock/checkpoints",
        is_once=found.once,
        interval=interval(found.interval),
        streams=found.streams,
        format=found.format,
        watermark=interval(getattr(found, "watermark", 600)),
        window=interval(getattr(found, "window", 60)),
        max_rows=found.max_rows,
        hold=getattr(found, "hold", False),
    )


def lake_of(found: argparse.Namespace) -> str:
    """The lake's directory; one on this machine with its whole path, since Spark's workers may run in other directories."""
    lake: str = found.lake
    if not lake.strip():
        raise InvalidArgument.of("--lake", lake, "a directory")
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
        from penstock.pipeline.reachability import check_log  # noqa: PLC0415

        check_log(target, streams, names)


def spark_of(found: argparse.Namespace, command: str) -> Spark:
    """The Spark session that is meant."""
    from penstock.pipeline.session import session  # noqa: PLC0415

    return session(
        f"penstock pipeline {command}",
        master=found.master,
        remote=found.remote,
        driver_memory=found.driver_memory,
        conf=dict(found.conf),
    )
