"""Update masks: which fields of a stored message a patch replaces.

Paths are written as in the API's own definition (`ack_deadline_seconds`); a path may go into a message (`retry_policy.
minimum_backoff`), not into a map or a list, which are replaced as a whole. A field that the mask names and the patch does not
set is cleared. All paths are checked before anything changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from penstock.errors import InvalidArgument

Message = Any
"""A raw protobuf message: its classes are made at run time, so it has no static type."""


def updated(old: Message, patch: Message, paths: Iterable[str], mutable: Collection[str]) -> Message:
    """A copy of `old` with the masked fields of `patch`. Only the `mutable` fields may be named."""
    split = [path.split(".") for path in paths]
    if not split:
        raise InvalidArgument("update_mask is empty, wanted at least one path", hint=f"it may name {', '.join(sorted(mutable))}")
    for parts in split:
        _check(old.DESCRIPTOR, parts, mutable)
    new = type(old)()
    new.CopyFrom(old)
    for parts in split:
        _replace(new, patch, parts)
    return new


def _check(descriptor: Any, parts: list[str], mutable: Collection[str]) -> None:
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
            getattr(target, name).CopyFrom(getattr(source, name))  # an empty message is there too, and says something
