"""What was said to a server and what it answered, as a file; and the same said again to another server."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compatibility.channels import CHANNELS, Channel, Ports

RECORDED = Path(__file__).with_name("recorded")

# What differs from run to run: UUIDs and what is made of them; ids of messages, epochs and revisions; versions; instants.
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_RANDOM = re.compile(rf"{_UUID}|\d+\.\d+\.\d+")
_CHANGING = re.compile(rf"{_UUID}|[0-9a-f]{{8,}}|\d+\.\d+\.\d+|\d{{4}}-\d\d-\d\dT[\d:.]+Z")
_MEASURED = re.compile(r"timestamp|processingRate|.*(At|Time|_at|_time|_age_seconds|_age_secs|_time_ms)")


@dataclass(frozen=True, slots=True)
class Step:
    """One request and its replies. Steps that name the same connection share it."""

    connection: str
    request: bytes
    replies: tuple[bytes, ...]

    @property
    def protocol(self) -> str:
        """`native` of the connection `native:b`."""
        return self.connection.partition(":")[0]


class Talk:
    """Connections to one server, opened when they are first used. Use it as a context manager."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._channels: dict[str, Channel] = {}

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in reversed(self._channels.values()):
            channel.close()

    def exchange(self, connection: str, request: bytes, replies: int) -> list[bytes]:
        """Send a request on a connection."""
        if connection not in self._channels:
            self._channels[connection] = CHANNELS[connection.partition(":")[0]](self._ports)
        return self._channels[connection].exchange(request, replies)


def values(step: Step) -> list[Any]:
    """The replies of a step as plain values, in an order that does not depend on which was sent first."""
    return in_order(step, step.replies)


def in_order(step: Step, replies: tuple[bytes, ...] | list[bytes]) -> list[Any]:
    """Replies to a step as plain values."""
    return sorted((CHANNELS[step.protocol].read(reply, step.request) for reply in replies), key=_rank)


def _rank(value: Any) -> str:
    return str(value.get("type")) if isinstance(value, dict) else str(value[0])


class Replay:
    """Says the requests of a conversation to a server, with its own ids in place of the recorded ones.

    `is_exact`: nothing but UUIDs and versions may differ, because server and recording look at the same data at the same time.
    """

    def __init__(self, talk: Talk, *, is_exact: bool = False) -> None:
        self._talk = talk
        self._changing = _RANDOM if is_exact else _CHANGING
        self._is_exact = is_exact
        self._own: dict[str, str] = {}
        """The server's id for each recorded one."""

    def differences(self, step: Step) -> list[str]:
        """Say one request, and return where the replies differ from the recorded ones."""
        request = step.request
        for recorded, own in self._own.items():
            request = request.replace(recorded.encode(), own.encode())
        replies = self._talk.exchange(step.connection, request, len(step.replies))
        return list(self._compare(values(step), in_order(step, replies), ""))

    def _compare(self, recorded: Any, found: Any, path: str) -> Iterator[str]:
        if type(recorded) is not type(found):
            yield f"{path}: {found!r}, recorded {recorded!r}"
        elif isinstance(recorded, dict):
            if recorded.keys() != found.keys():
                yield f"{path}: fields {sorted(found)}, recorded {sorted(recorded)}"
            for key in recorded.keys() & found.keys():
                is_measured = not self._is_exact and _MEASURED.fullmatch(str(key)) is not None
                if not (is_measured and type(recorded[key]) is type(found[key])):
                    yield from self._compare(recorded[key], found[key], f"{path}.{key}")
        elif isinstance(recorded, list):
            if len(recorded) != len(found):
                yield f"{path}: {len(found)} items, recorded {len(recorded)}"
            for index, (one, other) in enumerate(zip(recorded, found, strict=False)):
                yield from self._compare(one, other, f"{path}[{index}]")
        elif recorded != found and not (isinstance(recorded, str) and self._differs_by_ids(recorded, found)):
            yield f"{path}: {found!r}, recorded {recorded!r}"

    def _differs_by_ids(self, recorded: str, found: str) -> bool:
        if self._changing.sub("ID", recorded) != self._changing.sub("ID", found):
            return False
        pairs = zip(self._changing.findall(recorded), self._changing.findall(found), strict=True)
        # An id that was seen before stands for the same thing now.
        return all(self._own.setdefault(one, other) == other for one, other in pairs)


def load(name: str) -> list[Step]:
    """A recorded conversation."""
    found = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return [Step(each["on"], _bytes(each["send"]), tuple(map(_bytes, each["replies"]))) for each in found["steps"]]


def dump(steps: list[Step], commit: str) -> str:
    """A conversation as JSON. Bytes that are text are written as text."""
    rows = [{"on": step.connection, "send": _text(step.request), "replies": [*map(_text, step.replies)]} for step in steps]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f'{{"commit": {json.dumps(commit)}, "steps": [\n{lines}\n]}}\n'


def _text(data: bytes) -> str | dict[str, str]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    is_plain = all(each.isprintable() or each in "\r\n" for each in text)
    return text if is_plain else {"base64": base64.b64encode(data).decode()}


def _bytes(text: str | dict[str, str]) -> bytes:
    return text.encode() if isinstance(text, str) else base64.b64decode(text["base64"])
