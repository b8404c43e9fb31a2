"""`penstock explain NAME`: why the messages of a subscription or work queue are not delivered, and what to do about it."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.cli.arguments import whole
from penstock.cli.command import Parser
from penstock.cli.output import say, say_json, table
from penstock.cli.session import add_target
from penstock.cli.session import run as run_with_client
from penstock.errors import InvalidArgument, QueueNotFound, SubscriptionNotFound
from penstock.ids import parse_message_id
from penstock.values.wording import count, moment, octets, printable, span
from penstock.wire.reasons import NOT_HERE, State, advice, kept_by

if TYPE_CHECKING:
    from penstock import Explanation
    from penstock.client.pubsub import PubSub
    from penstock.wire.results import Unsettled

LOOKED_AT = 1_000
"""How many of the oldest messages are read to name their consumers."""


def configure(parser: Parser) -> None:
    """Add the subscription or queue, and optionally a message."""
    parser.add_argument("name", metavar="NAME", help="of a subscription, or else of a work queue")
    parser.add_argument("message_id", metavar="MESSAGE-ID", nargs="?", help="explain only this message")
    parser.add_argument("--queue", action="store_true", help="the name is that of a work queue, not of a subscription")
    parser.add_argument(
        "--limit", type=whole(1, LOOKED_AT), metavar="N", default=10, help="how many of the oldest messages to show (default: 10)"
    )
    add_target(parser)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Explain one message, or the backlog."""
    work = _explain_backlog if found.message_id is None else _explain_message
    return run_with_client(found, lambda pubsub: work(pubsub, found))


async def _explain_message(pubsub: PubSub, found: argparse.Namespace) -> int:
    from penstock.wire.operations import Operations  # noqa: PLC0415  # `--help` needs none of it

    if parse_message_id(found.message_id) is None:
        # The broker answers None for every message that is not in the queue, also for a mistyped id.
        raise InvalidArgument.of("MESSAGE-ID", found.message_id, "the id of a message: 30 hexadecimal digits")
    is_queue, _ = await _state(pubsub, found)
    ask = Operations.explain_task if is_queue else Operations.explain
    why: Explanation | None = await pubsub.link.call(ask, found.name, found.message_id)
    now = (await pubsub.info()).now
    text = f"settled already, or {NOT_HERE}" if why is None else kept_by(why, now)
    if found.json:
        say_json({"message_id": found.message_id, "is_unsettled": why is not None, "explanation": why, "text": text})
    else:
        say(f"{found.message_id}  {text}")
        if why is None:
            say(f"its life: penstock trace {found.message_id}")
    return 0


async def _explain_backlog(pubsub: PubSub, found: argparse.Namespace) -> int:
    from penstock.wire.operations import Operations  # noqa: PLC0415  # `--help` needs none of it

    is_queue, state = await _state(pubsub, found)
    ask = Operations.explain_queue if is_queue else Operations.explain_backlog
    oldest: list[Unsettled] = await pubsub.link.call(ask, found.name, LOOKED_AT)
    now = (await pubsub.info()).now
    hints = [*advice(found.name, state, oldest, is_queue=is_queue)]
    kind = "queue" if is_queue else "subscription"
    if found.json:
        say_json({"name": found.name, "kind": kind, "state": state, "oldest": oldest[: found.limit], "advice": hints})
        return 0
    say("\n".join([f"{kind} {printable(found.name)}", *(f"  {line}" for line in in_words(state))]))
    if holders := _holders(oldest):
        say("\nconsumers and what they hold" + (f" of the oldest {LOOKED_AT:,} messages" if state.backlog > LOOKED_AT else ""))
        say(table(holders))
    if oldest:
        say("\nthe oldest messages that are not settled")
        rows = [
            [
                f"  {one.message_id}",
                span((now - one.publish_time).total_seconds()),
                one.ordering_key or "-",
                str(one.delivery_attempt),
                kept_by(one.explanation, now, one.consumer),
            ]
            for one in oldest[: found.limit]
        ]
        say(table([["  MESSAGE", "AGE", "KEY", "FAILED", "WHY IT IS STILL HERE"], *rows]))
        if state.backlog > found.limit:
            say(f"  and {state.backlog - min(found.limit, len(oldest)):,} more")
    if hints:
        say("\nwhat to do\n" + "\n".join(f"  - {hint}" for hint in hints))
    return 0


async def _state(pubsub: PubSub, found: argparse.Namespace) -> tuple[bool, State]:
    """Whether it is a work queue, and its state or that of the subscription."""
    if found.queue:
        return True, await _queue_state(pubsub, found.name)
    try:
        return False, await _subscription_state(pubsub, found.name)
    except SubscriptionNotFound as error:
        try:
            return True, await _queue_state(pubsub, found.name)
        except QueueNotFound:
            raise error from None


async def _queue_state(pubsub: PubSub, name: str) -> State:
    queue = await pubsub.queue(name).stats()
    return State(
        ready=queue.depth,
        delayed=queue.delayed,
        in_flight=queue.in_flight,
        backlog=queue.depth + queue.delayed + queue.in_flight,
        backlog_bytes=queue.backlog_bytes,
        oldest_age=queue.oldest_message_age_secs,
        delivered=queue.consumed_total,
        acked=queue.acked_total,
        nacked=queue.nacked_total,
        expired=queue.expired_total,
        dead=queue.dead_lettered_total,
        discarded=queue.discarded_total,
    )


async def _subscription_state(pubsub: PubSub, name: str) -> State:
    stats = await pubsub.subscription(name).stats()
    return State(
        ready=stats.ready,
        delayed=stats.delayed,
        in_flight=stats.in_flight,
        backlog=stats.backlog,
        backlog_bytes=stats.backlog_bytes,
        oldest_age=stats.oldest_age_seconds,
        delivered=stats.delivered_total,
        acked=stats.acked_total,
        nacked=stats.nacked_total,
        expired=stats.expired_total,
        dead=stats.dead_lettered_total,
        discarded=stats.discarded_total,
        unburied=stats.dead_letter_failures_total,
    )


def in_words(state: State) -> Iterator[str]:
    """The numbers as sentences."""
    if not state.backlog:
        yield "no messages wait: every message is settled"
    else:
        parts = f"{state.ready:,} to be delivered, {state.delayed:,} delayed, {state.in_flight:,} with consumers"
        yield f"{count(state.backlog, 'message')} not settled ({octets(state.backlog_bytes)}): {parts}"
        yield f"the oldest was published {span(state.oldest_age)} ago"
    ended = f"{state.acked:,} acked, {state.nacked:,} nacked, {state.expired:,} not settled in time, {state.dead:,} dead-lettered"
    yield f"so far {count(state.delivered, 'delivery', 'deliveries')}: {ended}"
    if state.discarded:
        yield f"{count(state.discarded, 'message')} discarded, because there was no room"


def _holders(oldest: Sequence[Unsettled]) -> list[list[str]]:
    held: dict[str, list[datetime]] = defaultdict(list)
    for one in oldest:
        if one.explanation.reason == "leased" and one.explanation.until is not None:
            held[one.consumer or "(no name)"].append(one.explanation.until)
    rows = [
        [f"  {who}", f"{len(ends):,}", moment(min(ends))] for who, ends in sorted(held.items(), key=lambda item: -len(item[1]))
    ]
    return [["  CONSUMER", "MESSAGES", "FIRST LEASE ENDS"], *rows] if rows else []
