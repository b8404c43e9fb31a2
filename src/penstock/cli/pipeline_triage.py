"""`penstock pipeline triage`: dead letters in groups with one cause each."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.arguments import whole
from penstock.cli.command import Parser
from penstock.cli.output import clipped, complain, say, say_json, table, when
from penstock.cli.pipeline_replay import past
from penstock.cli.pipeline_run import add_log, add_spark, check, lake_of, log_of, spark_session
from penstock.clock import SystemClock
from penstock.errors import PermissionDenied
from penstock.values.wording import count

if TYPE_CHECKING:
    from penstock.pipeline.core.triage import Group, Report
    from penstock.pipeline.job import Target

ERROR_WIDTH, TARGET_WIDTH = 60, 40
COLUMNS = ("ID", "COUNT", "FIRST", "LAST", "OF", "REASON", "STATUS", "TARGET", "VERSION", "ERROR")


def add_letters(parser: Parser) -> None:
    """Which dead letters: the flags that `triage` and `redrive` share."""
    parser.add_argument(
        "streams", metavar="STREAM", nargs="*", help="only those of these: queue:NAME for a work queue, or a topic (default: all)"
    )
    parser.add_argument(
        "--since", metavar="TIME", type=past, help="dead since then: 2026-01-31T12:00:00Z, or 2h for two hours ago"
    )
    parser.add_argument("--until", metavar="TIME", type=past, help="dead before that")
    parser.add_argument(
        "--version-attribute",
        metavar="NAME",
        action="append",
        help="the attribute that names the version of the code; give several (default: code_version, app_version, version, …)",
    )


def configure(parser: Parser) -> None:
    """Which letters, and where the groups go."""
    add_letters(parser)
    parser.add_argument("--top", metavar="N", type=whole(1, 10_000), default=20, help="show the N largest groups (20)")
    parser.add_argument("--lake", metavar="PLACE", help="also add the groups to the table `triage` of this lake")
    parser.add_argument("--no-publish", action="store_true", help="do not show the groups in the console of the server")
    add_log(parser)
    add_spark(parser)


def run(found: argparse.Namespace) -> int:
    """Group them."""
    target = log_of(found)
    lake = None if found.lake is None else lake_of(found)
    check(target, names=found.streams or None)
    from penstock.pipeline.core.dead_letters import VERSIONS  # noqa: PLC0415  # errors above need no Spark
    from penstock.pipeline.failure import as_penstock_error  # noqa: PLC0415
    from penstock.pipeline.jobs import triage as job  # noqa: PLC0415

    now = SystemClock().now()
    which = job.Triage(
        streams=tuple(found.streams),
        since=found.since and found.since.at(now),
        until=found.until and found.until.at(now),
        version_attributes=tuple(found.version_attribute or VERSIONS),
    )
    with spark_session(found, "triage") as spark, as_penstock_error():
        report = job.run(spark, target, which, now)
    if lake is not None:
        job.add_to_lake(lake, report)
    if target.endpoint is not None and not found.no_publish:
        publish(target, report)
    show(found, report)
    return 0


def publish(target: Target, report: Report) -> None:
    """Show the groups in the console, if the token may publish there."""
    from penstock.pipeline.jobs import triage as job  # noqa: PLC0415

    try:
        job.publish(target, report)
    except PermissionDenied as error:
        complain(f"the console does not show this triage: {error}")


def show(found: argparse.Namespace, report: Report) -> None:
    """The largest groups, and what to do about each."""
    shown = report.groups[: found.top]
    if found.json:
        say_json({"at": report.at, "total": report.total, "groups": [msgspec.structs.asdict(group) for group in shown]})
        return
    if not shown:
        complain("no dead letters")
        return
    say(table([COLUMNS, *map(_cells, shown)]))
    say("")
    for group in shown:
        say(
            f"{group.id}  {group.action}; see penstock trace {group.samples[-1]}"
            if group.samples
            else f"{group.id}  {group.action}"
        )
    more = len(report.groups) - len(shown)
    rest = f", of which {len(shown)} are shown: --top {len(report.groups)} shows all" if more else ""
    complain(f"{count(report.total, 'dead letter')} in {count(len(report.groups), 'group')}{rest}")


def _cells(group: Group) -> list[str]:
    of = group.stream if group.stream == f"queue:{group.subscription}" else f"{group.stream}/{group.subscription}"
    return [
        group.id,
        f"{group.count:,}",
        when(group.first_at),
        when(group.last_at),
        of,
        group.reason,
        str(group.status or "-"),
        clipped(group.target or "-", TARGET_WIDTH),
        group.version or "-",
        clipped(group.error or "-", ERROR_WIDTH),
    ]
