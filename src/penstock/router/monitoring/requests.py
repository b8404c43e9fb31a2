"""How the routes of this API are built: who may call them, their parameters, and their errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Annotated, Literal, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from penstock.access import Verb
from penstock.errors import PermissionDenied
from penstock.http.decoding import UNREADABLE, explain
from penstock.http.refusal import ErrorBody, Refusal
from penstock.http.request import Request, json_response
from penstock.http.routes import Body, Operation, Parameter, Reply, Route
from penstock.router.core.metrics import FIVE_MINUTES, THIRTY_MINUTES

T = TypeVar("T", bound=msgspec.Struct)
Handler = Callable[[Request], Awaitable[web.StreamResponse]]

TAGS = ("router",)
SMALL = 64 * 1024
"""The size limit of a request body in bytes."""
MAX_LIMIT = 10_000

Limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT)]
Text = Annotated[str, Meta(max_length=2_048)]
Window = Literal["5min", "5m", "30min", "30m", "all"]
_SPANS: dict[Window, int | None] = {
    "5min": FIVE_MINUTES,
    "5m": FIVE_MINUTES,
    "30min": THIRTY_MINUTES,
    "30m": THIRTY_MINUTES,
    "all": None,
}


class WindowQuery(msgspec.Struct):
    """The span of the totals; `refresh` reads the depths of the queues first."""

    time_window: Window = "all"
    refresh: bool = False

    @property
    def span(self) -> int | None:
        """Microseconds; None: since the start."""
        return _SPANS[self.time_window]


WINDOW = Parameter("time_window", "The span of the totals; since the start if it is not given.", Window)


class RouterError(msgspec.Struct):
    """An error: a sentence, a stable code for programs, and what to do."""

    status: Literal["error"]
    message: str
    reason: str
    hint: str | None = None


def _rendered(refusal: Refusal) -> web.Response:
    return json_response(RouterError("error", refusal.message, refusal.reason, refusal.hint), refusal.status)


ROUTER_ERRORS = ErrorBody(_rendered, RouterError)


def reading(
    path: str,
    handler: Handler,
    summary: str,
    reply: object,
    *,
    about: str = "",
    parameters: tuple[Parameter, ...] = (),
    body: type[msgspec.Struct] | None = None,
    max_bytes: int | None = None,
) -> Route:
    """A route that only reads: it needs the verb `read`. It is a GET, or a POST if the query has a body."""
    wanted = None if body is None else Body(body)
    operation = Operation(summary, about, TAGS, parameters, wanted, {200: Reply("The present state.", reply)})
    method, guarded = "GET" if body is None else "POST", _for_operators(handler, Verb.READ)
    return Route(method, path, guarded, operation, ROUTER_ERRORS, verb=Verb.READ, max_bytes=max_bytes)


def changing(
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    reply: object,
    *,
    about: str = "",
    parameters: tuple[Parameter, ...] = (),
    body: type[msgspec.Struct] | None = None,
    status: int = 200,
    max_bytes: int = SMALL,
) -> Route:
    """A route that changes something: it needs the verb `manage`."""
    wanted = None if body is None else Body(body)
    operation = Operation(summary, about, TAGS, parameters, wanted, {status: Reply("Done.", reply)})
    guarded = _for_operators(handler, Verb.MANAGE)
    return Route(method, path, guarded, operation, ROUTER_ERRORS, verb=Verb.MANAGE, max_bytes=max_bytes)


def _for_operators(handler: Handler, verb: Verb) -> Handler:
    """The same handler, for tokens without restrictions only: a router's messages belong to no project."""

    @wraps(handler)
    async def guarded(request: Request) -> web.StreamResponse:
        principal = request.principal
        if principal.project is not None or "*" not in principal.patterns:
            raise PermissionDenied(verb, "the router, with a token for one project or for some names")
        return await handler(request)

    return guarded


def query(request: Request, kind: type[T]) -> T:
    """The query of a request, decoded; unknown parameters are ignored."""
    try:
        return msgspec.convert(dict(request.query), kind, strict=False)
    except msgspec.ValidationError as error:
        raise explain(error, kind) from None


async def body(request: Request, kind: type[T]) -> T:
    found = await request.read()
    try:
        return msgspec.json.decode(found, type=kind)
    except UNREADABLE as error:
        raise explain(error, kind) from None
