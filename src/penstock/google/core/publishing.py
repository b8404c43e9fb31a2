"""What one Publish request may hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.values.message import DEFAULT_PRIORITY, Batch, StoredMessage

MAX_MESSAGES = 1000
MAX_REQUEST_BYTES = 10 * 1024 * 1024
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024

RESERVED_PREFIX = "goog"
CLIENT_PREFIX = "googclient_"
"""Google's own clients write attributes of this prefix (a trace's context, for one), so these keys are not refused."""


def accepted(given: Sequence[Any], request_size: int, now: int) -> Batch:
    """What the log keeps of the messages of a request, or the first reason why none of them can be taken."""
    count = len(given)
    if not 1 <= count <= MAX_MESSAGES:
        raise InvalidArgument(f"messages has {count} entries, wanted 1 to {MAX_MESSAGES}")
    if request_size > MAX_REQUEST_BYTES:
        raise InvalidArgument(
            f"the request is {request_size} bytes long, wanted at most {MAX_REQUEST_BYTES}",
            hint="publish in smaller batches, or store large bodies elsewhere and send a reference",
        )
    key: str | None = None
    length = total = 0
    made: list[StoredMessage] = []
    # Every look at a field of a protobuf message makes an object, so each field is looked at once.
    for index, message in enumerate(given):
        own, data, attributes = message.ordering_key, message.data, message.attributes
        if own != key:
            if key is not None:
                raise _mixed(index, own, key)
            key, length = own, _length(own)
            if length > MAX_ORDERING_KEY_BYTES:
                raise _too_long(own, "messages[0].ordering_key", length, MAX_ORDERING_KEY_BYTES)
        size = len(data) + length
        kept = None
        if attributes:
            kept = dict(attributes)
            size += _check_attributes(kept, index)
        elif not data:
            raise InvalidArgument(f"messages[{index}] is empty, wanted data or at least one attribute")
        total += size
        made.append(StoredMessage(now, data, kept, own, DEFAULT_PRIORITY, size))
    return Batch(made, total, DEFAULT_PRIORITY, bool(key))


def _mixed(index: int, own: str, key: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"messages[{index}].ordering_key is {own[:80]!r} and messages[0].ordering_key is {key[:80]!r}, "
        "wanted one ordering key, or none, for all messages of a request",
        hint="publish each ordering key in requests of its own",
    )


def _check_attributes(attributes: dict[str, str], index: int) -> int:
    """How many bytes the attributes have."""
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidArgument(f"messages[{index}].attributes has {len(attributes)} entries, wanted at most {MAX_ATTRIBUTES}")
    size = 0
    for key, value in attributes.items():
        if not key or (key.startswith(RESERVED_PREFIX) and not key.startswith(CLIENT_PREFIX)):
            raise InvalidArgument.of(
                f"a key of messages[{index}].attributes",
                key,
                f"a key that is not empty and does not start with {RESERVED_PREFIX!r}",
            )
        of_key, of_value = _length(key), _length(value)
        if of_key > MAX_KEY_BYTES:
            raise _too_long(key, f"a key of messages[{index}].attributes", of_key, MAX_KEY_BYTES)
        if of_value > MAX_VALUE_BYTES:
            raise _too_long(value, f"messages[{index}].attributes[{key!r}]", of_value, MAX_VALUE_BYTES)
        size += of_key + of_value
    return size


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _too_long(text: str, name: str, size: int, limit: int) -> InvalidArgument:
    return InvalidArgument(f"{name} is {size} bytes long, wanted at most {limit}: {text[:40]!r}…")
