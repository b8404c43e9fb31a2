"""A request to a hub, and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from penstock.errors import ActorNotFound, FailedPrecondition, PenstockError, Unavailable
from penstock.hub.client.errors import error_of
from penstock.hub.core.messages import COMMANDS, Command, Envelope, Error, Reply, UnknownActor

R = TypeVar("R", bound=Reply)
NAMES = {kind: name for name, kind in COMMANDS.items()}
"""What commands are called on the wire."""


class Broken(Unavailable):
    """The connection broke before the answer came."""


class Request(Generic[R]):
    """A request as it is on the wire, and its answer: it may be sent again, as it is, on the next connection."""

    __slots__ = ("answer", "command", "is_repeatable", "is_sent", "on_reply", "reply", "text")

    def __init__(
        self, command: Command, reply: type[R], text: str, on_reply: Callable[[R], None] | None, *, is_repeatable: bool
    ) -> None:
        self.command = command
        self.reply = reply
        self.text = text
        self.on_reply = on_reply
        self.is_repeatable = is_repeatable
        self.is_sent = False
        self.answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    def take(self, envelope: Envelope) -> None:
        """Its answer has come. `on_reply` is called here, before the next message is looked at."""
        if self.answer.done():
            return
        try:
            if envelope.type == "hub:error":
                self.answer.set_exception(error_of(msgspec.json.decode(envelope.payload, type=Error), self.command))
                return
            if envelope.type == "hub:unknown_actor":
                unknown = msgspec.json.decode(envelope.payload, type=UnknownActor)
                self.answer.set_exception(ActorNotFound(unknown.actor_address))
                return
            found = msgspec.json.decode(envelope.payload, type=self.reply)
        except msgspec.MsgspecError as error:
            self.answer.set_exception(
                FailedPrecondition(
                    f"the hub's answer {envelope.type} cannot be read: {error}",
                    hint="install the version of penstock that the server has",
                )
            )
            return
        if self.on_reply is not None:
            self.on_reply(found)
        self.answer.set_result(found)

    def broke(self) -> bool:
        """The connection is gone; whether to send it again on the next one."""
        if self.is_repeatable or not self.is_sent:
            return True
        name = NAMES[type(self.command)]
        self.fail(
            Broken(
                f"the connection broke before the hub answered {name}: it may or may not have been done",
                hint="call it again if doing it twice does no harm; a publish is repeated by itself, and forwarded once",
            )
        )
        return False

    def fail(self, error: PenstockError) -> None:
        """It will not be answered. Does nothing when it was."""
        if not self.answer.done():
            self.answer.set_exception(error)
