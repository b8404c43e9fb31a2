"""Publishing to one work queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from penstock.client.sender import Sender
from penstock.errors import InvalidArgument, QueueFull
from penstock.values.policy import QueueConfig
from penstock.values.queue import NewMessage, accept
from penstock.wire import frames

_ANY_QUEUE = QueueConfig()


class QueuePublisher(Sender[NewMessage]):
    """The publishing side of a work queue. A full queue is told at once: the producer decides whether to wait."""

    noun = "queue"
    divisible = (InvalidArgument, QueueFull)
    level = logging.DEBUG  # every message has somebody who awaits it

    def publish(self, message: NewMessage) -> asyncio.Future[str]:
        """Have a message sent; the future gives its id. InvalidArgument when no queue would take it."""
        return self._add("", message, checked(message), is_marked=message.producer_id is not None)

    async def publish_many(self, messages: Iterable[NewMessage]) -> list[str]:
        """Send messages at once, all or none; returns their ids."""
        self._pubsub.check_open()
        several = [*messages]
        for index, message in enumerate(several):
            try:
                checked(message)
            except InvalidArgument as error:
                error.add_note(f"it is messages[{index}]")
                raise
        return await self._store(several)

    async def _store(self, messages: list[NewMessage]) -> list[str]:
        return await self._pubsub.link.enqueue(self._name, messages)


def checked(message: NewMessage) -> int:
    """The size of a message as it travels; InvalidArgument when no queue would take it.

    It is checked before it shares a request with others: what cannot even be written down would fail them too.
    """
    if not isinstance(message, NewMessage):
        raise InvalidArgument.of("message", message, "a NewMessage")
    accept([message], _ANY_QUEUE, 0)
    try:
        return len(frames.encode(message))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidArgument(f"the message cannot be sent: {error}") from None
