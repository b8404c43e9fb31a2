"""What a route is, in words and schemas: the values from which its OpenAPI description is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Schema = Any
"""A Python type that msgspec can describe (a Struct, `int`, `list[str]` …) or a JSON Schema as a dict."""

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value in the path, the query or a header. Path parameters that are not described are strings."""

    name: str
    description: str
    schema: Schema = str
    where: Literal["path", "query", "header"] = "query"
    required: bool = False
    example: Any = None


@dataclass(frozen=True, slots=True)
class Body:
    """What the client sends."""

    schema: Schema
    description: str = ""
    content_type: str = JSON
    required: bool = True
    example: Any = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server answers with one status. Without a schema there is no body."""

    description: str
    schema: Schema | None = None
    content_type: str = JSON
    example: Any = None


@dataclass(frozen=True, slots=True)
class Operation:
    """The description of a route. Errors are described by the route's error body and need no reply here."""

    summary: str
    description: str = ""
    tags: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    replies: Mapping[int, Reply] = field(default_factory=lambda: {200: Reply("Done.")})
    is_websocket: bool = False
    """A GET that upgrades to a WebSocket: 101 is its answer, and `description` says what the frames are."""
