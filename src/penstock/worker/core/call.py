"""The format of a task call: JSON that any language can write.

    {"v": 1, "task": "send_email", "args": [], "kwargs": {"to": "a@b.c"}}

Only `v` and `task` must be there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.errors import InvalidArgument

VERSION = 1
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 64) - 1
"""The integers that MessagePack can represent, which messages are sent in."""
_AS_THEY_ARE = (bool, type(None))


class Call(msgspec.Struct, frozen=True):
    """The task to run, and its arguments."""

    v: int
    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


_decode = msgspec.json.Decoder(Call).decode


def payload_of(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The payload of a call. Tuples become lists; InvalidArgument names an argument that is not JSON."""
    try:
        return {
            "v": VERSION,
            "task": task,
            "args": [_plain(value, f"argument {index + 1}") for index, value in enumerate(args)],
            "kwargs": {name: _plain(value, f"argument {name!r}") for name, value in kwargs.items()},
        }
    except RecursionError:
        raise InvalidArgument(f"the arguments of task {task!r} are nested too deeply, or contain themselves") from None


def call_in(data: bytes) -> Call:
    """The call in a message; InvalidArgument with the reason if it is not a call."""
    try:
        call = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(
            f"the message is not a task call: {error}", hint='{"v": 1, "task": NAME, "args": […], "kwargs": {…}}'
        ) from None
    if call.v != VERSION:
        raise InvalidArgument(
            f"the message is a task call of version {call.v}, this worker reads version {VERSION}", hint="update the worker"
        )
    return call


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, _AS_THEY_ARE):
        return value
    if isinstance(value, int):
        if not _MIN_INTEGER <= value <= _MAX_INTEGER:
            raise _refused(value, path, "send it as text: str(value)")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _refused(value, path, "JSON has neither infinity nor NaN; send None")
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, dict):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise _refused(wrong[0], f"a key of {path}", "the keys of a JSON object are strings")
        return {_text(key, f"a key of {path}"): _plain(item, f"{path}[{key!r}]") for key, item in value.items()}
    raise _refused(value, path, "send what the task needs to find it: an id, a path, value.isoformat(), …")


def _text(value: str, path: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _refused(value, path, "text without lone surrogates, which UTF-8 cannot encode") from None
    return value if type(value) is str else str.__str__(value)


def _refused(value: Any, path: str, hint: str) -> InvalidArgument:
    return InvalidArgument.of(path, value, "a JSON value (None, bool, int, float, str, list, dict with str keys)", hint=hint)
