"""How a hostile row is written down: what is sent, and what has to come back.

A row begins where its stage says: after the handshake, after hub:connect, or after hub:register. A text is sent as one text
frame, bytes are sent as they are. What comes is named in its order; where the last of it is no close, the connection goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

OPENED, CONNECTED, MEMBER, ORIGINAL = "opened", "connected", "member", "connected in the original's dialect"
ANONYMOUS = "opened, and never said hub:connect"
HOSTILE = "@(hostile/one)"
INNOCENT = "@(innocent/reader)"
TOKEN, SUBSCRIPTION = "<the innocent's renewal token>", "<the innocent's subscription>"
"""Stand in a text for what only a running hub knows."""
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Error:
    """hub:error, with its code and the reason among its details."""

    code: str
    reason: str


@dataclass(frozen=True)
class Reply:
    """A message of this type, with at least these fields in its payload."""

    kind: str
    fields: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Pong:
    """The answer to a ping, or to so many of them."""

    payload: bytes = b""
    times: int = 1


@dataclass(frozen=True)
class Closed:
    """The server's close, and its reason where it is the server's own."""

    code: int
    reason: str = ""


@dataclass(frozen=True)
class Many:
    """Any number of these, in any order; each at least once, unless it may be that some are not sent any more."""

    kinds: tuple[Error | Reply | Pong, ...]
    each: bool = True


Sent = str | bytes | Callable[[], str | bytes]
"""What is large is made when it is sent."""
Comes = Error | Reply | Pong | Closed | Many


@dataclass(frozen=True)
class Row:
    """One thing that is sent, and what has to come."""

    sent: tuple[Sent, ...]
    comes: tuple[Comes, ...]
    stage: str

    @property
    def goes_on(self) -> bool:
        """Whether the connection has to stay open."""
        return not (self.comes and isinstance(self.comes[-1], Closed))


def row(sent: Sent | tuple[Sent, ...], *comes: Comes, stage: str = CONNECTED) -> Row:
    return Row(sent if isinstance(sent, tuple) else (sent,), comes, stage)


def said(kind: object, payload: object = None, **envelope: object) -> str:
    """A request. A name that is a word of Python's takes an underscore: `from_`."""
    fields = {name.removesuffix("_"): value for name, value in envelope.items()}
    return json.dumps({"type": kind, "payload": payload, **fields})


def refused(reason: str, code: str = "internal_error") -> Error:
    return Error(code, reason)


def reply(kind: str, **fields: object) -> Reply:
    return Reply(kind, tuple(fields.items()))


def named(prefix: str, rows: dict[str, Row]) -> dict[str, Row]:
    return {f"{prefix}: {name}": found for name, found in rows.items()}


def nested(depth: int, *, of_objects: bool = False) -> str:
    """So many lists or objects in one another."""
    return '{"a":' * depth + "1" + "}" * depth if of_objects else "[" * depth + "]" * depth


BEAT = said("hub:heartbeat", {"timestamp": 1})
ALIVE = reply("hub:heartbeat_ack")
NOT_JSON, NO_ENVELOPE, NO_PAYLOAD = refused("invalid_json"), refused("invalid_envelope"), refused("invalid_payload")
TOO_DEEP = refused("too_deep")
TOO_LARGE = refused("message_too_large", "message_too_large")
