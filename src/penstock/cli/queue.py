"""`penstock queue create|update|list|show|stats|consumers|publish|consume|peek|purge|pause|resume|delete`: work queues."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import penstock
from penstock.cli.arguments import add_backoff, add_removal, check_changes, check_removal, duration, pair, retry_policy, whole
from penstock.cli.command import Parser, Verbs
from penstock.cli.input import add_source, add_yes, check_source, confirm, confirm_delete, publish_all
from penstock.cli.messages import BATCH, Printer, add_consumption, add_format, follow
from penstock.cli.output import complain, say, say_json, table
from penstock.cli.session import add_exist_ok, add_target, describe, made, on_each, run
from penstock.durations import to_datetime
from penstock.errors import InvalidArgument
from penstock.values.wording import count, span

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.client.pubsub import PubSub
    from penstock.client.queue import QueueTask, WorkQueue
    from penstock.values.queue import QueueConsumer

KINDS = ("text", "json", "bytes")


def configure(parser: Parser) -> None:
    """Add thirteen sub-commands."""
    verbs = Verbs(parser)
    create = verbs.add("create", "create a work queue", run_create)
    update = verbs.add("update", "change settings of a work queue; the others stay", run_update)
    listing = verbs.add("list", "list the work queues with their numbers", run_list)
    show = verbs.add("show", "show the settings of a work queue", run_show)
    stats = verbs.add("stats", "show the state of a work queue in numbers", run_stats)
    consumers = verbs.add("consumers", "list the consumers of a work queue and what each holds", run_consumers)
    publish = verbs.add("publish", "publish messages to a work queue", run_publish)
    consume = verbs.add("consume", "consume messages of a work queue, once or as they arrive", run_consume)
    peek = verbs.add("peek", "show the message that would be consumed next, without leasing it", run_peek)
    purge = verbs.add("purge", "remove all messages of a work queue that are not leased", run_purge)
    for child in (create, update, show, stats, consumers, publish, consume, peek, purge):
        child.add_argument("name", metavar="NAME")
    pause = verbs.add("pause", "pause delivery", run_pause)
    resume = verbs.add("resume", "resume delivery", run_resume)
    delete = verbs.add("delete", "delete work queues with their messages and dead letters", run_delete)
    for child in (pause, resume, delete):
        child.add_argument("names", metavar="NAME", nargs="+")
    for child in (create, update):
        _add_settings(child)
    add_removal(update, "--no-ttl", "messages do not expire")
    add_removal(update, "--no-backoff", "a failed message is redelivered at once")
    add_exist_ok(create, "queue")
    _add_terms(publish)
    add_consumption(consume)
    for child in (consume, peek):
        add_format(child)
    for child in (purge, delete):
        add_yes(child)
    for child in (create, update, listing, show, stats, consumers, publish, consume, peek, purge, pause, resume, delete):
        add_target(child)


def _add_settings(parser: Parser) -> None:
    parser.add_argument("--ack-deadline", type=duration, metavar="DURATION", help="how long a lease lasts (default: 30s)")
    parser.add_argument(
        "--max-retries", type=whole(0, 1_000_000), metavar="N", help="retries before a message is dead-lettered (default: 3)"
    )
    add_backoff(parser)
    parser.add_argument("--ttl", type=duration, metavar="DURATION", help="how long a message may wait (default: forever)")
    parser.add_argument("--priority", type=whole(0, 9), metavar="N", help="the priority of messages without one (default: 5)")
    parser.add_argument("--prefetch", type=whole(1), metavar="N", help="messages that a consumer may hold (default: 10)")
    parser.add_argument("--max-depth", type=whole(1), metavar="N", help="messages that the queue holds (default: 100000)")
    parser.add_argument(
        "--overflow",
        choices=["reject", "discard", "spill"],
        help="beyond --max-depth: refuse, drop, or spill (default: reject)",
    )
    parser.add_argument("--max-dead-letters", type=whole(0), metavar="N", help="dead letters to keep; 0: none (default: 10000)")


def _add_terms(parser: Parser) -> None:
    add_source(parser)
    parser.add_argument("--type", choices=KINDS, default="text", help="the type of the payload (default: text)")
    parser.add_argument(
        "--header",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header; repeat it for several",
    )
    parser.add_argument("--priority", type=whole(0, 9), metavar="N", help="0 to 9, 9 is consumed first (default: the queue's)")
    parser.add_argument("--delay", type=duration, metavar="DURATION", help="deliver it after this time")
    parser.add_argument("--ttl", type=duration, metavar="DURATION", help="deliver it before this time (default: the queue's)")
    parser.add_argument("--max-retries", type=whole(0, 1_000_000), metavar="N", help="for these messages (default: the queue's)")


def run_create(found: argparse.Namespace) -> int:
    """Create it with the given settings, and defaults for the others."""

    async def work(pubsub: PubSub) -> int:
        queue = pubsub.queue(found.name)
        there = await queue.config() if found.exist_ok and await queue.exists() else None
        is_new = await made(partial(queue.create, **_settings(found, there)), exist_ok=found.exist_ok)
        if found.json:
            say_json({"name": found.name, **asdict(await queue.config())})
        else:
            say(f"created queue {found.name}" if is_new else f"queue {found.name} exists already")
        return 0

    return run(found, work)


def run_update(found: argparse.Namespace) -> int:
    """Change only the given settings."""
    check_removal(found, "no_ttl", "ttl")
    check_removal(found, "no_backoff", "min_backoff", "max_backoff")

    async def work(pubsub: PubSub) -> int:
        queue = pubsub.queue(found.name)
        changes = _settings(found, await queue.config())
        changes |= {"message_ttl": None} if found.no_ttl else {}
        changes |= {"retry_policy": None} if found.no_backoff else {}
        check_changes(changes, "queue update")
        config = await queue.update(**changes)
        if found.json:
            say_json({"name": found.name, **asdict(config)})
        else:
            say(f"updated queue {found.name}")
        return 0

    return run(found, work)


def _settings(found: argparse.Namespace, there: penstock.QueueConfig | None = None) -> dict[str, Any]:
    """The given settings; a partly given policy is completed from the existing one."""
    given: dict[str, Any] = {
        "ack_deadline_secs": found.ack_deadline,
        "max_retries": found.max_retries,
        "retry_policy": retry_policy(found, None if there is None else there.retry_policy),
        "message_ttl": found.ttl,
        "default_priority": found.priority,
        "default_prefetch": found.prefetch,
        "max_prefetch": None if found.prefetch is None or found.prefetch <= 1_000 else found.prefetch,
        "max_depth": found.max_depth,
        "overflow": found.overflow,
        "dead_letter_max_size": found.max_dead_letters,
        "dead_letter_enabled": None if found.max_dead_letters is None else found.max_dead_letters > 0,
    }
    return {name: value for name, value in given.items() if value is not None}


def run_list(found: argparse.Namespace) -> int:
    """List queues with their ready, leased and dead messages."""

    async def work(pubsub: PubSub) -> int:
        queues = (await pubsub.overview()).queues
        if found.json:
            say_json(queues)
        elif queues:
            rows = [
                [
                    one.queue,
                    f"{one.depth:,}",
                    f"{one.delayed:,}",
                    f"{one.in_flight:,}",
                    f"{one.dead_letters:,}",
                    str(one.consumers),
                    span(one.oldest_message_age_secs) if one.oldest_message_age_secs else "-",
                    "paused" if one.paused else "open",
                ]
                for one in queues
            ]
            say(table([["NAME", "DEPTH", "DELAYED", "IN FLIGHT", "DEAD", "CONSUMERS", "OLDEST", "STATE"], *rows]))
        else:
            complain("no queues; `penstock queue create NAME` creates one")
        return 0

    return run(found, work)


def run_show(found: argparse.Namespace) -> int:
    """Show all settings, also defaults."""

    async def work(pubsub: PubSub) -> int:
        document = {"name": found.name, **asdict(await pubsub.queue(found.name).config())}
        values = {name: value for name, value in document.items() if name != "retry_policy"}
        return describe(found, document, values | (document["retry_policy"] or {}))

    return run(found, work)


def run_stats(found: argparse.Namespace) -> int:
    """Show all numbers."""

    async def work(pubsub: PubSub) -> int:
        stats = await pubsub.queue(found.name).stats()
        return describe(found, stats, asdict(stats))

    return run(found, work)


def run_consumers(found: argparse.Namespace) -> int:
    """List consumers that hold or wait for messages, or did before."""

    async def work(pubsub: PubSub) -> int:
        consumers = await pubsub.queue(found.name).consumers()
        if found.json:
            say_json(consumers)
        elif consumers:
            now = to_datetime(pubsub.link.clock.now())
            rows = [
                [
                    one.consumer_id,
                    one.connection_id or "-",
                    "-" if one.prefetch is None else f"{one.prefetch:,}",
                    f"{one.current_messages:,}",
                    _longest_held(one, now),
                ]
                for one in consumers
            ]
            say(table([["CONSUMER", "CONNECTION", "PREFETCH", "HOLDS", "FOR UP TO"], *rows]))
        else:
            complain(f"queue {found.name} has no consumers")
        return 0

    return run(found, work)


def _longest_held(consumer: QueueConsumer, now: datetime) -> str:
    since = [one.delivered_at for one in consumer.messages if one.delivered_at is not None]
    return span(max((now - min(since)).total_seconds(), 0)) if since else "-"


def run_publish(found: argparse.Namespace) -> int:
    """Check before connecting: an invalid call opens nothing."""
    check_source(found)
    read = _reader(found.type)

    async def work(pubsub: PubSub) -> int:
        queue = pubsub.queue(found.name)
        headers = dict(found.header) or None

        async def send(batch: list[bytes]) -> list[str]:
            return await queue.publish_many(
                [
                    penstock.NewMessage(read(data), found.priority, found.ttl, headers, found.max_retries, found.delay)
                    for data in batch
                ]
            )

        return await publish_all(found, send)

    return run(found, work, is_heavy=True)


def _reader(kind: str) -> Callable[[bytes], Any]:
    """The converter from data to a payload."""

    def read_json(data: bytes) -> Any:
        try:
            return json.loads(data)
        except ValueError as error:
            raise InvalidArgument(f"a payload is not JSON: {error}", hint="leave out --type json to send it as text") from None

    def read_text(data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise InvalidArgument("a payload is not UTF-8 text", hint="use --type bytes to send it unchanged") from None

    return {"json": read_json, "text": read_text}.get(kind, bytes)


def run_consume(found: argparse.Namespace) -> int:
    """Ack each message after showing it."""

    async def work(pubsub: PubSub) -> int:
        queue = pubsub.queue(found.name)
        printer = Printer(found)

        def show(task: QueueTask) -> None:
            printer.task(task, task.publish_time)

        if found.follow:
            return await follow(queue, found, show)
        if not await _consume(pubsub, queue, found, show):
            complain("no messages")
        return 0

    return run(found, work, is_heavy=found.follow)


async def _consume(pubsub: PubSub, queue: WorkQueue, found: argparse.Namespace, show: Callable[[QueueTask], None]) -> int:
    """Lease at most this many; wait only for the first. Returns how many arrived."""
    from penstock.wire.operations import Operations  # noqa: PLC0415  # it is loaded when this is called

    most, done = found.max or 10, 0
    prefetch = min(most, (await queue.config()).max_prefetch)
    while done < most:
        tasks = await queue.consume(min(most - done, BATCH), wait=0 if done else found.wait, prefetch=prefetch)
        if not tasks:
            break
        done += len(tasks)
        shown: list[str] = []
        try:
            for task in tasks:
                show(task)
                shown.append(task.message_id)
        finally:
            if not found.no_ack and shown:
                late = await pubsub.link.call(Operations.ack_messages, queue.name, shown)
                if late:
                    complain(f"{count(len(late), 'message')} could not be acked in time and will be redelivered")
    return done


def run_peek(found: argparse.Namespace) -> int:
    """Show without leasing."""

    async def work(pubsub: PubSub) -> int:
        message = await pubsub.queue(found.name).peek()
        if message is None:
            complain("no messages")
        else:
            Printer(found).task(message, message.created_at)
        return 0

    return run(found, work)


def run_purge(found: argparse.Namespace) -> int:
    """Leased messages stay."""

    async def work(pubsub: PubSub) -> int:
        queue = pubsub.queue(found.name)
        stats = await queue.stats()
        if there := stats.depth + stats.delayed:
            await confirm(found, f"remove {count(there, 'message')} from queue {found.name}")
        purged = await queue.purge()
        if found.json:
            say_json({"purged": purged})
        else:
            say(f"removed {count(purged, 'message')} from queue {found.name}")
        return 0

    return run(found, work)


def run_pause(found: argparse.Namespace) -> int:
    """Pause them one by one; an unknown name ends it."""
    return run(found, lambda pubsub: on_each(found, "paused queue", lambda name: pubsub.queue(name).pause_delivery()))


def run_resume(found: argparse.Namespace) -> int:
    """Resume them one by one; an unknown name ends it."""
    return run(found, lambda pubsub: on_each(found, "resumed queue", lambda name: pubsub.queue(name).resume_delivery()))


def run_delete(found: argparse.Namespace) -> int:
    """Ask before removing messages or dead letters. Delete one by one; an unknown name ends it."""

    async def contents(queue: WorkQueue) -> str:
        stats = await queue.stats()
        messages = stats.depth + stats.delayed + stats.in_flight
        return " and ".join(
            count(number, noun) for number, noun in ((messages, "message"), (stats.dead_letters, "dead letter")) if number
        )

    async def work(pubsub: PubSub, name: str) -> None:
        queue = pubsub.queue(name)
        await confirm_delete(found, f"queue {name}", lambda: contents(queue))
        await queue.delete()

    return run(found, lambda pubsub: on_each(found, "deleted queue", lambda name: work(pubsub, name)))
