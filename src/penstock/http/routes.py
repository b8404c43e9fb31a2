"""The table of routes: it finds the route of a request, and the documentation is generated from it.

An `Operation` describes a route in words and schemas; the OpenAPI document consists of these descriptions.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from aiohttp import web

from penstock.access import Verb
from penstock.errors import InvalidArgument
from penstock.http.refusal import GOOGLE_ERRORS, ErrorBody, Refusal
from penstock.http.request import Request

Schema = Any
"""A Python type that msgspec can describe (a Struct, `int`, `list[str]` …) or a JSON Schema as a dict."""

JSON = "application/json"

Handler = Callable[[Request], Awaitable[web.StreamResponse]]

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


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
    """The body of a request."""

    schema: Schema
    description: str = ""
    content_type: str = JSON
    required: bool = True
    example: Any = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer with one status. Without a schema there is no body."""

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
    """A GET that upgrades to a WebSocket: it is answered with 101, and `description` describes the frames."""


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One operation. `path` may have `{parameters}`, each within one segment: `/queues/{name}`, `/topics/{topic}:publish`.

    Unless `is_open`, the caller is authenticated, and needs the permission `verb` if it is set; the API itself checks the names
    in a call. `is_page` marks what a browser shows: pages of other sites may link to it. `max_bytes` is a limit of its own for
    the body. `origins` are web origins whose pages may call this route, beside those that may call every route.
    """

    method: str
    path: str
    handler: Handler
    operation: Operation
    errors: ErrorBody = GOOGLE_ERRORS
    is_open: bool = False
    is_page: bool = False
    verb: Verb | None = None
    max_bytes: int | None = None
    origins: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.method not in METHODS or self.method in {"HEAD", "OPTIONS"}:
            raise InvalidArgument.of(
                "method", self.method, "GET, POST, PUT, PATCH or DELETE", hint="HEAD and OPTIONS are answered for it"
            )
        if not self.path.startswith("/") or "?" in self.path:
            raise InvalidArgument.of("path", self.path, "a path that begins with / and has no query")

    @property
    def parameters(self) -> list[str]:
        return _PARAMETER.findall(self.path)


class _Resource:
    """A path, with one route for each method."""

    __slots__ = ("allow", "by_method", "names", "pattern")

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        self.pattern = pattern
        self.by_method: dict[str, Route] = {}
        self.names: dict[str, list[str]] = {}
        self.allow: tuple[str, ...] = ()

    def add(self, route: Route) -> None:
        if route.method in self.by_method:
            raise InvalidArgument(f"{route.method} {route.path} is served twice")
        for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
            self.by_method[method] = route
            self.names[method] = route.parameters
        self.allow = (*(method for method in METHODS if method in self.by_method), "OPTIONS")


class RouteTable:
    """Routes by path and method. A plain path is one dictionary lookup; of several patterns the most literal one wins."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._plain: dict[str, _Resource] = {}
        self._patterns: dict[str, list[_Resource]] = {}
        self._anywhere: list[_Resource] = []
        """Patterns whose first segment is or contains a parameter."""
        by_shape: dict[str, _Resource] = {}
        for route in self.routes:
            shape = _PARAMETER.sub("{}", route.path)
            resource = by_shape.get(shape)
            if resource is None:
                resource = by_shape[shape] = _Resource(_pattern(route.path) if route.parameters else None)
                if resource.pattern is None:
                    self._plain[route.path] = resource
            resource.add(route)
        for shape in sorted(by_shape, key=lambda shape: len(shape.replace("{}", "")), reverse=True):
            resource = by_shape[shape]
            if resource.pattern is not None:
                segment = _first_segment(shape)
                (self._anywhere if "{}" in segment else self._patterns.setdefault(segment, [])).append(resource)

    def __iter__(self) -> Iterator[Route]:
        return iter(self.routes)

    def find(self, method: str, target: str) -> tuple[Route | None, dict[str, str], tuple[str, ...]]:
        """(route, path parameters, allowed methods) of a request's target. Without allowed methods the path does not exist."""
        resource = self._plain.get(target)
        if resource is not None:
            return resource.by_method.get(method), {}, resource.allow
        path = path_of(target)
        resource = self._plain.get(path)
        if resource is not None:
            return resource.by_method.get(method), {}, resource.allow
        allowed: dict[str, None] = {}
        for resource in chain(self._patterns.get(_first_segment(path), ()), self._anywhere):
            match = resource.pattern.fullmatch(path) if resource.pattern is not None else None
            if match is not None:
                route = resource.by_method.get(method)
                if route is not None:
                    return route, _decoded(resource.names[method], match.groups()), resource.allow
                allowed |= dict.fromkeys(resource.allow)
        return None, {}, tuple(allowed)


def path_of(target: str) -> str:
    """The path of a request's target, still percent-encoded, without its query."""
    path = target.partition("?")[0]
    if not path.startswith("/"):  # absolute form, as proxies send it
        try:
            path = urlsplit(path).path
        except ValueError:
            return ""
    return path


def _decoded(names: list[str], values: Iterable[str]) -> dict[str, str]:
    try:
        return {name: unquote(value, errors="strict") for name, value in zip(names, values, strict=True)}
    except UnicodeDecodeError:
        # Replacing undecodable bytes would let two different paths name the same resource.
        raise Refusal(400, "the path is not percent-encoded UTF-8", reason="invalid_path") from None


def _first_segment(path: str) -> str:
    return path[1:].partition("/")[0]


def _pattern(path: str) -> re.Pattern[str]:
    parts = _PARAMETER.split(path)
    return re.compile("".join("([^/]+)" if index % 2 else re.escape(part) for index, part in enumerate(parts)))
