"""`penstock dlq list|show|redrive|purge`: the dead letters of a work queue, all or those that `--where` matches."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import penstock
from penstock.cli.arguments import whole
from penstock.cli.command import Parser, Verbs
from penstock.cli.input import add_yes, confirm
from penstock.cli.messages import indented, payload_text, task_document
from penstock.cli.output import Progress, clipped, complain, facts, say, say_json, table
from penstock.cli.session import add_target, run
from penstock.cli.trace import timeline
from penstock.durations import SECOND, instant
from penstock.errors import MessageNotFound
from penstock.values.queue import EXPLICIT_NACK, task_name
from penstock.values.wording import count, span

if TYPE_CHECKING:
    from penstock.client.core.dead_letter_filter import DeadLetterFields, DeadLetterFilter
    from penstock.client.pubsub import PubSub

BATCH = 200
"""Dead letters in one batch of a redrive; the progress is shown after each."""
REJECTED = "rejected"
"""The displayed name of the reason `explicit_nack`, also for `--where reason=`."""
PAYLOAD_WIDTH, ERROR_WIDTH = 50, 60


def configure(parser: Parser) -> None:
    verbs = Verbs(parser)
    listing = verbs.add("list", "list dead letters and why they died", run_list)
    show = verbs.add("show", "show a dead letter with its payload, headers, error and history", run_show)
    show.add_argument("queue", metavar="QUEUE")
    show.add_argument("message_id", metavar="MESSAGE-ID", help="an id from `penstock dlq list`")
    add_target(show)
    redrive = verbs.add("redrive", "put dead letters back into their queue, as new", run_redrive)
    purge = verbs.add("purge", "remove dead letters", run_purge)
    for child in (listing, redrive, purge):
        child.add_argument("queue", metavar="QUEUE")
        child.add_argument(
            "--where", type=_where, metavar="CONDITION", help="only those, as in 'attempts>3 AND error~timeout' (default: all)"
        )
        child.add_argument("--limit", type=whole(1), metavar="N", help="at most N, the oldest first (default: all)")
    add_yes(purge)
    for child in (listing, redrive, purge):
        add_target(child)


def run_list(found: argparse.Namespace) -> int:
    """List, oldest first."""

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
                    _reason(letter),
                    clipped(payload_text(letter.message.payload), PAYLOAD_WIDTH),
                    clipped(letter.last_error or "-", ERROR_WIDTH),
                ]
                for letter in letters
            ]
            say(table([["ID", "AGE", "ATTEMPTS", "REASON", "PAYLOAD", "ERROR"], *rows]))
        else:
            complain("no dead letters")
        return 0

    return run(found, work)


def run_show(found: argparse.Namespace) -> int:
    """Show everything that is known about it."""

    async def work(pubsub: PubSub) -> int:
        letters = await pubsub.queue(found.queue).dead_letters()
        letter = next((one for one in letters if one.message.message_id == found.message_id), None)
        if letter is None:
            error = MessageNotFound(found.message_id)
            error.hint = f"`penstock dlq list {found.queue}` shows the dead letters of the queue"
            raise error
        events = sorted(await pubsub.trace(found.message_id), key=lambda one: one.at)
        if found.json:
            history = [{"at": one.at, "event": one.kind, "attempt": one.attempt, "detail": one.detail} for one in events]
            say_json({**_document(letter), "queue": found.queue, "events": history})
            return 0
        message = letter.message
        values = {
            "message": message.message_id,
            "queue": found.queue,
            "reason": _reason(letter),
            "error": letter.last_error,
            "attempts": letter.attempts,
            "created": message.created_at,
            "dead since": letter.dead_lettered_at,
            "priority": message.priority,
            **{f"header {name}": value for name, value in sorted(message.headers.items())},
        }
        say(facts(values))
        say("\npayload\n" + indented(message.payload))
        if events:
            say("\n" + table(timeline(events)))
        return 0

    return run(found, work)


def run_redrive(found: argparse.Namespace) -> int:
    """Letters that another client removed in the meantime are not counted."""

    async def work(pubsub: PubSub) -> int:
        from penstock.wire.operations import Operations  # noqa: PLC0415  # it is loaded when this is called

        chosen = await _chosen(pubsub, found)
        done = 0
        with Progress("putting back", chosen.count) as progress:
            for most, ids in chosen.batches():
                done += await pubsub.link.call(Operations.redrive_dead_letters, found.queue, most, ids)
                progress.advance(most)
        if found.json:
            say_json({"redriven": done})
        else:
            say(f"put {count(done, 'dead letter')} back into queue {found.queue}")
        return 0

    return run(found, work)


def run_purge(found: argparse.Namespace) -> int:
    """Ask first, unless `--yes` is given."""

    async def work(pubsub: PubSub) -> int:
        from penstock.wire.operations import Operations  # noqa: PLC0415  # it is loaded when this is called

        chosen = await _chosen(pubsub, found, by_id=found.limit is not None)
        done = 0
        if chosen.count:
            await confirm(found, f"remove {count(chosen.count, 'dead letter')} of queue {found.queue}")
            ids = None if chosen.ids is None else [*chosen.ids]
            done = await pubsub.link.call(Operations.purge_dead_letters, found.queue, ids)
        if found.json:
            say_json({"purged": done})
        else:
            say(f"removed {count(done, 'dead letter')} of queue {found.queue}")
        return 0

    return run(found, work)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The selected letters: those of the ids or, without ids, the oldest ones up to a number."""

    count: int
    ids: Sequence[str] | None

    def batches(self) -> Iterator[tuple[int, list[str] | None]]:
        """The letters in batches: (how many, which)."""
        for start in range(0, self.count, BATCH):
            stop = min(start + BATCH, self.count)
            yield stop - start, None if self.ids is None else [*self.ids[start:stop]]


async def _chosen(pubsub: PubSub, found: argparse.Namespace, *, by_id: bool = False) -> Chosen:
    """Without a condition the letters are not read; they may be many and large."""
    if found.where is None and not by_id:
        there = (await pubsub.queue(found.queue).stats()).dead_letters
        return Chosen(there if found.limit is None else min(there, found.limit), None)
    ids = [letter.message.message_id for letter in await _picked(pubsub, found)]
    return Chosen(len(ids), ids)


async def _picked(pubsub: PubSub, found: argparse.Namespace) -> list[penstock.DeadLetter]:
    """The letters that match, oldest first."""
    where: DeadLetterFilter | None = found.where
    if where is None:
        return await pubsub.queue(found.queue).dead_letters(found.limit)
    now = pubsub.link.clock.now()
    letters = await pubsub.queue(found.queue).dead_letters()
    return [letter for letter in letters if where.matches(_facts(letter), now)][: found.limit]


def _facts(letter: penstock.DeadLetter) -> DeadLetterFields:
    from penstock.client.core.dead_letter_filter import DeadLetterFields  # noqa: PLC0415  # `--help` needs no client

    return DeadLetterFields(
        message_id=letter.message.message_id,
        reason=letter.reason,
        error=letter.last_error,
        attempts=letter.attempts,
        priority=letter.message.priority,
        dead_at=instant(letter.dead_lettered_at, "dead_lettered_at"),
        headers=letter.message.headers,
        task=task_name(letter.message.payload),
    )


def _where(text: str) -> DeadLetterFilter:
    from penstock.client.core.dead_letter_filter import DeadLetterFilter  # noqa: PLC0415  # `--help` needs no client

    return DeadLetterFilter.parse(text)


def _reason(letter: penstock.DeadLetter) -> str:
    return REJECTED if letter.reason == EXPLICIT_NACK else letter.reason


def _document(letter: penstock.DeadLetter) -> dict[str, object]:
    return {
        **task_document(letter.message, letter.message.created_at),
        "reason": letter.reason,
        "dead_lettered": letter.dead_lettered_at,
        "attempts": letter.attempts,
        "last_error": letter.last_error,
    }
