"""`penstock pipeline show`: the metrics of the last minutes, as a table or as a page."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import datetime

from penstock.cli.arguments import whole
from penstock.cli.command import Parser
from penstock.cli.output import say, say_json, span, table
from penstock.cli.pipeline_options import add_lake, lake_of

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


def configure(parser: Parser) -> None:
    """Which minutes, and where to."""
    parser.add_argument("--json", action="store_true", help="for programs")
    add_lake(parser)
    parser.add_argument(
        "--minutes", metavar="N", type=whole(1, 100_000), default=10, help="how far back from the newest window (10)"
    )
    parser.add_argument("--html", metavar="FILE", help="write a page with plots")


def run(found: argparse.Namespace) -> int:
    """Show them."""
    from penstock.pipeline.plot import write_html  # noqa: PLC0415  # `--help` needs no lake
    from penstock.pipeline.recent_metrics import recent  # noqa: PLC0415

    rows = recent(lake_of(found), found.minutes)
    if found.html is not None:
        say(str(write_html(rows, found.html)))
    elif found.json:
        say_json(rows)
    else:
        say(table([COLUMNS, *map(cells, rows)]))
    return 0


def cells(row: Mapping[str, object]) -> Sequence[str]:
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
