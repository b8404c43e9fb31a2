"""`penstock trace MESSAGE-ID`: the life of one message, from the event log."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.cli.command import Parser
from penstock.cli.output import say, say_json, table
from penstock.cli.session import add_target
from penstock.cli.session import run as run_with_client
from penstock.errors import MessageNotFound, NotFound
from penstock.ids import parse_message_id
from penstock.values.wording import moment, printable, span
from penstock.wire.reasons import details, ended_by, kept_by

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub
    from penstock.wire.results import TraceEvent

HINT = "it may belong to another server or project (--server, --project), or be older than the event log"


def configure(parser: Parser) -> None:
    """Add the message."""
    parser.add_argument(
        "message_id", metavar="MESSAGE-ID", help="the id that publishing returned, or the id that it has for a router"
    )
    add_target(parser)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Print a line for each event, and the outcome in each place."""

    async def work(pubsub: PubSub) -> int:
        # A router's attempt is logged a moment after it happened.
        events = sorted(await pubsub.trace(found.message_id), key=lambda one: one.at)
        if not events:
            error = MessageNotFound(found.message_id)
            error.hint = HINT
            raise error
        states = await _states(pubsub, found.message_id, events)
        if found.json:
            say_json(
                {
                    "message_id": found.message_id,
                    "queue" if events[0].is_task else "topic": events[0].topic,
                    "events": [
                        {
                            "at": one.at,
                            "event": one.kind,
                            "in": one.subscription,
                            "attempt": one.attempt,
                            "consumer": one.consumer,
                            "detail": one.detail,
                        }
                        for one in events
                    ],
                    "states": [{"in": place, "state": text} for place, text in states],
                }
            )
        else:
            if events[0].topic is None or parse_message_id(found.message_id) is None:
                where = "" if events[0].topic is None else f" of queue {printable(events[0].topic)}"
                say(f"message {printable(found.message_id)}{where}, as the router knows it\n")
                say(table(timeline(events)))
                return 0
            kind = "queue" if events[0].is_task else "topic"
            say(f"message {printable(found.message_id)} of {kind} {printable(events[0].topic)}\n")
            say(table(timeline(events)))
            say("\nnow")
            say(
                table([[f"  {place}", text] for place, text in states], has_heading=False)
                if states
                else f"  no subscription of {kind} has it"
            )
        return 0

    return run_with_client(found, work)


def timeline(events: Sequence[TraceEvent]) -> list[list[str]]:
    """The events as a table: time, time since the previous one, event, place, delivery, consumer, and details."""
    rows = [["TIME", "AFTER", "EVENT", "IN", "ATTEMPT", "CONSUMER", "DETAIL"]]
    before: datetime | None = None
    for one in events:
        rows.append(
            [
                moment(one.at),
                "" if before is None else f"+{span((one.at - before).total_seconds())}",
                one.kind,
                one.subscription or "-",
                "-" if one.attempt is None else str(one.attempt),
                one.consumer or "-",
                ", ".join(details(one)),
            ]
        )
        before = one.at
    return rows


async def _states(pubsub: PubSub, message_id: str, events: Sequence[TraceEvent]) -> list[tuple[str, str]]:
    """(place, outcome of the message there) for every place where it could be."""
    from penstock.wire.operations import Operations  # noqa: PLC0415  # `--help` needs none of it

    if parse_message_id(message_id) is None:
        return []  # the id is the router's, and the queue has another one for the message
    # A router's attempt is not an outcome, and may be logged after one.
    events = [one for one in events if one.kind != "attempted"]
    if not events:
        return []
    name, is_task = events[0].topic or "", events[0].is_task
    now = (await pubsub.info()).now
    places = [name]
    if not is_task:
        try:
            places = [one.name for one in await pubsub.link.call(Operations.list_subscriptions, name)]
        except NotFound:
            places = []  # the topic was deleted
        places += sorted({one.subscription for one in events if one.subscription} - {*places})
    states = []
    for place in places:
        last = next((one for one in reversed(events) if one.subscription == place), None)
        try:
            why = await pubsub.link.call(Operations.explain_task if is_task else Operations.explain, place, message_id)
        except NotFound:
            why = None  # deleted in the meantime
        holder = last.consumer if last is not None and last.kind == "leased" else None
        states.append((place, ended_by(last) if why is None else kept_by(why, now, holder)))
    return states
