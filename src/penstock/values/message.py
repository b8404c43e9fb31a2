"""A message as published and as stored, and the checks it must pass.

`Message` is what a publisher creates. `StoredMessage` is what the log keeps: one object, shared by all subscriptions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from penstock.durations import instant, micros
from penstock.errors import FailedPrecondition, InvalidArgument, InvalidPriority

MAX_MESSAGE_BYTES = 10 * 1024 * 1024
MAX_ATTRIBUTE_KEY_BYTES = 256
MAX_ATTRIBUTE_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024
MAX_PRODUCER_ID_BYTES = 256
MAX_NAME_BYTES = 1024
DEFAULT_PRIORITY = 5
RESERVED_PREFIX = "goog"
UNPRINTABLE = r"\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
"""What new names must not contain, for a character class: controls, line ends, and what is invisible or changes the direction
of text, so that a name could look like another one. Names that exist already keep theirs."""


@dataclass(frozen=True, slots=True)
class PublishLimits:
    """The limits of one API on publishing, beside those that hold for every message."""

    max_messages: int | None = None
    """Messages in one request."""
    max_request_bytes: int | None = None
    """Bytes of a request as the API's protocol counts them."""
    max_attributes: int | None = None
    """Attributes of one message."""
    open_prefix: str | None = None
    """Attribute keys with this prefix are accepted, although they start with the reserved prefix."""
    one_key: bool = False
    """Whether all messages of a request must have the same ordering key, or all none."""


NO_LIMITS = PublishLimits()
"""For APIs without limits of their own: `MessageQueue`, the native protocol, the queue API and the hub."""


class Message(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A message to publish. The broker assigns its id and its publish time.

    `ordering_key`: messages with the same key are delivered one at a time and in order, if the subscription enables ordering.
    `priority`: 0 to 9, 9 is delivered first. `ttl`: seconds until it expires undelivered. `deliver_at`: not delivered before this
    time.
    `producer_id` with `sequence`: publishing the same pair again returns the first id and stores nothing.
    """

    data: bytes = b""
    attributes: Mapping[str, str] = {}
    ordering_key: str = ""
    priority: int = DEFAULT_PRIORITY
    ttl: object = None
    deliver_at: object = None
    producer_id: str | None = None
    sequence: int | None = None


class StoredMessage(msgspec.Struct, gc=False):
    """A message in the log. Treat it as immutable; only staging a commit sets `publish_at`."""

    publish_at: int
    data: bytes
    attributes: dict[str, str] | None
    key: str
    priority: int
    size: int
    expires_at: int | None = None
    deliver_at: int | None = None
    max_attempts: int | None = None
    content: int = 0
    """The type in which a work queue returns the payload: 0 bytes, 1 text, 2 JSON."""
    origin_at: int | None = None
    """When a dead letter was first published, in its original stream."""


class Batch(msgspec.Struct, gc=False):
    """Messages published together, and what they have in common, so that plain ones can be handled as a range."""

    messages: list[StoredMessage]
    size: int
    priority: int | None
    """The priority of all of them, if none has a time to live or a delivery time; None otherwise."""
    keyed: bool
    producers: list[tuple[str, int] | None] | None = None
    """The pairs of an idempotent producer that identify the messages."""
    is_whole: bool = False
    """Whether only the first message has such a pair, for the whole batch: a repeated batch is the same batch."""


def summarize(messages: list[StoredMessage]) -> Batch:
    """What these messages have in common."""
    first = messages[0].priority
    size, plain, keyed = 0, True, False
    for message in messages:
        size += message.size
        if message.priority != first or message.expires_at is not None or message.deliver_at is not None:
            plain = False
        if message.key:
            keyed = True
    return Batch(messages, size, first if plain else None, keyed)


def joined(batches: list[Batch]) -> Batch:
    """Join batches, in this order."""
    if len(batches) == 1:
        return batches[0]
    messages = [message for batch in batches for message in batch.messages]
    priorities = {batch.priority for batch in batches}
    producers: list[tuple[str, int] | None] | None = None
    if any(batch.producers for batch in batches):
        producers = [pair for batch in batches for pair in batch.producers or [None] * len(batch.messages)]
    return Batch(
        messages,
        sum(batch.size for batch in batches),
        priorities.pop() if len(priorities) == 1 else None,
        any(batch.keyed for batch in batches),
        producers,
    )


def accept(messages: Sequence[Message], now: int) -> Batch:  # one loop on the hottest path, inlined on purpose
    """Check every message and convert them to the form of the log; one bad message refuses them all."""
    if type(messages) is not list and (isinstance(messages, Message | str | bytes) or not isinstance(messages, Sequence)):
        raise InvalidArgument.of("messages", messages, "a list of Message")
    if not messages:
        raise InvalidArgument("messages is empty, expected at least one message")
    stored: list[StoredMessage] = []
    total, plain, keyed = 0, True, False
    unusual: list[int] = []
    producers: list[tuple[str, int] | None] | None = None
    for index, message in enumerate(messages):
        if type(message) is not Message:
            raise InvalidArgument.of(f"messages[{index}]", message, "a penstock.Message")
        data = message.data
        if type(data) is not bytes:
            data = _bytes(data, index)
        size = len(data)
        given, attributes = message.attributes, None
        if given:
            attributes, extra = check_attributes(given, f"messages[{index}].attributes")
            size += extra
        elif type(given) is not dict and (not isinstance(given, Mapping) or given != {}):
            raise InvalidArgument.of(f"messages[{index}].attributes", given, "a mapping of str to str")
        elif not size:
            raise _empty(index)
        key = message.ordering_key
        if key != "":
            size += check_text(key, f"messages[{index}].ordering_key", MAX_ORDERING_KEY_BYTES)
            key, keyed = plain_text(key), True
        if size > MAX_MESSAGE_BYTES:
            raise _too_large(index, size)
        priority = message.priority
        if priority is not DEFAULT_PRIORITY:  # the number itself, as in most messages: no check needed
            priority = check_priority(priority)
            unusual.append(priority)
        record = StoredMessage(now, data, attributes, key, priority, size)
        if message.ttl is not None:
            record.expires_at = now + micros(message.ttl, f"messages[{index}].ttl", minimum=1e-6)
            plain = False
        if message.deliver_at is not None:
            record.deliver_at = instant(message.deliver_at, f"messages[{index}].deliver_at")
            plain = False
        if message.producer_id is not None or message.sequence is not None:
            producers = producers or [None] * len(messages)
            producers[index] = check_producer(message.producer_id, message.sequence, f"messages[{index}]")
        total += size
        stored.append(record)
    common = _common_priority(unusual, len(stored)) if unusual else DEFAULT_PRIORITY
    return Batch(stored, total, common if plain else None, keyed, producers)


def _common_priority(unusual: list[int], count: int) -> int | None:
    """The priority that `count` messages share; None if they differ. Messages that are not `unusual` have the default one."""
    found = {*unusual} if len(unusual) == count else {*unusual, DEFAULT_PRIORITY}
    return found.pop() if len(found) == 1 else None


class TypedMessage(Protocol):
    """A message whose field types its protocol's parser has checked, and without further fields, such as Google's."""

    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str


def accept_typed(messages: Sequence[TypedMessage], now: int, limits: PublishLimits, request_bytes: int) -> Batch:
    """`accept` for typed messages, within the limits of their API. `request_bytes`: see `PublishLimits.max_request_bytes`."""
    if not messages:
        raise InvalidArgument("messages is empty, expected at least one message")
    if limits.max_messages is not None and len(messages) > limits.max_messages:
        raise InvalidArgument(f"messages has {len(messages)} entries, expected 1 to {limits.max_messages}")
    if limits.max_request_bytes is not None and request_bytes > limits.max_request_bytes:
        raise InvalidArgument(
            f"the request is {request_bytes} bytes long, expected at most {limits.max_request_bytes}",
            hint="publish in smaller batches, or store large bodies elsewhere and send a reference",
        )
    stored: list[StoredMessage] = []
    total, length, last, keyed = 0, 0, "", False
    for index, message in enumerate(messages):
        # Read each field once: reading a field of a protobuf message creates an object.
        data, given, key = message.data, message.attributes, message.ordering_key
        if key != last:
            if index and limits.one_key:
                raise FailedPrecondition(
                    f"messages[{index}].ordering_key is {key[:80]!r} and messages[0].ordering_key is {last[:80]!r}, "
                    "expected one ordering key, or none, for all messages of a request",
                    hint="publish each ordering key in requests of its own",
                )
            length = check_text(key, f"messages[{index}].ordering_key", MAX_ORDERING_KEY_BYTES)
            last, keyed = key, True
        size = len(data) + length
        attributes = None
        if given:
            attributes, extra = check_attributes(dict(given), f"messages[{index}].attributes", limits)
            size += extra
        elif not data:
            raise _empty(index)
        if size > MAX_MESSAGE_BYTES:
            raise _too_large(index, size)
        total += size
        stored.append(StoredMessage(now, data, attributes, key, DEFAULT_PRIORITY, size))
    return Batch(stored, total, DEFAULT_PRIORITY, keyed)


def _empty(index: int) -> InvalidArgument:
    return InvalidArgument(f"messages[{index}] is empty, expected data or at least one attribute")


def _too_large(index: int, size: int) -> InvalidArgument:
    return InvalidArgument(
        f"messages[{index}] is {size} bytes with attributes and ordering key, expected at most {MAX_MESSAGE_BYTES}",
        hint="store large bodies elsewhere and send a reference",
    )


def check_attributes(attributes: object, name: str, limits: PublishLimits = NO_LIMITS) -> tuple[dict[str, str], int]:
    """A copy of the attributes and their size in bytes, or the reason why they are refused."""
    if type(attributes) is not dict and not isinstance(attributes, Mapping):
        raise InvalidArgument.of(name, attributes, "a mapping of str to str")
    if limits.max_attributes is not None and len(attributes) > limits.max_attributes:
        raise InvalidArgument(f"{name} has {len(attributes)} entries, expected at most {limits.max_attributes}")
    size = 0
    copy: dict[str, str] = {}
    for key, value in attributes.items():
        if (
            type(key) is str is type(value)
            and 0 < len(key) <= MAX_ATTRIBUTE_KEY_BYTES
            and len(value) <= MAX_ATTRIBUTE_VALUE_BYTES
            and key.isascii()
            and value.isascii()
            and not key.startswith(RESERVED_PREFIX)
        ):
            # The usual case. The code below is slow, because it finds out which entry is wrong.
            size += len(key) + len(value)
            copy[key] = value
            continue
        if not isinstance(key, str) or not key:
            raise InvalidArgument.of(f"an attribute key of {name}", key, "a non-empty string")
        if key.startswith(RESERVED_PREFIX) and not (limits.open_prefix and key.startswith(limits.open_prefix)):
            raise InvalidArgument.of(
                f"an attribute key of {name}", key, f"a key that does not start with {RESERVED_PREFIX!r}, which is reserved"
            )
        if not isinstance(value, str):
            raise InvalidArgument.of(
                f"{name}[{key!r}]", value, "a string", hint="attribute values are strings; convert numbers with str()"
            )
        size += check_text(key, f"an attribute key of {name}", MAX_ATTRIBUTE_KEY_BYTES)
        size += check_text(value, f"{name}[{key!r}]", MAX_ATTRIBUTE_VALUE_BYTES)
        copy[plain_text(key)] = plain_text(value)
    return copy, size


def check_text(value: object, name: str, limit: int) -> int:
    """The length in UTF-8 bytes of a string, at most `limit`."""
    if not isinstance(value, str):
        raise InvalidArgument.of(name, value, "a string")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise InvalidArgument.of(name, value, "text that UTF-8 can encode (no lone surrogates)") from None
    if size > limit:
        raise InvalidArgument(f"{name} is {size} bytes long, expected at most {limit}: {value[:40]!r}…")
    return size


def check_string(value: object, kind: str) -> str:
    """Check a name to look up: one that could not be a name is simply not found."""
    if not isinstance(value, str):
        raise InvalidArgument.of(kind, value, "a string")
    return value


def check_name(value: object, kind: str) -> str:
    """A name of a topic, subscription, queue, snapshot or consumer."""
    if type(value) is str and value.isascii() and value.isprintable() and 0 < len(value) <= MAX_NAME_BYTES:
        return value  # the usual case
    if not isinstance(value, str) or not value:
        raise InvalidArgument.of(kind, value, "a non-empty string")
    if check_text(value, kind, MAX_NAME_BYTES) and not value.isprintable() and any(one < " " or one == "\x7f" for one in value):
        raise InvalidArgument.of(kind, value, "a name without control characters")
    return plain_text(value)


_UNPRINTABLE = re.compile(f"[{UNPRINTABLE}]")


def check_new_name(name: str, kind: str) -> None:
    """Refuse to create something under an unreadable name."""
    if found := _UNPRINTABLE.search(name):
        unseen = f"U+{ord(found.group()):04X}"
        raise InvalidArgument.of(kind, name, f"a name without {unseen} and other invisible characters")


def check_priority(priority: object) -> int:
    """Check a priority, 0 to 9."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 9:
        raise InvalidPriority(priority)
    return int(priority)


def check_producer(producer_id: object, sequence: object, name: str) -> tuple[str, int]:
    """Check the pair that makes a publish idempotent: both or neither."""
    if not isinstance(producer_id, str) or not producer_id:
        raise InvalidArgument.of(f"{name}.producer_id", producer_id, "a non-empty string beside sequence")
    check_text(producer_id, f"{name}.producer_id", MAX_PRODUCER_ID_BYTES)
    if isinstance(sequence, bool) or not isinstance(sequence, int) or not 0 <= sequence < 1 << 63:
        raise InvalidArgument.of(f"{name}.sequence", sequence, "an integer from 0 to 2^63 - 1 beside producer_id")
    return plain_text(producer_id), int(sequence)


def plain_text(value: str) -> str:
    """The plain str of a string or of a subclass such as StrEnum: only plain strings are stored."""
    return value if type(value) is str else str.__str__(value)


def _bytes(data: object, index: int) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    hint = "encode text first: text.encode()" if isinstance(data, str) else None
    raise InvalidArgument.of(f"messages[{index}].data", data, "bytes", hint=hint)
