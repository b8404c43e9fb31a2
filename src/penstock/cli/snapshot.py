"""`penstock snapshot create|list|delete`: named positions of subscriptions, for a seek."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock.cli.command import Parser, Verbs
from penstock.cli.output import complain, say, say_json, table, text_of, when
from penstock.cli.session import add_target, on_each, run

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub


def configure(parser: Parser) -> None:
    """Add three sub-commands."""
    verbs = Verbs(parser)
    create = verbs.add("create", "save a subscription's position under a name", run_create)
    create.add_argument("name", metavar="NAME")
    create.add_argument("--subscription", required=True, metavar="SUBSCRIPTION", help="whose position")
    delete = verbs.add("delete", "forget snapshots", run_delete)
    delete.add_argument("names", metavar="NAME", nargs="+")
    for child in (create, verbs.add("list", "list the snapshots", run_list), delete):
        add_target(child)


def run_create(found: argparse.Namespace) -> int:
    """Create it; `penstock subscription seek --snapshot` returns to it."""

    async def work(pubsub: PubSub) -> int:
        made = await pubsub.subscription(found.subscription).create_snapshot(found.name)
        if found.json:
            say_json(made)
        else:
            say(f"created snapshot {made.name} of subscription {found.subscription}")
        return 0

    return run(found, work)


def run_list(found: argparse.Namespace) -> int:
    """List them with their topics and expiry."""

    async def work(pubsub: PubSub) -> int:
        snapshots = await pubsub.snapshots()
        if found.json:
            say_json(snapshots)
        elif snapshots:
            rows = [[one.name, one.topic or "(deleted)", when(one.created), text_of(one.expires)] for one in snapshots]
            say(table([["NAME", "TOPIC", "CREATED", "EXPIRES"], *rows]))
        else:
            complain("no snapshots; `penstock snapshot create NAME --subscription NAME` creates one")
        return 0

    return run(found, work)


def run_delete(found: argparse.Namespace) -> int:
    """Delete one by one; an unknown name ends it."""
    return run(found, lambda pubsub: on_each(found, "deleted snapshot", pubsub.delete_snapshot))
