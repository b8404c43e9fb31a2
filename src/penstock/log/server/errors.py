"""The errors of the log API: Google's body with the fields of the error, so that a client can raise the same error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import msgspec
from aiohttp import web

from penstock.errors import PenstockError
from penstock.http.refusal import ErrorBody, ErrorDetail, Refusal, refusal_of
from penstock.http.request import Request, json_response
from penstock.http.routes import Handler, Operation, Route

_PLAIN = (str, int, float, bool, dict, type(None))


class LogErrorDetail(ErrorDetail, omit_defaults=True):
    """An error as in the other APIs, with the fields of the error that `reason` names."""

    fields: list[Any] = msgspec.field(default_factory=list)


class LogError(msgspec.Struct):
    """An error."""

    error: LogErrorDetail


class _LogRefusal(Refusal):
    """A refusal with the fields of its error."""

    fields: list[Any]


def telling(handler: Callable[[Request], Awaitable[web.StreamResponse]]) -> Handler:
    """Wrap a handler, so that its errors keep their fields."""

    @wraps(handler)
    async def served(request: Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except PenstockError as error:
            known = refusal_of(error)
            refusal = _LogRefusal(
                known.status,
                known.message,
                reason=known.reason,
                hint=known.hint,
                word=known.word,
                headers=known.headers,
                closes=known.closes,
            )
            refusal.fields = [*error.args] if all(isinstance(field, _PLAIN) for field in error.args) else []
            raise refusal from error

    return served


def log_route(method: str, path: str, handler: Handler, operation: Operation, *, max_bytes: int | None = None) -> Route:
    """A route of this API. The handler checks the permission of the caller, because it knows the names."""
    return Route(method, path, telling(handler), operation, LOG_ERRORS, max_bytes=max_bytes)


def _rendered(refusal: Refusal) -> web.Response:
    fields = refusal.fields if isinstance(refusal, _LogRefusal) else []
    detail = LogErrorDetail(refusal.status, refusal.message, refusal.word, refusal.reason, refusal.hint, fields)
    return json_response(LogError(detail), refusal.status)


LOG_ERRORS = ErrorBody(_rendered, LogError)
