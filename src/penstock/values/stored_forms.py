"""Schemas and transforms as they are stored, beside the broker's own settings.

Topics, subscriptions and schemas are stored in the form that Google's API defines for them, in the wire format of protobuf. The
broker needs a few of their fields and reads those itself: a program without schemas and transforms needs no protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from penstock.durations import SECOND
from penstock.errors import InvalidArgument
from penstock.values.subscription import SubscriptionSpec

IAM_PREFIX = "iam:"
"""The prefix that makes a resource's name the name of the document with its access policy."""
SCHEMA_PREFIX = "schema:"
"""The prefix that makes a schema's name the name of the document with its revisions."""
DELETED_SCHEMA = "_deleted-schema_"
"""The schema that a topic shows after its schema was deleted."""
ENCODINGS = {1: "JSON", 2: "BINARY"}
KINDS = {1: "PROTOCOL_BUFFER", 2: "AVRO"}

_ACTIVE = 1
"""The state of a topic in working order."""
_VARINT, _DELIMITED, _GROUP = 0, 2, 3
_SIZES = {1: 8, 5: 4}


class Script(msgspec.Struct, frozen=True):
    """A JavaScript function that messages pass through."""

    code: str
    function_name: str
    disabled: bool = False


class SchemaUse(msgspec.Struct, frozen=True):
    """The schema of a topic, the encoding of its messages, and the accepted revisions; an empty id leaves that end open."""

    schema: str
    encoding: str
    first_revision: str = ""
    last_revision: str = ""


class TopicForm(msgspec.Struct, frozen=True):
    """The checks and transforms of messages that are published to a topic."""

    schema: SchemaUse | None = None
    scripts: tuple[Script, ...] = ()

    @property
    def has_rules(self) -> bool:
        """Whether there is a schema or a transform."""
        return self.schema is not None or bool(self.scripts)


class SubscriptionForm(msgspec.Struct, frozen=True):
    """The delivery settings of a subscription."""

    push_endpoint: str = ""
    """The push endpoint; empty: consumers pull."""
    scripts: tuple[Script, ...] = ()
    """The transforms that are enabled."""


class SchemaRevision(msgspec.Struct, frozen=True):
    """One revision of a schema."""

    name: str
    kind: str
    """AVRO or PROTOCOL_BUFFER."""
    definition: str
    revision_id: str
    created_at: int = 0


@lru_cache(maxsize=4096)
def topic_form(spec: bytes) -> TopicForm:
    """Decode a stored topic."""
    topic = _Form(spec)
    uses = [SchemaUse(use.text(1), ENCODINGS.get(use.number(2), ""), use.text(3), use.text(4)) for use in topic.forms(6)]
    return TopicForm(uses[-1] if uses else None, _scripts(topic.forms(13)))


@lru_cache(maxsize=4096)
def subscription_form(spec: bytes) -> SubscriptionForm:
    """Decode the stored settings of a subscription."""
    subscription = _Form(msgspec.msgpack.decode(spec, type=SubscriptionSpec).form)
    endpoint = next((found for config in subscription.forms(4) if (found := config.text(1))), "")
    return SubscriptionForm(endpoint, tuple(one for one in _scripts(subscription.forms(25)) if not one.disabled))


@lru_cache(maxsize=256)
def schema_revisions(body: bytes) -> tuple[SchemaRevision, ...]:
    """The revisions of a stored schema, in the order of their commits."""
    return tuple(
        SchemaRevision(one.text(1), KINDS[one.number(2)], one.text(3), one.text(4), sum(map(_micros, one.forms(6))))
        for one in _Form(body).forms(1)
    )


def stored_revisions(revisions: Iterable[SchemaRevision]) -> bytes:
    """Encode the revisions of a schema; the inverse of `schema_revisions`."""
    numbers = {kind: number for number, kind in KINDS.items()}
    return b"".join(
        _message(
            1,
            _string(1, one.name)
            + _number(2, numbers[one.kind])
            + _string(3, one.definition)
            + _string(4, one.revision_id)
            + _message(6, _span(one.created_at)),
        )
        for one in revisions
    )


def stored_topic(name: str, use: SchemaUse, retention: int | None) -> bytes:
    """Encode a topic with a schema; `retention` is in microseconds."""
    encodings = {encoding: number for number, encoding in ENCODINGS.items()}
    schema = _message(6, _string(1, use.schema) + _number(2, encodings[use.encoding]))
    period = b"" if retention is None else _message(8, _span(retention))
    return _string(1, name) + schema + period + _number(9, _ACTIVE)


def accepted_revisions(revisions: Sequence[SchemaRevision], use: SchemaUse) -> list[SchemaRevision]:
    """The revisions that a topic accepts, newest first; `revisions` are in the order of their commits."""
    ids = [one.revision_id for one in revisions]
    for field, wanted in (("first_revision_id", use.first_revision), ("last_revision_id", use.last_revision)):
        if wanted and wanted not in ids:
            raise InvalidArgument.of(f"schema_settings.{field}", wanted, "a revision that the schema has")
    start = ids.index(use.first_revision) if use.first_revision else 0
    end = ids.index(use.last_revision) + 1 if use.last_revision else len(ids)
    if start >= end:
        wanted = f"a revision no newer than last_revision_id ({use.last_revision})"
        raise InvalidArgument.of("schema_settings.first_revision_id", use.first_revision, wanted)
    return list(reversed(revisions[start:end]))


def scripts_of(transforms: Iterable[bytes]) -> tuple[Script, ...]:
    """The JavaScript among transforms."""
    return _scripts([_Form(body) for body in transforms])


def _scripts(transforms: list[_Form]) -> tuple[Script, ...]:
    """The JavaScript among transforms; other kinds are stored and shown, without effect."""
    return tuple(
        Script(function.text(2), function.text(1), bool(transform.number(4)))
        for transform in transforms
        for function in transform.forms(2)
    )


class _Form:
    """The fields of one message in the wire format of protobuf."""

    def __init__(self, body: bytes) -> None:
        self._numbers: dict[int, int] = {}
        self._bytes: dict[int, list[bytes]] = {}
        at = groups = 0
        while at < len(body):
            tag, at = _varint(body, at)
            field, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                number, at = _varint(body, at)
                if not groups:
                    self._numbers[field] = number
            elif kind == _DELIMITED:
                size, at = _varint(body, at)
                if not groups:
                    self._bytes.setdefault(field, []).append(body[at : at + size])
                at += size
            elif kind in _SIZES:
                at += _SIZES[kind]
            else:
                # A group: no field that is read here is one, so the field is unknown.
                groups += 1 if kind == _GROUP else -1

    def number(self, field: int) -> int:
        return self._numbers.get(field, 0)

    def text(self, field: int) -> str:
        found = self._bytes.get(field)
        return found[-1].decode() if found else ""

    def forms(self, field: int) -> list[_Form]:
        return [_Form(body) for body in self._bytes.get(field, ())]


def _micros(stamp: _Form) -> int:
    """A Timestamp."""
    return stamp.number(1) * SECOND + stamp.number(2) // 1_000


def _span(micros: int) -> bytes:
    """A Timestamp or a Duration."""
    return _number(1, micros // SECOND) + _number(2, micros % SECOND * 1_000)


def _number(field: int, value: int) -> bytes:
    return _packed(field << 3 | _VARINT) + _packed(value) if value else b""


def _string(field: int, text: str) -> bytes:
    return _message(field, text.encode()) if text else b""


def _message(field: int, body: bytes) -> bytes:
    return _packed(field << 3 | _DELIMITED) + _packed(len(body)) + body


def _packed(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while body[at] >= 0x80:
        value |= (body[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | body[at] << shift, at + 1
