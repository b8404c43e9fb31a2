"""Converts between messages of the hub and messages in a log, which services may have written too.

The data is stored unchanged. Everything else is in attributes, so that services can read and write it: a service that sets
`hub.topic` chooses one of the topics that the log is bound to.

| attribute     | meaning                                   | default                           |
|---------------|-------------------------------------------|-----------------------------------|
| `hub.topic`   | the topic                                 | the beginning of the bound pattern|
| `hub.type`    | the message type                          | the attribute `type`, or `message`|
| `hub.from`    | the address of the sender                 | `@(penstock/TOPIC)`               |
| `hub.id`      | the id of the request that published it   | the broker's id                   |
| `hub.expires` | when it expires, milliseconds since 1970  | the expiry time in the broker     |

Data that is not JSON is sent to clients as `{"base64": "…"}`. A type that begins with `hub:`, and the hub's own address as
sender, are ignored: clients would mistake such a message for a reply.
"""

from __future__ import annotations

import binascii
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from penstock.hub.core.json_limits import has_huge_number, is_deeper
from penstock.hub.core.messages import Message, Position
from penstock.hub.core.names import EVERYONE, HUB, covers, is_address, is_topic, overlaps
from penstock.hub.core.publishing import RESERVED
from penstock.hub.core.rules import MAX_DEPTH, Binding
from penstock.ids import message_id
from penstock.values.message import Message as NewMessage
from penstock.values.message import StoredMessage

log = logging.getLogger("penstock.hub")

TOPIC = "hub.topic"
TYPE = "hub.type"
SENDER = "hub.from"
ID = "hub.id"
EXPIRES = "hub.expires"

MAX_NAME = 256
"""Characters of a type and of an id, as in an envelope."""
_MAX_DIGITS = 15
_NOTHING: Mapping[str, str] = {}

_check = msgspec.json.Decoder(msgspec.Raw).decode
_unfit = re.compile(r"[^a-z0-9-]+")


class _Stream(Protocol):
    @property
    def number(self) -> int: ...
    @property
    def created_at(self) -> int: ...


def epoch_of(stream: _Stream, run: str) -> str:
    """The epoch of a log. `run` identifies this run of a broker in memory; it is empty if logs outlive the process."""
    # A number is never used twice in one data directory; the creation time distinguishes directories.
    return f"{stream.number:x}-{stream.created_at:x}{run}"


def to_publish(message: Message) -> NewMessage:
    """The message to publish to the log for a message of the hub."""
    attributes = {TOPIC: message.topic or "", TYPE: message.type, SENDER: message.sender, ID: message.message_id}
    if message.expires_at is not None:
        attributes[EXPIRES] = str(message.expires_at // 1000)
    return NewMessage(message.data, attributes)


def data_of(data: bytes) -> bytes:
    """The data of a message as JSON text."""
    try:
        checked = bytes(_check(data))
        checked.decode()  # the check above only checks the syntax
        if not (is_deeper(checked, MAX_DEPTH) or has_huge_number(checked)):
            return checked
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return b'{"base64":"%b"}' % binascii.b2a_base64(data, newline=False)


class LogReader:
    """Converts messages in the log of one binding to messages of the hub."""

    def __init__(self, binding: Binding, max_bytes: int, before: Sequence[Binding] = ()) -> None:
        """`before` are the bindings that take precedence over this one if both cover a topic."""
        self.binding = binding
        self._max_bytes = max_bytes
        self._before = [one.pattern for one in before if overlaps(one.pattern, binding.pattern)]
        self._service = f"@(penstock/{_unfit.sub('-', binding.stream.lower()).strip('-')[:128] or 'topic'})"
        self._base = binding.base if is_topic(binding.base) else None
        self.oversized = 0
        """The number of messages that were skipped because they are too large for the hub."""
        self._skipped = -1
        self._told: tuple[str, bool] = "", False

    def topic_of(self, attributes: Mapping[str, str]) -> str | None:
        """The topic of a message; None if the binding does not cover it."""
        topic = attributes.get(TOPIC)
        if topic is None:
            return self._base
        if self._told[0] != topic:  # consecutive messages often have the same topic
            self._told = topic, is_topic(topic) and covers(self.binding.pattern, topic)
        return topic if self._told[1] else None

    def is_log_of(self, topic: str) -> bool:
        """Whether this log has the history of a topic that its binding covers. Only one log does."""
        return not any(covers(pattern, topic) for pattern in self._before)

    def message(self, stored: StoredMessage, stream: int, offset: int) -> Message | None:
        """The message at an offset; None if its topic is not one of the binding, or it is too large."""
        attributes = stored.attributes or _NOTHING
        topic = self.topic_of(attributes)
        if topic is None:
            return None
        data = data_of(stored.data) if len(stored.data) <= self._max_bytes else stored.data
        if len(data) > self._max_bytes:
            self._skip(message_id(stored.publish_at, stream, offset), offset, len(data))
            return None
        sender = attributes.get(SENDER, "")
        return Message(
            type=_type(attributes, TYPE) or _type(attributes, "type") or "message",
            sender=sender if is_address(sender) and sender not in {HUB, EVERYONE} else self._service,
            data=data,
            message_id=_named(attributes, ID) or message_id(stored.publish_at, stream, offset),
            published_at=stored.publish_at,
            expires_at=_expiry(attributes.get(EXPIRES)) or stored.expires_at,
            topic=topic,
            position=Position(self.binding.epoch, offset),
        )

    def _skip(self, name: str, offset: int, size: int) -> None:
        """Log and count a message that clients do not get, once for each message."""
        if offset > self._skipped:
            self._skipped = offset
            self.oversized += 1
            log.warning(
                "message %s of topic %r is skipped: %d bytes, expected at most %d",
                name,
                self.binding.stream,
                size,
                self._max_bytes,
            )


def _named(attributes: Mapping[str, str], key: str) -> str | None:
    text = attributes.get(key)
    return text if text and len(text) <= MAX_NAME else None


def _type(attributes: Mapping[str, str], key: str) -> str | None:
    text = _named(attributes, key)
    return None if text is None or text.startswith(RESERVED) else text


def _expiry(text: str | None) -> int | None:
    """The time in an attribute, in microseconds; None if it is missing or invalid."""
    return int(text) * 1000 if text and len(text) <= _MAX_DIGITS and text.isascii() and text.isdecimal() else None
