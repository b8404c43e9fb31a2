"""A compiled schema in any language, and the error that its checks raise."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from penstock.errors import InvalidArgument

SHOWN = 60  # characters of a value in an error

MAX_DEFINITION = 300 * 1024  # bytes of UTF-8


class SchemaMismatch(Exception):
    """A part of a message that does not match the schema. Each container adds its step to the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self._steps: list[str] = []

    def inside(self, step: str | int) -> SchemaMismatch:
        """The same problem, seen from the container: `step` is a field's name, a map's key or an item's index."""
        self._steps.append(f"[{step}]" if isinstance(step, int) else f".{step[:SHOWN]}")
        return self

    def location(self) -> str:
        """The path as the start of a sentence; empty for the message itself."""
        path = "".join(reversed(self._steps)).removeprefix(".")
        if len(path) > 4 * SHOWN:
            path = f"{path[: 2 * SHOWN]}...{path[-2 * SHOWN :]}"
        return f"at {path}: " if path else ""

    def as_invalid_argument(self) -> InvalidArgument:
        return InvalidArgument(f"message does not match its schema: {self.location()}{self.reason}")


def found(value: object) -> str:
    """A short description of a decoded JSON value, however large it is."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the string {shortened(value)}"
        case list():
            return f"an array of {len(value)}"
        case dict():
            return f"an object of {len(value)}"
    text = str(value)
    return f"the number {text}" if len(text) <= SHOWN else f"a number of {len(text)} digits"


def shortened(text: str) -> str:
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}..."


class SchemaKind(Enum):
    """The languages of schemas, by the names of Google's service."""

    AVRO = "AVRO"
    PROTOCOL_BUFFER = "PROTOCOL_BUFFER"


class Encoding(Enum):
    """The encoding of messages."""

    JSON = "JSON"
    BINARY = "BINARY"


class Schema:
    """A compiled definition. It is immutable, so threads may share it."""

    __slots__ = ("_binary", "_json", "definition", "kind", "types")

    def __init__(
        self, kind: SchemaKind, definition: str, types: object, *, json: Callable[[bytes], None], binary: Callable[[bytes], None]
    ) -> None:
        self.kind = kind
        self.definition = definition
        self.types = types
        self._json = json
        self._binary = binary

    def validate(self, data: bytes, encoding: Encoding) -> None:
        """Return if the data is one message of this schema.

        Otherwise InvalidArgument names the place, the found value and the expected one.
        """
        try:
            if encoding is Encoding.JSON:
                self._json(data)
            else:
                self._binary(data)
        except SchemaMismatch as problem:
            raise problem.as_invalid_argument() from None
        except RecursionError:  # the caller has used up the stack that our own limits of nesting rely on
            raise InvalidArgument("message does not match its schema: it is nested too deeply") from None
