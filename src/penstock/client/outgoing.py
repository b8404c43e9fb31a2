"""A message on its way out: checked where it is published, so that a mistake is shown where it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

import msgspec

from penstock.durations import SECOND, instant, micros
from penstock.errors import InvalidArgument
from penstock.values.message import (
    DEFAULT_PRIORITY,
    MAX_MESSAGE_BYTES,
    MAX_ORDERING_KEY_BYTES,
    Message,
    check_attributes,
    check_priority,
    check_producer,
    check_text,
    plain_text,
)
from penstock.values.policy import Duration

_NOTHING: dict[str, str] = {}


def outgoing(  # noqa: PLR0917  # once for each message: names would cost as much as the checks
    data: bytes = b"",
    attributes: Mapping[str, str] | None = None,
    ordering_key: str = "",
    priority: int = DEFAULT_PRIORITY,
    ttl: Duration | None = None,
    deliver_at: datetime | float | None = None,
    producer_id: str | None = None,
    sequence: int | None = None,
) -> tuple[Message, int]:
    """The message, made of plain values alone, and its size in bytes; InvalidArgument when no broker would take it."""
    if type(data) is not bytes:
        data = _bytes(data)
    size = len(data)
    plain = _NOTHING
    if attributes:
        plain, extra = check_attributes(attributes, "attributes")
        size += extra
    elif attributes is not None and not isinstance(attributes, Mapping):
        raise InvalidArgument.of("attributes", attributes, "a mapping of str to str")
    elif not size:
        raise InvalidArgument("the message is empty, wanted data or at least one attribute")
    if ordering_key != "":
        size += check_text(ordering_key, "ordering_key", MAX_ORDERING_KEY_BYTES)
        ordering_key = plain_text(ordering_key)
    if size > MAX_MESSAGE_BYTES:
        raise InvalidArgument(
            f"Message size exceeds maximum of 10 MiB: it is {size} bytes with attributes and ordering key",
            hint="store large bodies elsewhere and send a reference",
        )
    if priority != DEFAULT_PRIORITY or type(priority) is not int:
        priority = check_priority(priority)
    if ttl is None and deliver_at is None and producer_id is None and sequence is None:
        return Message(data, plain, ordering_key, priority), size
    if producer_id is not None or sequence is not None:
        producer_id, sequence = check_producer(producer_id, sequence, "message")
    return (
        Message(
            data,
            plain,
            ordering_key,
            priority,
            None if ttl is None else micros(ttl, "ttl", minimum=1e-6) / SECOND,
            None if deliver_at is None else instant(deliver_at, "deliver_at") / SECOND,
            producer_id,
            sequence,
        ),
        size,
    )


def json_bytes(value: object) -> bytes:
    """A value as JSON: what JSON knows, and dataclasses, dates and the like in their usual form."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=msgspec.to_builtins)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument.of("value", value, f"a value that JSON can hold ({error})") from None


def _bytes(data: object) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    hint = "encode text first: text.encode()" if isinstance(data, str) else "topic.publish_json(value) publishes other values"
    raise InvalidArgument(f"Message data must be bytes, not {type(data).__name__}", hint=hint)
