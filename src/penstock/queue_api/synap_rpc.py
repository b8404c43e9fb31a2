"""The queue API over SynapRPC: frames of MessagePack, for the commands of `native`.

    frame     u32 length, little-endian, and a body of that length
    request   [id, "COMMAND", [value, …]], or a map of id, command and args
    answer    [id, {"Ok": value}] or [id, {"Err": text}]
    value     "Null", {"Bool": …}, {"Int": …}, {"Float": …}, {"Str": …}, {"Bytes": …}, {"Array": […]}, {"Map": [[key, value], …]}

Calls of one connection run concurrently and are answered as they end. No command takes an Array or a Map, so a request is two
levels deep and its decoder, which is typed, stops at the first thing that is not.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.api.queues import Queues
from penstock.durations import SECOND
from penstock.http.authentication import Gate
from penstock.queue_api.binary_commands import MAX_ARGUMENTS, Args, Ok, Value
from penstock.queue_api.socket_server import Call, FramingError, Inbox, Refused, SocketLimits, SocketServer
from penstock.values.queue import Delivery

HEADER = 4
MAX_LEGACY_BYTES = 1_000_000
"""Bytes as a list of numbers, which old clients send, take eight times their size."""
MAX_PROBLEM = 200
"""Characters of a problem in an error: it may quote the request."""
_PUSH_ID = 0xFFFF_FFFF


class _Tagged(
    msgspec.Struct,
    forbid_unknown_fields=True,
    rename={"flag": "Bool", "whole": "Int", "real": "Float", "text": "Str", "data": "Bytes"},
):
    """A value that a command takes: exactly one of these."""

    flag: bool | UnsetType = UNSET
    whole: int | UnsetType = UNSET
    real: float | UnsetType = UNSET
    text: str | UnsetType = UNSET
    data: bytes | Annotated[list[int], Meta(max_length=MAX_LEGACY_BYTES)] | UnsetType = UNSET


_Args = Annotated[list[_Tagged | Literal["Null"]], Meta(max_length=MAX_ARGUMENTS)]


class _MapRequest(msgspec.Struct):
    """The form that old clients send."""

    id: int
    command: str
    args: _Args


class _ArrayRequest(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The form that clients send."""

    id: int
    command: str
    args: _Args


class _Head(msgspec.Struct, array_like=True):
    """The readable part of a malformed request."""

    id: int = 0


_decode_array = msgspec.msgpack.Decoder(_ArrayRequest).decode
_decode_map = msgspec.msgpack.Decoder(_MapRequest).decode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_encode = msgspec.msgpack.Encoder().encode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


class SynapRpcServer(SocketServer):
    """Serves SynapRPC on one port."""

    def __init__(self, queues: Queues, *, gate: Gate | None = None, limits: SocketLimits | None = None) -> None:
        super().__init__(queues, RpcCodec, gate=gate, limits=limits)


class RpcCodec(Inbox):
    """SynapRPC without its sockets."""

    name = "SynapRPC"
    is_ordered = False

    def _next(self) -> Call | Refused | None:
        if self.waiting() < HEADER:
            return None
        start = self._at + HEADER
        length = int.from_bytes(self._buffer[self._at : start], "little")
        if length > self.limit:
            raise FramingError(f"a frame of {length} bytes is more than {self.limit}")
        if self.waiting() < HEADER + length:
            return None
        body = bytes(self._buffer[start : start + length])
        self._at = start + length
        return _read(body)

    def answer(self, call_id: int, value: object) -> bytes:
        return _frame([call_id, {"Ok": _tagged(value)}])

    def refusal(self, call_id: int, text: str) -> bytes:
        return _frame([call_id, {"Err": text.encode(errors="replace").decode()}])

    def greet(self, args: Args) -> object:
        return {"server": "penstock", "proto": 1}


def _read(body: bytes) -> Call | Refused:
    try:
        is_map = body[:1] == b"\xde" or 0x80 <= (body[0] if body else 0) <= 0x8F
        request = _decode_map(body) if is_map else _decode_array(body)
    except _UNREADABLE as error:
        return Refused(_id_of(body), f"the request cannot be read: {str(error)[:MAX_PROBLEM]}")
    if not 0 <= request.id < _PUSH_ID:
        return Refused(0, "the id of a request is a number from 0 to 2^32 - 2")
    try:
        args = [_untagged(value) for value in request.args]
    except ValueError as error:
        return Refused(request.id, f"an argument cannot be read: {error}")
    return Call(request.id, request.command[:100].upper(), args, len(body))


def _id_of(body: bytes) -> int:
    try:
        found = _decode_head(body).id
    except _UNREADABLE:
        return 0
    return found if 0 <= found < _PUSH_ID else 0


def _untagged(value: _Tagged | str) -> Value:
    """A value without its tag; ValueError for anything else."""
    if isinstance(value, str):
        return None
    found = [inner for inner in (value.flag, value.whole, value.real, value.text, value.data) if inner is not UNSET]
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} tags, expected one")
    return bytes(found[0]) if isinstance(found[0], list) else found[0]


def _tagged(value: object) -> object:  # noqa: PLR0911  # one for each kind of value
    match value:
        case None:
            return "Null"
        case Ok():
            return {"Str": "OK"}
        case bool():
            return {"Bool": value}
        case int() if -(1 << 63) <= value < 1 << 63:
            return {"Int": value}
        case int():
            return {"Str": str(value)}
        case float():
            return {"Float": value}
        case str():
            return {"Str": value}
        case bytes():
            return {"Bytes": value}
        case Delivery():
            return _tagged(
                {
                    "id": value.message_id,
                    "payload": value.data,
                    "priority": value.priority,
                    "retry_count": value.retry_count,
                    "max_retries": value.max_retries,
                    "timestamp": value.published_at // SECOND,
                    "headers": value.headers or {},
                }
            )
        case dict():
            return {"Map": [[_tagged(key), _tagged(item)] for key, item in value.items()]}
        case list():
            return {"Array": [_tagged(item) for item in value]}
    raise TypeError(type(value).__name__)


def _frame(body: object) -> bytes:
    data = _encode(body)
    return len(data).to_bytes(HEADER, "little") + data
