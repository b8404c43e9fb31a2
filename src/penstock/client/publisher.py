"""Publishing to one topic: messages with ordering keys, one by one or many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from penstock.client.outgoing import outgoing
from penstock.client.sender import Sender
from penstock.errors import InvalidArgument
from penstock.values.message import MAX_ORDERING_KEY_BYTES, Message, check_text

MANY_MESSAGES = 1_000
MANY_BYTES = 8 * 1024 * 1024
"""How much of an explicit batch goes in one request."""


class Publisher(Sender[Message]):
    """The publishing side of a topic."""

    noun = "topic"

    def publish(self, message: Message, size: int) -> asyncio.Future[str]:
        """Have a checked message sent; the future gives its id. Raises where nothing can be published at all."""
        return self._add(message.ordering_key, message, size, is_marked=message.producer_id is not None)

    async def publish_many(self, messages: Iterable[Message]) -> list[str]:
        """Send messages in as few requests as may be; returns their ids in order."""
        self._pubsub.check_open()
        loop = self._loop or self._begin()
        checked = _checked(messages)
        keys = {message.ordering_key for message, _ in checked}
        self._batching.check_batch(keys, messages=len(checked), size=sum(size for _, size in checked))
        tickets: list[asyncio.Future[list[str]]] = []
        for chunk in _chunks(checked):
            ticket: asyncio.Future[list[str]] = loop.create_future()
            tickets.append(ticket)
            self._batching.add_batch(
                {message.ordering_key for message, _ in chunk},
                [message for message, _ in chunk],
                ticket,
                size=sum(size for _, size in chunk),
                is_marked=chunk[0][0].producer_id is not None,
            )
        self._soon()
        return [message_id for ids in await asyncio.gather(*tickets) for message_id in ids]

    def resume(self, key: str) -> None:
        """Publish messages of a paused ordering key again."""
        check_text(key, "ordering_key", MAX_ORDERING_KEY_BYTES)
        self._batching.resume(key)

    async def _store(self, messages: list[Message]) -> list[str]:
        return await self._pubsub.link.publish(self._name, messages)


def _checked(messages: Iterable[Message]) -> list[tuple[Message, int]]:
    """Messages of plain values, with their sizes; all are good, or none is taken."""
    if isinstance(messages, Message | str | bytes) or not isinstance(messages, Iterable):
        raise InvalidArgument.of("messages", messages, "a list of Message")
    checked: list[tuple[Message, int]] = []
    for index, one in enumerate(messages):
        if type(one) is not Message:
            raise InvalidArgument.of(f"messages[{index}]", one, "a penstock.Message")
        try:
            checked.append(
                outgoing(
                    one.data,
                    one.attributes,
                    one.ordering_key,
                    one.priority,
                    one.ttl,  # type: ignore[arg-type]  # a Message takes anything, and is checked here
                    one.deliver_at,  # type: ignore[arg-type]  # likewise
                    one.producer_id,
                    one.sequence,
                )
            )
        except InvalidArgument as error:
            error.add_note(f"it is messages[{index}]")
            raise
    if not checked:
        raise InvalidArgument("messages is empty, wanted at least one message")
    return checked


def _chunks(messages: Sequence[tuple[Message, int]]) -> Iterable[list[tuple[Message, int]]]:
    """What goes in one request. Messages with and without a producer id of their own never share one."""
    chunk: list[tuple[Message, int]] = []
    total, is_marked = 0, False
    for message, size in messages:
        marked = message.producer_id is not None
        if chunk and (len(chunk) >= MANY_MESSAGES or total + size > MANY_BYTES or marked != is_marked):
            yield chunk
            chunk, total = [], 0
        chunk.append((message, size))
        total += size
        is_marked = marked
    yield chunk
