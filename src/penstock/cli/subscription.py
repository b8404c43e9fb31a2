"""`penstock subscription create|update|list|show|delete|seek|pause|resume|stats`."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import penstock
from penstock.cli.arguments import (
    add_backoff,
    add_removal,
    check_changes,
    check_removal,
    duration,
    instant,
    retry_policy,
    size,
    whole,
)
from penstock.cli.command import Parser, Verbs
from penstock.cli.input import add_yes, confirm_delete
from penstock.cli.output import complain, say, say_json, table
from penstock.cli.session import add_exist_ok, add_target, describe, made, on_each, run
from penstock.durations import to_datetime
from penstock.errors import InvalidArgument
from penstock.values.wording import count, span

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub


def configure(parser: Parser) -> None:
    """Add nine sub-commands."""
    verbs = Verbs(parser)
    create = verbs.add("create", "create a subscription, which receives what is published from now on", run_create)
    create.add_argument("name", metavar="NAME")
    create.add_argument("--topic", required=True, metavar="TOPIC", help="the topic that it receives")
    create.add_argument("--ordering", action="store_true", help="deliver messages of one ordering key one at a time, in order")
    create.add_argument("--filter", metavar="EXPRESSION", help="only messages whose attributes match; it cannot be changed later")
    add_exist_ok(create, "subscription")
    update = verbs.add("update", "change options of a subscription; the others stay", run_update)
    update.add_argument("name", metavar="NAME")
    update.set_defaults(ordering=None, filter=None)
    for child in (create, update):
        _add_options(child)
    add_removal(update, "--no-backoff", "a failed message is redelivered at once")
    add_removal(update, "--no-dead-letters", "failed messages are redelivered without limit")
    listing = verbs.add("list", "list the subscriptions with their backlogs", run_list)
    listing.add_argument("--topic", metavar="TOPIC", help="only those of this topic")
    show = verbs.add("show", "show the settings of a subscription", run_show)
    stats = verbs.add("stats", "show the state of a subscription in numbers", run_stats)
    seek = verbs.add("seek", "move a subscription: messages before the position are settled, the others are delivered", run_seek)
    for child in (show, stats, seek):
        child.add_argument("name", metavar="NAME")
    _add_places(seek)
    pause = verbs.add("pause", "pause delivery", run_pause)
    resume = verbs.add("resume", "resume delivery", run_resume)
    delete = verbs.add("delete", "delete subscriptions with their messages", run_delete)
    for child in (pause, resume, delete):
        child.add_argument("names", metavar="NAME", nargs="+")
    add_yes(delete)
    for child in (create, update, listing, show, stats, seek, pause, resume, delete):
        add_target(child)


def _add_options(parser: Parser) -> None:
    parser.add_argument("--ack-deadline", type=duration, metavar="DURATION", help="how long a lease lasts (default: 10s)")
    add_backoff(parser)
    parser.add_argument("--dead-letter-topic", metavar="TOPIC", help="the topic for messages that failed too often")
    parser.add_argument("--max-attempts", type=whole(1, 100), metavar="N", help="after N deliveries (default: 5)")
    parser.add_argument(
        "--exactly-once",
        action=argparse.BooleanOptionalAction,
        help="acks are confirmed when durable, and refused when late (default: no)",
    )
    parser.add_argument("--retention", type=duration, metavar="DURATION", help="how long unacked messages are kept (default: 7d)")
    parser.add_argument(
        "--retain-acked",
        action=argparse.BooleanOptionalAction,
        help="keep acked messages for a seek as long as the others (default: yes)",
    )
    parser.add_argument("--max-messages", type=whole(1), metavar="N", help="room for unacked messages (default: 10000)")
    parser.add_argument("--max-bytes", type=size, metavar="SIZE", help="room for unacked bytes (default: 100MiB)")
    parser.add_argument(
        "--overflow", choices=["discard", "reject", "spill"], help="beyond it: drop, refuse the publish, or keep only on disk"
    )


def _add_places(parser: Parser) -> None:
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--time", type=instant, metavar="TIME", help="to messages from that time, as in 2026-01-31T12:00:00Z")
    place.add_argument("--ago", type=duration, metavar="DURATION", help="to messages from this long ago, as in 30m")
    place.add_argument("--offset", type=whole(0), metavar="N", help="to an offset in the topic's log")
    place.add_argument("--snapshot", metavar="SNAPSHOT", help="to a snapshot")
    place.add_argument("--start", action="store_true", help="to the oldest stored message")
    place.add_argument("--end", action="store_true", help="past the newest message: settle everything")


def run_create(found: argparse.Namespace) -> int:
    """Create it with the given options, and defaults for the others."""

    async def work(pubsub: PubSub) -> int:
        subscription = pubsub.subscription(found.name, topic=found.topic)
        there = (await subscription.metadata()).options if found.exist_ok and await subscription.exists() else None
        subscription.set_options(**_options(found, there))
        is_new = await made(subscription.create, exist_ok=found.exist_ok)
        if found.json:
            say_json(_document(await subscription.metadata()))
        else:
            say(f"created subscription {found.name}" if is_new else f"subscription {found.name} exists already")
        return 0

    return run(found, work)


def run_update(found: argparse.Namespace) -> int:
    """Change only the given options."""
    check_removal(found, "no_backoff", "min_backoff", "max_backoff")
    check_removal(found, "no_dead_letters", "dead_letter_topic", "max_attempts")

    async def work(pubsub: PubSub) -> int:
        subscription = pubsub.subscription(found.name)
        there = (await subscription.metadata()).options
        changes = _options(found, there)
        changes |= {"retry_policy": None} if found.no_backoff else {}
        changes |= {"dead_letter_policy": None} if found.no_dead_letters else {}
        check_changes(changes, "subscription update")
        metadata = await subscription.update(**changes)
        if found.json:
            say_json(_document(metadata))
        else:
            say(f"updated subscription {found.name}")
        return 0

    return run(found, work)


def _options(found: argparse.Namespace, there: penstock.SubscriptionOptions | None = None) -> dict[str, Any]:
    """The given options; a partly given policy is completed from the existing one."""
    retry, dead = (None, None) if there is None else (there.retry_policy, there.dead_letter_policy)
    given: dict[str, Any] = {
        "ack_deadline_seconds": found.ack_deadline,
        "message_ordering": found.ordering or None,
        "filter": found.filter,
        "retry_policy": retry_policy(found, retry),
        "exactly_once": found.exactly_once,
        "message_retention_duration": found.retention,
        "retain_acked_messages": found.retain_acked,
        "max_messages": found.max_messages,
        "max_bytes": found.max_bytes,
        "overflow": found.overflow,
    }
    topic = found.dead_letter_topic or (None if dead is None else dead.dead_letter_topic)
    if found.max_attempts is not None and topic is None:
        raise InvalidArgument("--max-attempts is given without --dead-letter-topic", hint="name the topic for dead letters")
    if topic is not None and (found.dead_letter_topic is not None or found.max_attempts is not None):
        attempts = found.max_attempts or (5 if dead is None else dead.max_delivery_attempts)
        given["dead_letter_policy"] = penstock.DeadLetterPolicy(topic, attempts)
    return {name: value for name, value in given.items() if value is not None}


def run_list(found: argparse.Namespace) -> int:
    """List them with their backlogs."""

    async def work(pubsub: PubSub) -> int:
        listed = [one for one in (await pubsub.overview()).subscriptions if found.topic in {None, one.topic}]
        if found.json:
            say_json(listed)
        elif listed:
            rows = [
                [
                    one.name,
                    f"{one.topic} (deleted)" if one.detached else one.topic,
                    f"{one.stats.backlog:,}",
                    f"{one.stats.delayed:,}",
                    f"{one.stats.in_flight:,}",
                    span(one.stats.oldest_age_seconds) if one.stats.backlog else "-",
                    "paused" if one.stats.paused else "open",
                ]
                for one in listed
            ]
            say(table([["NAME", "TOPIC", "BACKLOG", "DELAYED", "IN FLIGHT", "OLDEST", "STATE"], *rows]))
        else:
            complain("no subscriptions; `penstock subscription create NAME --topic TOPIC` creates one")
        return 0

    return run(found, work)


def run_show(found: argparse.Namespace) -> int:
    """Show all settings, also defaults."""

    async def work(pubsub: PubSub) -> int:
        document = _document(await pubsub.subscription(found.name).metadata())
        return describe(found, document, _flat(document))

    return run(found, work)


def run_stats(found: argparse.Namespace) -> int:
    """Show all numbers."""

    async def work(pubsub: PubSub) -> int:
        stats = await pubsub.subscription(found.name).stats()
        return describe(found, stats, asdict(stats))

    return run(found, work)


def run_seek(found: argparse.Namespace) -> int:
    """Move it, and print what will be delivered."""

    async def work(pubsub: PubSub) -> int:
        subscription = pubsub.subscription(found.name)
        now = to_datetime(pubsub.link.clock.now())
        time = found.time
        if found.start:
            time = to_datetime(0)
        elif found.end:
            time = now + timedelta(days=1)  # all messages are before this time, whatever the server's clock
        elif found.ago is not None:
            time = max(now - timedelta(seconds=found.ago), to_datetime(0))
        await subscription.seek(time=time, offset=found.offset, snapshot=found.snapshot)
        backlog = (await subscription.stats()).backlog
        if found.json:
            say_json({"name": found.name, "backlog": backlog})
        else:
            say(f"moved subscription {found.name}: {count(backlog, 'message')} to deliver")
        return 0

    return run(found, work)


def run_pause(found: argparse.Namespace) -> int:
    """Pause them one by one; an unknown name ends it."""
    return run(
        found, lambda pubsub: on_each(found, "paused subscription", lambda name: pubsub.subscription(name).pause_delivery())
    )


def run_resume(found: argparse.Namespace) -> int:
    """Resume them one by one; an unknown name ends it."""
    return run(
        found, lambda pubsub: on_each(found, "resumed subscription", lambda name: pubsub.subscription(name).resume_delivery())
    )


def run_delete(found: argparse.Namespace) -> int:
    """Ask before removing messages. Delete one by one; an unknown name ends it."""

    async def work(pubsub: PubSub, name: str) -> None:
        subscription = pubsub.subscription(name)

        async def contents() -> str:
            backlog = (await subscription.stats()).backlog
            return count(backlog, "message") if backlog else ""

        await confirm_delete(found, f"subscription {name}", contents)
        await subscription.delete()

    return run(found, lambda pubsub: on_each(found, "deleted subscription", lambda name: work(pubsub, name)))


def _document(metadata: penstock.SubscriptionMetadata) -> dict[str, Any]:
    return {
        "name": metadata.name,
        "topic": metadata.topic,
        "created": metadata.created,
        "detached": metadata.detached,
        **asdict(metadata.options),
    }


def _flat(document: dict[str, Any]) -> dict[str, object]:
    """Nested settings under names of their own."""
    flat: dict[str, object] = {}
    for name, value in document.items():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat
