"""What one Publish request may hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import FailedPrecondition, InvalidArgument

MAX_MESSAGES = 1000
MAX_REQUEST_BYTES = 10 * 1024 * 1024
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024

RESERVED_PREFIX = "goog"
CLIENT_PREFIX = "googclient_"
"""Google's own clients write attributes of this prefix (a trace's context, for one), so these keys are not refused."""


def check_publish(messages: Sequence[Any], request_size: int) -> None:
    """All messages of a request, or the first reason why none of them can be taken."""
    count = len(messages)
    if not 1 <= count <= MAX_MESSAGES:
        raise InvalidArgument(f"messages has {count} entries, wanted 1 to {MAX_MESSAGES}")
    if request_size > MAX_REQUEST_BYTES:
        raise InvalidArgument(
            f"the request is {request_size} bytes long, wanted at most {MAX_REQUEST_BYTES}",
            hint="publish in smaller batches, or store large bodies elsewhere and send a reference",
        )
    key = messages[0].ordering_key
    for index, message in enumerate(messages):
        if message.ordering_key != key:
            raise FailedPrecondition(
                f"messages[{index}].ordering_key is {message.ordering_key[:80]!r} and messages[0].ordering_key is {key[:80]!r}, "
                "wanted one ordering key, or none, for all messages of a request",
                hint="publish each ordering key in requests of its own",
            )
        if message.attributes:
            _check_attributes(message.attributes, index)
        elif not message.data:
            raise InvalidArgument(f"messages[{index}] is empty, wanted data or at least one attribute")
    _check_size(key, "messages[0].ordering_key", MAX_ORDERING_KEY_BYTES)


def _check_attributes(attributes: Any, index: int) -> None:
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidArgument(f"messages[{index}].attributes has {len(attributes)} entries, wanted at most {MAX_ATTRIBUTES}")
    for key, value in attributes.items():
        if not key or (key.startswith(RESERVED_PREFIX) and not key.startswith(CLIENT_PREFIX)):
            raise InvalidArgument.of(
                f"a key of messages[{index}].attributes",
                key,
                f"a key that is not empty and does not start with {RESERVED_PREFIX!r}",
            )
        if len(key) > MAX_KEY_BYTES // 4 or len(value) > MAX_VALUE_BYTES // 4:  # no character is longer than 4 bytes
            _check_size(key, f"a key of messages[{index}].attributes", MAX_KEY_BYTES)
            _check_size(value, f"messages[{index}].attributes[{key!r}]", MAX_VALUE_BYTES)


def _check_size(text: str, name: str, limit: int) -> None:
    size = len(text.encode())
    if size > limit:
        raise InvalidArgument(f"{name} is {size} bytes long, wanted at most {limit}: {text[:40]!r}…")
