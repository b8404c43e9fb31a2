"""`penstock status`: one screen with what runs, its health, what waits, and what needs attention."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from http.client import HTTPException
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock.cli.arguments import whole
from penstock.cli.command import Parser
from penstock.cli.output import paint, say, say_json, short, table
from penstock.cli.session import Target, add_target, target_of
from penstock.cli.session import run as run_with_client
from penstock.cli.top import title
from penstock.errors import ServerUnreachable
from penstock.values.wording import octets, printable, span
from penstock.wire.address import text_of
from penstock.wire.http import answer

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub
    from penstock.wire.results import Overview

ANSWER_SECONDS = 30.0
LEVELS = {"ok": "green", "warn": "yellow", "bad": "red"}
ROWS = 10


def configure(parser: Parser) -> None:
    """Add the flag for the number of rows."""
    parser.add_argument("--limit", type=whole(1), default=ROWS, metavar="N", help=f"rows of each table (default: {ROWS})")
    add_target(parser)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Exit with 1 if the server is failing, otherwise with 0."""
    target = target_of(found, os.environ)

    async def work(pubsub: PubSub) -> int:
        info, overview = await asyncio.gather(pubsub.info(), pubsub.overview())
        # The same assessment as on the first page of the console.
        page = await asyncio.to_thread(_page, target) if target.server is not None else None
        if found.json:
            judged = {} if page is None else {key: page[key] for key in ("status", "attention", "totals", "server")}
            say_json({"info": info, **judged, "subscriptions": overview.subscriptions, "queues": overview.queues})
        else:
            say(title(pubsub.link.address, info))
            _show(page, overview, found.limit)
        return 1 if info.problem is not None or (page is not None and page["status"]["level"] == "bad") else 0

    return run_with_client(found, work, target=target)


def _page(target: Target) -> Any:
    path = "/console/api/overview" + (f"?project={quote(target.project)}" if target.project else "")
    with answer(f"{target.server}", path, token=target.token, tls=target.tls(), seconds=ANSWER_SECONDS) as response:
        try:
            return json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:
            raise ServerUnreachable(f"{target.server}", text_of(error)) from error


def _show(page: Any, overview: Overview, limit: int) -> None:
    if page is not None:
        status, totals, server = page["status"], page["totals"], page["server"]
        say(paint(printable(status["text"]), LEVELS[status["level"]]))
        say("")
        oldest = f"; the oldest waits for {span(totals['oldest_seconds'])}" if totals["oldest_seconds"] is not None else ""
        say(
            f"messages  {totals['ready']:,} wait, {totals['in_flight']:,} in flight, {totals['delayed']:,} delayed,"
            f" {totals['dead']:,} dead{oldest}"
        )
        say(f"rates     {short(totals['in_rate'] or 0)}/s published, {short(totals['out_rate'] or 0)}/s acked")
        say(f"server    {', '.join(_server(server))}")
    for kind, dead, rows in (
        ("QUEUE", "DEAD", _queues(overview)),
        ("SUBSCRIPTION", "DEAD-LETTERED", _subscriptions(overview)),
    ):
        if rows:
            rows.sort(key=itemgetter(1, 0), reverse=True)
            shown = [[name, *map(str, numbers), state] for name, *numbers, state in rows[:limit]]
            say("")
            say(table([[kind, "BACKLOG", "IN FLIGHT", dead, "STATE"], *shown]))
            if len(rows) > limit:
                say(f"and {len(rows) - limit:,} more")
    if page is not None and page["attention"]:
        say("\nneeds attention")
        rows = [[f"  {one['kind']}", one["name"] or "-", one["text"]] for one in page["attention"][:limit]]
        say(table(rows, has_heading=False))


def _server(server: Any) -> list[str]:
    parts = []
    if server["memory_bytes"] is not None:
        parts.append(f"{octets(server['memory_bytes'])} of memory")
    if server["disk_free_bytes"] is not None:
        parts.append(f"{octets(server['disk_free_bytes'])} free of {octets(server['disk_total_bytes'])} on disk")
    parts.append(f"event loop at most {span(server['loop_lag_seconds'])} late")
    return parts


def _queues(overview: Overview) -> list[list[Any]]:
    """[name, backlog, in flight, dead, state] of every queue."""
    return [
        [one.queue, one.depth + one.delayed + one.in_flight, one.in_flight, one.dead_letters, "paused" if one.paused else ""]
        for one in overview.queues
    ]


def _subscriptions(overview: Overview) -> list[list[Any]]:
    return [
        [
            one.name,
            one.stats.backlog,
            one.stats.in_flight,
            one.stats.dead_lettered_total,
            "detached" if one.detached else "paused" if one.paused else "",
        ]
        for one in overview.subscriptions
    ]
