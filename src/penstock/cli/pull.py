"""`penstock pull`: receive waiting messages of a subscription or, with `--follow`, all that arrive."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock.cli.command import Parser
from penstock.cli.messages import BATCH, Printer, add_consumption, add_format, follow
from penstock.cli.output import complain
from penstock.cli.session import add_target
from penstock.cli.session import run as run_with_client
from penstock.values.wording import count

if TYPE_CHECKING:
    from penstock.client.message import IncomingMessage
    from penstock.client.pubsub import PubSub
    from penstock.client.subscription import Subscription


def configure(parser: Parser) -> None:
    parser.add_argument("subscription", metavar="SUBSCRIPTION")
    ways = add_consumption(parser)
    ways.add_argument("--peek", action="store_true", help="show the next messages without leasing them")
    add_format(parser)
    add_target(parser)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Ack each message after showing it."""

    async def work(pubsub: PubSub) -> int:
        subscription = pubsub.subscription(found.subscription)
        printer = Printer(found)
        if found.follow:
            return await follow(subscription, found, printer.message)
        most = found.max or 10
        if found.peek:
            shown = await subscription.peek(most)
            for message in shown:
                printer.message(message)
            done = len(shown)
        else:
            done = await _pull(pubsub, subscription, found, most, printer)
        if not done:
            complain("no messages")
        return 0

    return run_with_client(found, work, is_heavy=found.follow)


async def _pull(pubsub: PubSub, subscription: Subscription, found: argparse.Namespace, most: int, printer: Printer) -> int:
    """Lease at most this many; wait only for the first. Returns how many arrived."""
    done = 0
    while done < most:
        wait = 0 if done else found.wait
        messages = await subscription.pull(min(most - done, BATCH), wait=wait)
        if not messages:
            break
        done += len(messages)
        shown: list[IncomingMessage] = []
        try:
            for message in messages:
                printer.message(message)
                shown.append(message)
        finally:
            if not found.no_ack and shown:
                await _ack(pubsub, subscription.name, shown)
    return done


async def _ack(pubsub: PubSub, name: str, shown: list[IncomingMessage]) -> None:
    from penstock.wire.operations import Operations  # noqa: PLC0415  # it is loaded when this is called

    late = await pubsub.link.call(Operations.acknowledge, name, [message.ack_id for message in shown])
    if late:
        complain(f"{count(len(late), 'message')} could not be acked in time and will be redelivered")
