"""`penstock topic create|update|list|show|delete`."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import penstock
from penstock.cli.arguments import duration, optional
from penstock.cli.command import Parser, Verbs
from penstock.cli.input import add_yes, confirm_delete
from penstock.cli.output import complain, say, say_json, table, when
from penstock.cli.session import add_exist_ok, add_target, describe, made, on_each, run
from penstock.values.wording import count

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub


def configure(parser: Parser) -> None:
    """Add five sub-commands."""
    verbs = Verbs(parser)
    create = verbs.add("create", "create topics", run_create)
    create.add_argument("names", metavar="NAME", nargs="+")
    create.add_argument(
        "--retention",
        type=duration,
        metavar="DURATION",
        help="keep messages for DURATION so that a seek can replay them, acked ones too",
    )
    add_exist_ok(create, "topic")
    update = verbs.add("update", "change the settings of topics", run_update)
    update.add_argument("names", metavar="NAME", nargs="+")
    update.add_argument(
        "--retention",
        type=optional(duration),
        required=True,
        metavar="DURATION",
        help="keep messages for DURATION so that a seek can replay them, acked ones too; none: only until they are acked",
    )
    show = verbs.add("show", "show a topic and its subscriptions", run_show)
    show.add_argument("name", metavar="NAME")
    delete = verbs.add("delete", "delete topics; their subscriptions are detached", run_delete)
    delete.add_argument("names", metavar="NAME", nargs="+")
    add_yes(delete)
    for child in (create, update, verbs.add("list", "list the topics", run_list), show, delete):
        add_target(child)


def run_create(found: argparse.Namespace) -> int:
    """Create one by one; the first failure ends it."""

    async def work(pubsub: PubSub) -> int:
        there: list[penstock.TopicMetadata] = []
        try:
            for topic in map(pubsub.topic, found.names):
                is_new = await made(partial(topic.create, retention=found.retention), exist_ok=found.exist_ok)
                if found.json:
                    there.append(await topic.metadata())
                else:
                    say(f"created topic {topic.name}" if is_new else f"topic {topic.name} exists already")
        finally:
            if there:
                say_json(there)
        return 0

    return run(found, work)


def run_update(found: argparse.Namespace) -> int:
    """Update one by one; an unknown name ends it."""
    return run(
        found,
        lambda pubsub: on_each(found, "updated topic", lambda name: pubsub.topic(name).update(retention=found.retention)),
    )


def run_list(found: argparse.Namespace) -> int:
    """List them with the number of their subscriptions."""

    async def work(pubsub: PubSub) -> int:
        topics, subscriptions = await asyncio.gather(pubsub.topics(), pubsub.subscriptions())
        counts = Counter(one.topic for one in subscriptions if not one.detached)
        if found.json:
            say_json([{"name": one.name, "created": one.created, "subscriptions": counts[one.name]} for one in topics])
        elif topics:
            rows = [[one.name, str(counts[one.name]), when(one.created)] for one in topics]
            say(table([["NAME", "SUBSCRIPTIONS", "CREATED"], *rows]))
        else:
            complain("no topics; `penstock topic create NAME` creates one")
        return 0

    return run(found, work)


def run_show(found: argparse.Namespace) -> int:
    """Show one topic."""

    async def work(pubsub: PubSub) -> int:
        topic = pubsub.topic(found.name)
        metadata = await topic.metadata()
        names = [one.name for one in await topic.subscriptions()]
        document = {"name": metadata.name, "created": metadata.created, "subscriptions": names}
        return describe(found, document, document | {"subscriptions": ", ".join(names)})

    return run(found, work)


def run_delete(found: argparse.Namespace) -> int:
    """Ask before removing messages. Delete one by one; an unknown name ends it."""

    async def work(pubsub: PubSub, name: str) -> None:
        async def contents() -> str:
            there = [one for one in (await pubsub.overview()).subscriptions if one.topic == name and not one.detached]
            backlog = sum(one.stats.backlog for one in there)
            return f"{count(backlog, 'message')} of its subscriptions" if backlog else ""

        await confirm_delete(found, f"topic {name}", contents)
        await pubsub.topic(name).delete()

    return run(found, lambda pubsub: on_each(found, "deleted topic", lambda name: work(pubsub, name)))
