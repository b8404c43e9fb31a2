"""Google's REST form of the Pub/Sub API: a route for each binding of each call, over the services that gRPC calls too.

`POST /v1/projects/demo/topics/orders:publish` with `{"messages": [{"data": "aGVsbG8="}]}`. Errors have Google's form: the gRPC
status as a word and an `ErrorInfo` among the details.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec
from aiohttp import web

from penstock.errors import AckIdsRefused
from penstock.google import messages
from penstock.google.calls import DOMAIN, Call, find_call
from penstock.google.fast_calls import FastCall
from penstock.google.messages.methods import Method
from penstock.google.rest_docs import Documents
from penstock.google.transcoding import Style, Template, read_query, read_request, write_answer
from penstock.http import ErrorBody, Refusal, Request, Route, refusal_of
from penstock.http.routes import Handler

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
LONG_BODY_BYTES = 256 * 1024
"""From here on a body is read in a thread of its own, so that others do not wait for it."""


class ErrorInfo(msgspec.Struct, omit_defaults=True):
    """Why, for programs: `reason` is a stable word."""

    type_url: str = msgspec.field(name="@type")
    reason: str
    domain: str
    metadata: dict[str, str] = {}


class ApiError(msgspec.Struct):
    """What went wrong: the HTTP status, a sentence, Google's word for it, and the reason."""

    code: int
    message: str
    status: str
    details: list[ErrorInfo]


class ApiErrorEnvelope(msgspec.Struct):
    """An error as Google's APIs answer it."""

    error: ApiError


class DetailedRefusal(Refusal):
    """A refusal that says something about each of several things: ack ids, with what is wrong with them."""

    metadata: Mapping[str, str] = {}


def _render(refusal: Refusal) -> web.Response:
    text = f"{refusal.message} ({refusal.hint})" if refusal.hint else refusal.message
    metadata = dict(refusal.metadata) if isinstance(refusal, DetailedRefusal) else {}
    info = ErrorInfo(ERROR_INFO, refusal.reason.upper(), DOMAIN, metadata)
    envelope = ApiErrorEnvelope(ApiError(refusal.status, text, refusal.word, [info]))
    return web.Response(status=refusal.status, body=msgspec.json.encode(envelope), content_type="application/json")


API_ERRORS = ErrorBody(_render, ApiErrorEnvelope)


def rest_routes(services: Iterable[object], fast: Mapping[str, FastCall]) -> list[Route]:
    """The routes of all calls. `fast` has, by gRPC path, shorter ways for some of them."""
    known = list(services)
    documents = Documents()
    routes = []
    for path, method in messages.METHODS.items():
        for binding in method.bindings:
            template, call = Template.of(binding), find_call(known, path)
            summary = (call.__doc__ or path).partition("\n")[0].rstrip(".")
            operation = documents.operation(path, method, template, verb=binding.verb, summary=summary)
            handler = _handler(call, method, template, fast.get(path))
            routes.append(Route(binding.verb, template.path, handler, operation, API_ERRORS))
    return routes


def _handler(call: Call, method: Method, template: Template, fast: FastCall | None) -> Handler:
    async def serve(request: Request) -> web.StreamResponse:
        fields, style = read_query(request.raw_path.partition("?")[2])
        name = template.filled(request.match_info)
        body = await request.read() if template.body is not None else b""
        try:
            answer = await fast(body, name, request.principal) if fast is not None and not fields else None
            if answer is None:
                arguments = (method.request(), template, name, fields, body)
                long = len(body) > LONG_BODY_BYTES
                message = await asyncio.to_thread(read_request, *arguments) if long else read_request(*arguments)
                answer = write_answer(await call(message, request.principal), style)
        except AckIdsRefused as error:
            raise _detailed(error) from error
        return _response(answer, style)

    return serve


def _response(answer: bytes, style: Style) -> web.Response:
    return web.Response(body=msgspec.json.format(answer) if style.is_pretty else answer, content_type="application/json")


def _detailed(error: AckIdsRefused) -> DetailedRefusal:
    plain = refusal_of(error)
    refusal = DetailedRefusal(plain.status, plain.message, reason=plain.reason, hint=plain.hint, word=plain.word)
    refusal.metadata = error.failures
    return refusal
