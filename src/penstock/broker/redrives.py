"""Redriving dead letters for programs that may be interrupted: requeued messages and the document about them are one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.consumer import Find
from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.ids import parse_message_id


class Letter(NamedTuple):
    """A message, and the time of its death, which identifies the dead letter."""

    message_id: str
    died_at: int


class Place(NamedTuple):
    """The place of a letter in its stream."""

    offset: int
    publish_at: int
    died_at: int


def number_of(broker: Broker, find: Find, name: str) -> tuple[int, int]:
    """The numbers of a work queue or subscription and of its stream. NotFound if there is none with this name."""
    with broker.lock:
        queue = find(broker.catalog, name)
        return queue.number, queue.stream


def places(letters: Sequence[Letter], stream: int) -> list[Place]:
    """The places of letters in a stream; InvalidArgument unless they are messages of it, in the order of their offsets."""
    found: list[Place] = []
    for letter in letters:
        place = parse_message_id(letter.message_id)
        if place is None or place[1] != stream:
            raise InvalidArgument.of("letters", letter.message_id, "ids of messages of the queue or subscription")
        if found and place[2] <= found[-1].offset:
            raise InvalidArgument.of("letters", letter.message_id, "ids in the order of publishing, each once")
        found.append(Place(place[2], place[0], letter.died_at))
    return found


def redrive(broker: Broker, number: int, chosen: Sequence[Place], note: Callable[[int], tuple[str, bytes]]) -> int:
    """Requeue the chosen messages that are still the same dead letters, and store the document that `note` makes of their number.

    Returns their number once all of it is durable. Letters that were redriven, removed or died again meanwhile are left out.
    """
    with broker.present() as now:
        broker.check_healthy()
        queue = broker.catalog.queues.get(number)
        if queue is None:
            raise FailedPrecondition("the queue was deleted while its dead letters were redriven")
        stream = broker.catalog.streams[queue.stream]
        letters = []
        for offset, publish_at, died_at in chosen:
            entry = queue.dead.get(offset)
            if queue.policy.dead_letter_topic is None:
                is_meant = entry is not None and entry.at == died_at
            else:  # it keeps no list: a message that neither waits nor is leased has left it
                is_meant = died_at >= queue.description.created_at
            message = broker.message(stream, offset) if is_meant else None
            if message is not None and message.publish_at == publish_at and not queue.is_unsettled(offset, message):
                letters.append((offset, message))
        if letters:
            broker.emit(queue.redrive(letters, now))
            broker.reschedule(queue)
            broker.notifier.notify(number)
        broker.emit(broker.catalog.keep_document(*note(len(letters)), now))
    broker.sync()
    return len(letters)
