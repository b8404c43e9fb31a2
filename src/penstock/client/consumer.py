"""Consuming: the common part of subscriptions and work queues."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from penstock.client.handlers import Dispatcher, Events, Listener
from penstock.client.link import Link
from penstock.client.message import IncomingMessage
from penstock.client.options import StreamKeywords, SubscriberOptions
from penstock.client.settlement import PullSettler
from penstock.client.stream import MessageStream
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub

log = logging.getLogger("penstock.client")

M = TypeVar("M", bound=IncomingMessage)
F = TypeVar("F", bound=Listener)

STREAM_OPTIONS = frozenset(field.name for field in fields(SubscriberOptions))


class Consumer(Generic[M]):
    """A subscription or work queue: delivers messages to handlers, or to `async for`.

    Handlers are called on the event loop, in order of arrival; coroutine functions run concurrently. A message is settled by
    `ack` or `nack`. If its handler raises, it is requeued, and listeners of 'error' are called with the error.
    """

    kind: int
    noun: str
    """Its name in messages to users."""
    message_type: type[IncomingMessage]

    def __init__(self, pubsub: PubSub, name: str) -> None:
        self._pubsub = pubsub
        self.name = name
        self._events = Events("message", "error", "close")
        self.dispatcher: Dispatcher[M] = Dispatcher(self._events, self._handler_failed)
        self._stream = MessageStream(self, SubscriberOptions())
        self._holders: dict[str, PullSettler] = {}
        """The settlers of messages that were leased without the stream, by name of the consumer."""

    # ── for users ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def on(self, event: str, listener: Listener) -> Self:
        """Call a function, or a coroutine function, for each 'message', each 'error', and the 'close'."""
        self._events.add(event, listener)
        if event == "message":
            self.dispatcher.handler_added()
        return self

    def off(self, event: str, listener: Listener) -> Self:
        """Stop calling it for this event."""
        self._events.remove(event, listener)
        if event == "message":
            self.dispatcher.handlers_changed()
        return self

    def handler(self, function: F) -> F:
        """Decorator: call a function for each message."""
        self.on("message", function)
        return function

    def open(self) -> None:
        """Start receiving. Returns at once; errors are reported to listeners of 'error'."""
        self._pubsub.check_open()
        self._stream.start()

    async def close(self) -> None:
        """Stop receiving; returns when unsettled messages are settled or requeued, as `close_behavior` says."""
        self._pubsub.check_loop()
        await self._stream.stop()
        holders, self._holders = self._holders, {}
        for settler in holders.values():
            await settler.finish()

    def pause(self) -> None:
        """Receive nothing until `resume`."""
        self._pubsub.check_loop()
        self._stream.pause()

    def resume(self) -> None:
        """Receive again."""
        self._pubsub.check_loop()
        self._stream.resume()

    @property
    def is_open(self) -> bool:
        """Whether it receives messages, or would if there were any."""
        return self._stream.is_open

    @property
    def stream(self) -> MessageStream:
        """Its stream."""
        return self._stream

    def set_options(self, **options: Unpack[StreamKeywords]) -> None:
        """Change how messages are received (`flow_control`, `ack_deadline`, …). See `SubscriberOptions`."""
        self._check_known(options, STREAM_OPTIONS)
        self._set_stream_options(options)

    def _set_stream_options(self, options: Mapping[str, object]) -> None:
        given: dict[str, Any] = {name: value for name, value in options.items() if name in STREAM_OPTIONS and value is not None}
        if given:
            self._stream.set_options(replace(self._stream.options, **given))

    async def __aiter__(self) -> AsyncIterator[M]:
        """Every message as it arrives. Opens the consumer; ends when it is closed, and raises the error if one ended it."""
        self._pubsub.check_open()
        if not self.is_open:
            self.open()
        while (message := await self.dispatcher.next()) is not None:
            with self.dispatcher.working(message):
                yield message
        if self._stream.failure is not None:
            raise self._stream.failure

    # ── for the stream ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def link(self) -> Link:
        """The way to the broker."""
        return self._pubsub.link

    def emit(self, event: str, *args: Any) -> None:
        """Call listeners. An error without a listener is logged."""
        if not self._events.emit(event, *args) and event == "error":
            log.warning("%s %r: %s", self.noun, self.name, args[0])

    def _check_known(self, options: Mapping[str, object], known: frozenset[str]) -> None:
        if unknown := options.keys() - known:
            raise InvalidArgument(f"unknown option {min(unknown)!r} of a {self.noun}, expected one of {', '.join(sorted(known))}")

    def _handler_failed(self, error: Exception, message: IncomingMessage) -> None:
        self._give_back(message, error)
        if not self._events.emit("error", error):
            log.error("the handler of %s %r failed for message %s", self.noun, self.name, message.id, exc_info=error)

    def _give_back(self, message: IncomingMessage, error: Exception) -> None:
        """Handle a message whose handler failed."""
        message.nack()
