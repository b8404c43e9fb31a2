"""What an earlier life of a router left unsettled at a NATS consumer, made to come first.

JetStream hands such messages out again only when their leases end, and newer ones meanwhile. But it takes a `-NAK` from
anybody who names the message, ignores it for one that is not handed out, and puts the others into the list that is handed out
before anything new. So whoever starts and is alone says `-NAK` to everything between the oldest message that is not acked and
the newest that was handed out, in ascending order. That also brings a message sooner that was nacked with a delay: after a
start order comes before delay.

Alone is who gets no answer from another router of the same consumer, because nobody listens to the subject that each of them
listens to, and sees no request for messages waiting. Where somebody listens and does not answer (its machine died, the server
does not know yet) the leases are waited for instead.

A server that was killed may remember a message as handed out that was acked and is deleted. Nothing hands that one out again or
ends it, and the server stops for a moment each time that its lease ends. `clear` acks what no longer exists: that can do no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import chain, islice

from penstock.router.sources.nats_address import NatsAddress
from penstock.router.sources.nats_connection import NatsConnection, NoResponders
from penstock.router.sources.nats_jetstream import ConsumerInfo, JetStream

ASK_SECONDS = 0.5
"""How long another router may take to say that it lives."""
MOST = 1_000_000
"""Between the oldest message that is not acked and the newest: more take longer to go through than leases do to end."""
_AT_A_TIME = 10_000


def presence(address: NatsAddress) -> str:
    """The subject on which a router of this consumer answers that it lives."""
    return f"_PENSTOCK.router.{address.stream}.{address.consumer}"


async def free(link: NatsConnection, jetstream: JetStream, address: NatsAddress) -> int:
    """Have what an earlier life left handed out next; returns how many messages that are.

    0 when there are none, or when they belong to another router that lives.
    """
    loop = asyncio.get_running_loop()
    info = await jetstream.info()
    until = loop.time() + info.lease_seconds
    while info.num_ack_pending:
        match await _is_alone(link, address):
            case True if info.num_waiting:
                return 0  # a program of another kind takes from this consumer
            case True if len(_unsettled(info)) <= MOST:
                await _tell(link, address, info, "-NAK", _unsettled(info))
                await jetstream.settle()
                return (await jetstream.info()).num_ack_pending
            case False:
                return 0
        if loop.time() >= until:
            break
        await asyncio.sleep(min(1.0, max(until - loop.time(), 0)))
        info = await jetstream.info()
    return info.num_ack_pending


async def _is_alone(link: NatsConnection, address: NatsAddress) -> bool | None:
    """None when it cannot be told."""
    try:
        await link.request(presence(address), seconds=ASK_SECONDS)
    except NoResponders:
        return True
    except (TimeoutError, PermissionError):
        return None
    return False


async def clear(link: NatsConnection, jetstream: JetStream, address: NatsAddress, info: ConsumerInfo) -> None:
    """Have the consumer forget what it has handed out and the stream no longer holds."""
    numbers = _unsettled(info)
    if info.num_ack_pending and len(numbers) <= MOST:
        held = await jetstream.holes()
        gone = chain(range(numbers.start, min(numbers.stop, held.first_seq)), held.deleted or ())
        await _tell(link, address, info, "+ACK", (number for number in gone if number in numbers))


def _unsettled(info: ConsumerInfo) -> range:
    """Numbers in the stream among which are all that are handed out."""
    return range(info.ack_floor.stream_seq + 1, info.delivered.stream_seq + 1)


async def _tell(link: NatsConnection, address: NatsAddress, info: ConsumerInfo, what: str, numbers: Iterable[int]) -> None:
    # A message is known by its number in the stream (%d); the delivery only has to be one that can have been.
    command = f"PUB $JS.ACK.{address.stream}.{address.consumer}.1.%d.{info.delivered.consumer_seq}.0.0 4\r\n{what}\r\n"
    rest = iter(numbers)
    while some := list(islice(rest, _AT_A_TIME)):
        link.write("".join([command % number for number in some]).encode())
        await link.ping()
