"""Taking messages as they come: what `penstock pull` and `penstock queue consume` have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import penstock
from penstock.cli.arguments import duration, whole
from penstock.cli.output import complain
from penstock.errors import PenstockError, Unavailable

if TYPE_CHECKING:
    from penstock.client.consumer import Consumer
    from penstock.client.message import IncomingMessage

    M = TypeVar("M", bound=IncomingMessage)

BATCH = 100
"""How many are taken at once: few enough to be shown before their leases run out."""


def add_consumption(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """The flags that say how many, and what becomes of them; returns the group of ways that exclude each other."""
    parser.add_argument("--max", type=whole(1), metavar="N", help="stop after so many (default: 10; with --follow: no limit)")
    parser.add_argument("--wait", type=_wait, default=0, metavar="DURATION", help="wait so long for the first one (default: 0)")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    ways.add_argument("--no-ack", action="store_true", help="do not ack: they come again when their leases have run out")
    return ways


def _wait(text: str) -> float:
    seconds = duration(text)
    if seconds > 60:
        raise argparse.ArgumentTypeError(f"{text!r} is more than a minute; --follow waits for ever")
    return seconds


def _tell(error: PenstockError) -> None:
    """Only of what passes and nobody else tells: the client logs a lost connection, and what ends it all is raised."""
    if error.transient and not isinstance(error, Unavailable):
        complain(f"penstock: {error}; trying again")


async def follow(consumer: Consumer[M], found: argparse.Namespace, show: Callable[[M], None]) -> int:
    """Show messages as they come and ack each when it has been shown, until there were enough. What is left goes back."""
    most = found.max
    consumer.set_options(
        flow_control=penstock.FlowControl(max_messages=BATCH if most is None else min(BATCH, most)),
        close_behavior=penstock.CloseBehavior.NACK,
    )
    consumer.on("error", _tell)
    done = 0
    async for message in consumer:
        show(message)
        message.ack()
        done += 1
        if done == most:
            break
    await consumer.close()
    return 0
