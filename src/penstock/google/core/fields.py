"""The common fields of topics, subscriptions and snapshots, and their checks.

Durations and times are whole microseconds here. Also update masks, labels, transforms, and limits on the size of a resource.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from google.protobuf import json_format

from penstock.errors import InvalidArgument
from penstock.google import messages

SECONDS = 1_000_000
MINUTES = 60 * SECONDS
HOURS = 60 * MINUTES
DAYS = 24 * HOURS

MIN_RETENTION = 10 * MINUTES
MAX_RETENTION = 31 * DAYS

LONGEST = 315_576_000_000 * SECONDS  # ten thousand years, the maximum of a Duration
_LATEST_SECOND = 253_402_300_799  # the end of the year 9999, the maximum of the API's times
_NANOS = 1_000_000_000

Message = Any
"""A raw protobuf message: its classes are made at run time, so it has no static type."""

MAX_LABELS = 64
MAX_LABEL_CHARACTERS = 63
MAX_LABEL_BYTES = 128

MAX_TRANSFORMS = 5
MAX_CODE_BYTES = 20 * 1024

_FUNCTION_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*", re.ASCII)

MAX_RESOURCE_BYTES = 256 * 1024
"""Five transforms of 20 KiB are the largest useful part of a resource."""
MAX_POLICY_BYTES = 64 * 1024


def period(value: Any, name: str, *, minimum: int, maximum: int = LONGEST) -> int:
    """The microseconds of a Duration within bounds, both inclusive."""
    nanos = value.seconds * _NANOS + value.nanos
    mixed = value.nanos * value.seconds < 0 or abs(value.nanos) >= _NANOS
    if mixed or not minimum * 1000 <= nanos <= maximum * 1000:
        bounds = f"{spoken(minimum)} or more" if maximum == LONGEST else f"from {spoken(minimum)} to {spoken(maximum)}"
        raise InvalidArgument.of(name, f"{nanos / _NANOS:.15g}s", bounds)
    return int(nanos // 1000)


def instant(value: Any, name: str) -> int:
    """The microseconds since 1970 of a Timestamp."""
    if not 0 <= value.nanos < _NANOS or not -62_135_596_800 <= value.seconds <= _LATEST_SECOND:
        raise InvalidArgument.of(name, f"{value.seconds}s {value.nanos}ns", "a time in the years 1 to 9999")
    return int(value.seconds * SECONDS + value.nanos // 1000)


def timestamp(micros: int) -> Any:
    """Return the Timestamp of `micros` microseconds since 1970."""
    made = messages.Timestamp()
    made.FromMicroseconds(micros)
    return made


def spoken(micros: int) -> str:
    """A duration in its largest whole unit."""
    for unit, size in (("days", DAYS), ("hours", HOURS), ("minutes", MINUTES)):
        if micros >= size and micros % size == 0:
            return f"{micros // size} {unit}"
    return f"{micros / SECONDS:g} seconds"


def updated(old: Message, patch: Message, paths: Iterable[str], mutable: Collection[str]) -> Message:
    """Return a copy of `old` with the masked fields of `patch`. Only the `mutable` fields may be named.

    Paths are written as in the API's own definition (`ack_deadline_seconds`). A path may lead into a message
    (`retry_policy.minimum_backoff`), but not into a map or a list, which are replaced as a whole. A field that the mask names and
    the patch does not set is cleared. All paths are checked before anything changes.
    """
    split = [path.split(".") for path in paths]
    if not split:
        raise InvalidArgument(
            "update_mask is empty, expected at least one path", hint=f"it may name {', '.join(sorted(mutable))}"
        )
    for parts in split:
        _check_path(old.DESCRIPTOR, parts, mutable)
    new = type(old)()
    new.CopyFrom(old)
    for parts in split:
        _replace(new, patch, parts)
    return new


def _check_path(descriptor: Any, parts: list[str], mutable: Collection[str]) -> None:
    path = ".".join(parts)
    allowed = f"it may name {', '.join(sorted(mutable))}"
    owner = descriptor
    for index, part in enumerate(parts):
        field = owner.fields_by_name.get(part) if owner is not None else None
        if field is None:
            raise InvalidArgument.of("a path of update_mask", path, f"a field of {descriptor.name}, in snake_case", hint=allowed)
        if index == 0 and part not in mutable:
            raise InvalidArgument.of(
                "a path of update_mask", path, f"a field of {descriptor.name} that can be changed", hint=allowed
            )
        owner = None if field.is_repeated else field.message_type


def _replace(target: Message, source: Message, parts: list[str]) -> None:
    name, *rest = parts
    if rest:
        _replace(getattr(target, name), getattr(source, name), rest)
        return
    field = target.DESCRIPTOR.fields_by_name[name]
    target.ClearField(name)
    if field.is_repeated:
        getattr(target, name).MergeFrom(getattr(source, name))
    elif not field.has_presence:
        setattr(target, name, getattr(source, name))
    elif source.HasField(name):
        if field.message_type is None:
            setattr(target, name, getattr(source, name))
        else:
            getattr(target, name).CopyFrom(getattr(source, name))  # an empty message is present too, and has a meaning


def check_labels(labels: Mapping[str, str], field: str = "labels") -> None:
    """At most 64 labels of lower-case letters of any script, digits, - and _; keys start with a letter."""
    if len(labels) > MAX_LABELS:
        raise InvalidArgument(f"{field} has {len(labels)} entries, expected at most {MAX_LABELS}")
    for key, value in labels.items():
        if not key or not _is_letter(key[0]) or not _is_short_and_plain(key):
            raise InvalidArgument.of(
                f"a key of {field}", key, f"1 to {MAX_LABEL_CHARACTERS} lower-case letters, digits, - and _, and a letter first"
            )
        if not _is_short_and_plain(value):
            raise InvalidArgument.of(
                f"{field}[{key!r}]", value, f"at most {MAX_LABEL_CHARACTERS} lower-case letters, digits, - and _"
            )


def _is_short_and_plain(text: str) -> bool:
    return (
        len(text) <= MAX_LABEL_CHARACTERS
        and len(text.encode()) <= MAX_LABEL_BYTES
        and all(character in "-_" or _is_letter(character) or unicodedata.category(character)[0] in "NM" for character in text)
    )


def _is_letter(character: str) -> bool:
    return character.isalpha() and not character.isupper() and not character.istitle()


def check_transforms(transforms: Sequence[Any], field: str = "message_transforms") -> None:
    """Each transform is of exactly one kind, with all that this kind needs; functions have different names."""
    if len(transforms) > MAX_TRANSFORMS:
        raise InvalidArgument(f"{field} has {len(transforms)} entries, expected at most {MAX_TRANSFORMS}")
    functions: set[str] = set()
    for index, transform in enumerate(transforms):
        where = f"{field}[{index}]"
        match transform.WhichOneof("transform"):
            case "javascript_udf":
                _check_function(transform.javascript_udf, where)
                if transform.javascript_udf.function_name in functions:
                    name = transform.javascript_udf.function_name
                    raise InvalidArgument.of(
                        f"{where}.javascript_udf.function_name", name, "a name that no other function here has"
                    )
                functions.add(transform.javascript_udf.function_name)
            case "compression":
                _check_compression(transform.compression, where)
            case "ai_inference":
                if not transform.ai_inference.endpoint:
                    raise InvalidArgument(f"{where}.ai_inference.endpoint is missing, expected the name of an endpoint")
            case _:
                raise InvalidArgument(f"{where} is empty, expected javascript_udf, compression or ai_inference")


def _check_function(function: Any, where: str) -> None:
    if not _FUNCTION_NAME.fullmatch(function.function_name):
        raise InvalidArgument.of(
            f"{where}.javascript_udf.function_name", function.function_name, "the name of a JavaScript function"
        )
    size = len(function.code.encode())
    if not 0 < size <= MAX_CODE_BYTES:
        raise InvalidArgument(f"{where}.javascript_udf.code is {size} bytes long, expected 1 to {MAX_CODE_BYTES}")
    if not re.search(rf"\b{re.escape(function.function_name)}(?![\w$])", function.code):
        raise InvalidArgument.of(
            f"{where}.javascript_udf.code", function.code, f"code that defines the function {function.function_name}"
        )


def _check_compression(compression: Any, where: str) -> None:
    for name in ("compression_algorithm", "compression_mode"):
        field = compression.DESCRIPTOR.fields_by_name[name]
        known = [value.name for value in field.enum_type.values if value.number]
        if field.enum_type.values_by_number.get(getattr(compression, name)) is None or not getattr(compression, name):
            raise InvalidArgument.of(f"{where}.compression.{name}", getattr(compression, name), " or ".join(known))


def check_showable(resource: Any) -> None:
    """Refuse values that JSON cannot represent, such as times out of range and NaN: REST could not show the resource later."""
    try:
        json_format.MessageToDict(resource)
    except (json_format.Error, ValueError) as error:
        raise InvalidArgument(f"the {resource.DESCRIPTOR.name} has a value that JSON cannot represent: {error}") from None


def check_topic_size(topic: Any) -> None:
    """Refuse a topic that is too large to keep in memory."""
    _check_size(topic, "topic", MAX_RESOURCE_BYTES)


def check_subscription_size(subscription: Any) -> None:
    """Refuse a subscription that is too large to keep in memory."""
    _check_size(subscription, "subscription", MAX_RESOURCE_BYTES)


def check_policy_size(policy: Any) -> None:
    """Refuse an access policy that is too large to keep in memory."""
    _check_size(policy, "policy", MAX_POLICY_BYTES)


def _check_size(resource: Any, kind: str, limit: int) -> None:
    size = resource.ByteSize()
    if size > limit:
        raise InvalidArgument(f"the {kind} is {size} bytes long, expected at most {limit}")
