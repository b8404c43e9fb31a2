"""How errors become responses: one table from Penstock's errors to HTTP, and the error body of each API.

The status follows Google's table for JSON APIs, with one exception: a closed broker means that the server stops, so it is 503,
not an error of the caller. Only a `PenstockError` shows its text: the text of other errors may contain anything.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from penstock.errors import BrokerClosed, PenstockError, RateLimited

STATUS: dict[int, tuple[int, str]] = {
    1: (499, "CANCELLED"),
    2: (500, "UNKNOWN"),
    3: (400, "INVALID_ARGUMENT"),
    4: (504, "DEADLINE_EXCEEDED"),
    5: (404, "NOT_FOUND"),
    6: (409, "ALREADY_EXISTS"),
    7: (403, "PERMISSION_DENIED"),
    8: (429, "RESOURCE_EXHAUSTED"),
    9: (400, "FAILED_PRECONDITION"),
    10: (409, "ABORTED"),
    11: (400, "OUT_OF_RANGE"),
    12: (501, "UNIMPLEMENTED"),
    13: (500, "INTERNAL"),
    14: (503, "UNAVAILABLE"),
    15: (500, "DATA_LOSS"),
    16: (401, "UNAUTHENTICATED"),
}
"""The HTTP status and the word of Google's JSON errors, by gRPC's number."""

_WORD_OF_STATUS = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 500: "INTERNAL", 503: "UNAVAILABLE"}
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="penstock"'}


class Refusal(Exception):
    """An error response. An API may raise one where no Penstock error fits (415, 507 …)."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str,
        hint: str | None = None,
        word: str | None = None,
        headers: Mapping[str, str] | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        self.hint = hint
        self.word = word or _WORD_OF_STATUS.get(status) or _phrase(status).upper().replace(" ", "_").replace("-", "_")
        self.headers = dict(headers or {})
        self.closes = closes
        """Whether the connection is closed after it, as it must be if the rest of the body will not be read."""


def refusal_of(error: Exception) -> Refusal:
    match error:
        case Refusal():
            return error
        case BrokerClosed():
            return Refusal(503, error.message, reason=error.reason, hint="the server is stopping; try again soon")
        case PenstockError():
            status, word = STATUS.get(error.code, STATUS[2])
            headers = dict(_CHALLENGE) if status == HTTPStatus.UNAUTHORIZED else {}
            if isinstance(error, RateLimited):
                headers["Retry-After"] = retry_after(error.retry_after)
            return Refusal(status, error.message, reason=error.reason, hint=error.hint, word=word, headers=headers)
        case web.HTTPRequestEntityTooLarge():
            return too_large()
        case web.HTTPException():
            return Refusal(error.status, _text(error), reason=_phrase(error.status).lower().replace(" ", "_"))
        case web.RequestPayloadError():
            return Refusal(
                400, "the body is not well-formed: its encoding or its chunks are broken", reason="broken_body", closes=True
            )
    return Refusal(500, "an error inside the server", reason="internal", hint="the server's log has it under this request id")


def code_location(error: BaseException) -> str:
    """Where in the code an error happened, for the log. Its text is left out: it may contain a payload or a token."""
    return "".join(traceback.format_tb(error.__traceback__))


def too_large(limit: int | None = None) -> Refusal:
    """413; the connection is closed after it."""
    message = "the body is larger than this server accepts" + (f", at most {limit} bytes" if limit is not None else "")
    hint = "send smaller batches, or raise the server's max_request_bytes"
    return Refusal(413, message, reason="request_too_large", hint=hint, closes=True)


def retry_after(seconds: float) -> str:
    """The value of a Retry-After header: whole seconds, rounded up."""
    return str(max(math.ceil(seconds), 1))


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"Status {status}"


def _text(error: web.HTTPException) -> str:
    return " ".join((error.text or error.reason).split())


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The error format of an API: `render` makes the response, `schema` (a Struct or a JSON Schema) describes its body."""

    render: Callable[[Refusal], web.Response]
    schema: type[msgspec.Struct] | Mapping[str, Any]


class ErrorDetail(msgspec.Struct, omit_defaults=True):
    """An error: the HTTP status, a sentence, Google's word for it, a stable word for programs, and a hint."""

    code: int
    message: str
    status: str
    reason: str
    hint: str | None = None


class ErrorEnvelope(msgspec.Struct):
    """An error in the format of Google's JSON APIs."""

    error: ErrorDetail


def _as_google(refusal: Refusal) -> web.Response:
    detail = ErrorDetail(refusal.status, refusal.message, refusal.word, refusal.reason, refusal.hint)
    return web.Response(status=refusal.status, body=msgspec.json.encode(ErrorEnvelope(detail)), content_type="application/json")


GOOGLE_ERRORS = ErrorBody(_as_google, ErrorEnvelope)
