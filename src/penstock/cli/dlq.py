"""`penstock dlq list|redrive|purge`: the dead letters of a work queue, all or those that `--where` picks."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from penstock.cli.arguments import whole
from penstock.cli.command import Parser, Verbs
from penstock.cli.confirm import add_yes, confirm
from penstock.cli.output import complain, say, say_json, table
from penstock.cli.printer import task_document
from penstock.cli.progress import Progress
from penstock.cli.session import add_target, run
from penstock.cli.wording import clipped, count, span
from penstock.durations import SECOND, instant

if TYPE_CHECKING:
    from penstock.client.core.where import Letter, Where
    from penstock.client.pubsub import PubSub
    from penstock.work import DeadLetter

BATCH = 200
"""How many are put back or removed at once: as often the progress moves."""
ERROR_WIDTH = 60


def configure(parser: Parser) -> None:
    """Three commands of its own."""
    verbs = Verbs(parser)
    listing = verbs.add("list", "list dead letters and why they died", run_list)
    redrive = verbs.add("redrive", "put dead letters back into their queue, as new", run_redrive)
    purge = verbs.add("purge", "remove dead letters", run_purge)
    for child in (listing, redrive, purge):
        child.add_argument("queue", metavar="QUEUE")
        child.add_argument(
            "--where", type=_where, metavar="CONDITION", help="only those, as in 'attempts>3 AND error~timeout' (default: all)"
        )
        child.add_argument("--limit", type=whole(1), metavar="N", help="the oldest so many (default: all)")
    add_yes(purge)
    for child in (listing, redrive, purge):
        add_target(child)


def run_list(found: argparse.Namespace) -> int:
    """Oldest first."""

    async def work(pubsub: PubSub) -> int:
        letters = await _picked(pubsub, found)
        if found.json:
            say_json([_document(letter) for letter in letters])
        elif letters:
            now = pubsub.link.clock.now()
            rows = [
                [
                    letter.message.message_id,
                    span((now - instant(letter.dead_lettered_at, "dead_lettered_at")) / SECOND),
                    str(letter.attempts),
                    letter.reason,
                    clipped(letter.last_error or "-", ERROR_WIDTH),
                ]
                for letter in letters
            ]
            say(table([["ID", "AGE", "ATTEMPTS", "REASON", "ERROR"], *rows]))
        else:
            complain("no dead letters")
        return 0

    return run(found, work)


def run_redrive(found: argparse.Namespace) -> int:
    """A letter that somebody else took in the meantime is not counted."""

    async def work(pubsub: PubSub) -> int:
        from penstock.api.operations import Operations  # noqa: PLC0415  # it is loaded when this is called

        async def redrive(ids: list[str]) -> int:
            return await pubsub.link.call(Operations.redrive_dead_letters, found.queue, None, ids)

        done = await _in_batches("putting back", await _picked(pubsub, found), redrive)
        if found.json:
            say_json({"redriven": done})
        else:
            say(f"put {count(done, 'dead letter')} back into queue {found.queue}")
        return 0

    return run(found, work)


def run_purge(found: argparse.Namespace) -> int:
    """Asks, unless `--yes` says so."""

    async def work(pubsub: PubSub) -> int:
        from penstock.api.operations import Operations  # noqa: PLC0415  # it is loaded when this is called

        async def purge(ids: list[str]) -> int:
            return await pubsub.link.call(Operations.purge_dead_letters, found.queue, ids)

        letters = await _picked(pubsub, found)
        if letters:
            await confirm(found, f"remove {count(len(letters), 'dead letter')} of queue {found.queue}")
        done = await _in_batches("removing", letters, purge)
        if found.json:
            say_json({"purged": done})
        else:
            say(f"removed {count(done, 'dead letter')} of queue {found.queue}")
        return 0

    return run(found, work)


async def _in_batches(label: str, letters: Sequence[DeadLetter], act: Callable[[list[str]], Awaitable[int]]) -> int:
    """Do something to letters, some at a time, and show how far it is; returns to how many it was done."""
    ids = [letter.message.message_id for letter in letters]
    done = 0
    with Progress(label, len(ids)) as progress:
        for start in range(0, len(ids), BATCH):
            some = ids[start : start + BATCH]
            done += await act(some)
            progress.advance(len(some))
    return done


async def _picked(pubsub: PubSub, found: argparse.Namespace) -> list[DeadLetter]:
    """The letters that are meant, oldest first."""
    where: Where | None = found.where
    if where is None:
        return await pubsub.queue(found.queue).dead_letters(found.limit)
    now = pubsub.link.clock.now()
    letters = await pubsub.queue(found.queue).dead_letters()
    return [letter for letter in letters if where.matches(_facts(letter), now)][: found.limit]


def _facts(letter: DeadLetter) -> Letter:
    from penstock.client.core.where import Letter  # noqa: PLC0415  # `--help` needs no client

    return Letter(
        message_id=letter.message.message_id,
        reason=letter.reason,
        error=letter.last_error,
        attempts=letter.attempts,
        priority=letter.message.priority,
        dead_at=instant(letter.dead_lettered_at, "dead_lettered_at"),
        headers=letter.message.headers,
    )


def _where(text: str) -> Where:
    from penstock.client.core.where import Where  # noqa: PLC0415  # `--help` needs no client

    return Where.parse(text)


def _document(letter: DeadLetter) -> dict[str, object]:
    return {
        **task_document(letter.message, letter.message.created_at),
        "reason": letter.reason,
        "dead_lettered": letter.dead_lettered_at,
        "attempts": letter.attempts,
        "last_error": letter.last_error,
    }
