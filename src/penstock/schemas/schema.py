"""What a schema is, whatever it is written in."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from penstock.errors import InvalidArgument
from penstock.schemas.problem import Problem

MAX_DEFINITION = 300 * 1024  # bytes of UTF-8


class SchemaKind(Enum):
    """The languages a schema may be written in, by the names of Google's service."""

    AVRO = "AVRO"
    PROTOCOL_BUFFER = "PROTOCOL_BUFFER"


class Encoding(Enum):
    """How a message is written."""

    JSON = "JSON"
    BINARY = "BINARY"


class Schema:
    """A compiled definition. It does not change, so threads may share it."""

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
        """Return if the data is one message of this schema; else InvalidArgument says where, what was found and wanted."""
        try:
            if encoding is Encoding.JSON:
                self._json(data)
            else:
                self._binary(data)
        except Problem as problem:
            raise problem.as_invalid_argument() from None
        except RecursionError:  # the caller has used up the stack that our own limits of nesting count on
            raise InvalidArgument("message does not match its schema: it is nested too deeply") from None
