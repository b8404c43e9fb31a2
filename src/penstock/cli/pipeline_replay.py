"""`penstock pipeline replay STREAM`: a range of a stream, published again."""

from __future__ import annotations

import argparse
import asyncio
import secrets
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.arguments import duration, instant, whole
from penstock.cli.command import Parser
from penstock.cli.input import add_yes, confirm
from penstock.cli.output import facts, say, say_json
from penstock.cli.pipeline_run import add_lake, add_log, add_spark, check, lake_of, log_of, near, spark_session
from penstock.clock import SystemClock
from penstock.durations import SECOND, to_datetime
from penstock.durations import instant as micros_of
from penstock.errors import InvalidArgument
from penstock.values.wording import count, moment, octets, span

if TYPE_CHECKING:
    from penstock.pipeline.core.replay import Replay, ReplayExtent

STORAGES = ("auto", "log", "lake")


def configure(parser: Parser) -> None:
    """Which messages, where to, how fast."""
    parser.add_argument("stream", metavar="STREAM", help="what is replayed: a topic, or queue:NAME for a work queue")
    parser.add_argument("--to", metavar="STREAM", help="where to: a topic, or queue:NAME")
    parser.add_argument("--from-offset", metavar="N", type=whole(0), help="the first offset (default: the oldest there is)")
    parser.add_argument("--to-offset", metavar="N", type=whole(0), help="the offset to stop before (default: the end)")
    parser.add_argument(
        "--since", metavar="TIME", type=past, help="published then or later: 2026-01-31T12:00:00Z, or 2h for two hours ago"
    )
    parser.add_argument("--until", metavar="TIME", type=past, help="published before that")
    parser.add_argument("--where", metavar="SQL", help="only those that fulfil a condition, as in \"key = 'x' AND priority > 5\"")
    parser.add_argument(
        "--speed",
        metavar="SPEED",
        default="full",
        help="full: all at once; original: in the rhythm of then; 10x: ten times as fast (full)",
    )
    parser.add_argument(
        "--storage",
        choices=STORAGES,
        default="auto",
        help="read the log, the lake, or what is archived from the lake and the rest from the log (auto)",
    )
    parser.add_argument(
        "--replay-id", metavar="ID", help="its name: repeated with the same arguments it adds nothing (default: a random one)"
    )
    parser.add_argument("--dry-run", action="store_true", help="count, and publish nothing")
    add_yes(parser)
    add_log(parser)
    add_lake(parser)
    add_spark(parser)


class Past(NamedTuple):
    """An instant, or a duration before now, in microseconds."""

    text: str
    instant: int | None = None
    ago: int = 0

    def at(self, now: int) -> int:
        """The instant."""
        return max(now - self.ago, 0) if self.instant is None else self.instant


def past(text: str) -> Past:
    """A time, or a duration before now."""
    try:
        found: datetime = instant(text)
    except argparse.ArgumentTypeError:
        try:
            ago = round(duration(text) * SECOND)
        except argparse.ArgumentTypeError:
            raise argparse.ArgumentTypeError(
                f"{text!r} is neither a time such as 2026-01-31T12:00:00Z nor a duration such as 2h, for two hours ago"
            ) from None
        return Past(text, ago=ago)
    return Past(text, micros_of(found, "the time"))


def run(found: argparse.Namespace) -> int:
    """Replay, or count."""
    now = SystemClock().now()
    replay = replay_of(found, now)
    if not found.dry_run and replay.stream == replay.to:
        asyncio.run(confirm(found, f"replay {replay.stream} into itself"))
    target = log_of(found)
    if target.endpoint is None and not found.dry_run:
        raise InvalidArgument(
            "a replay writes, and a data directory can only be read", hint="start a server on it, and name that with --server URL"
        )
    # A stream that was deleted may still be in the lake.
    check(target, names=[name for name in (replay.to, replay.stream if replay.storage == "log" else None) if name] or None)
    from penstock.pipeline.failure import as_penstock_error  # noqa: PLC0415  # errors above need no Spark
    from penstock.pipeline.jobs import replay as job  # noqa: PLC0415

    with spark_session(found, "replay") as spark, as_penstock_error():
        target = near(found, target)
        if found.dry_run:
            extent = job.extent(job.read(spark, target, lake_of(found), replay))
        else:
            extent = job.run(spark, target, lake_of(found), replay, SystemClock().now())
    tell(found, replay, extent)
    return 0


def replay_of(found: argparse.Namespace, now: int) -> Replay:
    """What the flags say."""
    from penstock.pipeline.core.replay import Replay, speed_of  # noqa: PLC0415

    if found.to is None and not found.dry_run:
        raise InvalidArgument("--to is missing, expected the stream to publish to", hint="or --dry-run to count only")
    storage = found.storage
    if storage == "auto" and not ("://" in found.lake or Path(found.lake).is_dir()):
        storage = "log"  # nothing was archived yet
    bounds = {"since": found.since, "until": found.until}
    return Replay(
        stream=found.stream,
        to=found.to or "",
        replay_id=found.replay_id or secrets.token_hex(6),
        from_offset=found.from_offset,
        to_offset=found.to_offset,
        since=found.since and found.since.at(now),
        until=found.until and found.until.at(now),
        ago={name: past.text for name, past in bounds.items() if past is not None and past.instant is None},
        where=found.where,
        speed=speed_of(found.speed),
        storage=storage,
    )


def tell(found: argparse.Namespace, replay: Replay, extent: ReplayExtent) -> None:
    """What was, or would be, replayed."""
    lasts = extent.duration(replay.speed)
    if found.json:
        say_json(
            {
                "replay_id": None if found.dry_run else replay.replay_id,
                "stream": replay.stream,
                "to": replay.to or None,
                "messages": extent.rows,
                "bytes": extent.bytes,
                "first_offset": extent.first_offset,
                "last_offset": extent.last_offset,
                "first_time": extent.first and to_datetime(extent.first),
                "last_time": extent.last and to_datetime(extent.last),
                "seconds": lasts / SECOND,
                "is_dry_run": found.dry_run,
                "is_repeat": extent.is_repeat,
            }
        )
        return
    if extent.is_repeat:
        say(f"nothing was added: a replay with the id {replay.replay_id} was published before")
        return
    goal = f" to {replay.to}" if replay.to else ""
    verb = "would replay" if found.dry_run else "replayed"
    say(f"{verb} {count(extent.rows, 'message')} of {replay.stream}{goal}")
    if extent.first is None or extent.last is None:
        return
    shown: dict[str, object] = {
        "bytes": octets(extent.bytes),
        "offsets": f"{extent.first_offset:,} to {extent.last_offset:,}",
        "published": f"{moment(to_datetime(extent.first))} to {moment(to_datetime(extent.last))}",
        "delivered": "at once" if replay.speed is None else f"over {span(lasts / SECOND)}",
    }
    if not found.dry_run:
        shown["replay id"] = replay.replay_id
    say(facts(shown))
