"""`penstock nodes`: who owns the log of a cluster and since when, who stands by, and how far the replicas are behind."""

from __future__ import annotations

import argparse
import json
import os
from datetime import datetime
from http.client import HTTPException
from typing import Any

from penstock.cli.command import Parser
from penstock.cli.output import say, say_json, table
from penstock.cli.session import DEFAULT_SERVER, TOKEN_HELP, Target, add_ca, add_server, server_of
from penstock.clock import SystemClock
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, ServerUnreachable
from penstock.values.wording import octets, printable, span
from penstock.wire.address import text_of
from penstock.wire.http import answer

ANSWER_SECONDS = 10.0
SILENT_SECONDS = 5.0
"""After how long without a report a node is shown as silent."""


def configure(parser: Parser) -> None:
    """Which cluster."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    add_server(parser.add_mutually_exclusive_group())
    parser.add_argument("--token", help=TOKEN_HELP)
    add_ca(parser)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """1 if no node owns the log."""
    target = server_of(found, os.environ) or Target(DEFAULT_SERVER)
    page = _asked(target)
    owner = next((one for one in page["nodes"] if one["state"] == "owner" and one["silent_seconds"] < SILENT_SECONDS), None)
    if found.json:
        say_json(page)
    else:
        _show(page)
    return 0 if owner is not None else 1


def _asked(target: Target) -> Any:
    try:
        with answer(f"{target.server}", "/nodes", token=target.token, tls=target.tls(), seconds=ANSWER_SECONDS) as response:
            try:
                return json.loads(response.read())
            except (OSError, HTTPException, ValueError) as error:
                raise ServerUnreachable(f"{target.server}", text_of(error)) from error
    except FailedPrecondition as error:
        raise FailedPrecondition(
            str(error),
            hint="only nodes of a cluster serve it, which run with `penstock serve --journal postgresql://…`",
        ) from error


def _show(page: Any) -> None:
    now = SystemClock().now() / SECOND
    rows = [["NODE", "STATE", "SINCE", "ADDRESS", "VERSION", ""]]
    for one in page["nodes"]:
        silent = one["silent_seconds"]
        rows.append(
            [
                printable(one["node"]),
                one["state"] if one["state"] != "owner" else f"owner, epoch {page['epoch']}",
                span(now - datetime.fromisoformat(one["since"]).timestamp()),
                printable(one["address"]),
                printable(one["version"]),
                f"silent for {span(silent)}" if silent >= SILENT_SECONDS else "",
            ]
        )
    say(table(rows))
    if page["lag_seconds"] is not None:
        say(f"\n{printable(page['node'])} reads a log that is {span(page['lag_seconds'])} behind")
    if page["replicas"]:
        say("")
        rows = [["REPLICA", "STATE", "SYNC", "BEHIND"]]
        for one in page["replicas"]:
            behind = "-" if one["lag_bytes"] is None else octets(one["lag_bytes"])
            if one["lag_seconds"] is not None:
                behind += f", {span(one['lag_seconds'])}"
            rows.append([printable(one["name"]), one["state"] or "-", one["sync"] or "-", behind])
        say(table(rows))
