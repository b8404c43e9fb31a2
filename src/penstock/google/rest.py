"""Google's REST form of the Pub/Sub API: a route for each binding of each call, over the same services as gRPC.

`POST /v1/projects/demo/topics/orders:publish` with `{"messages": [{"data": "aGVsbG8="}]}`. Errors have Google's form: the gRPC
status as a word and an `ErrorInfo` among the details.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from msgspec import UNSET, Meta, UnsetType

from penstock.errors import AckIdsRefused
from penstock.google import messages
from penstock.google.calls import DOMAIN, Call, find_call
from penstock.google.fast_calls import FastCall
from penstock.google.messages.methods import Method
from penstock.google.transcoding import Style, Template, read_query, read_request, write_answer
from penstock.http.refusal import ErrorBody, Refusal, refusal_of
from penstock.http.request import Request
from penstock.http.routes import Body, Handler, Operation, Parameter, Reply, Route

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
LONG_BODY_BYTES = 256 * 1024
"""Larger bodies are parsed in a thread, so that other requests do not wait."""

ID = r"^(?!goog)[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}$"
SCHEMA_ID = r"^(?!goog)[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}(@[0-9a-f]{8})?$"
PROJECT = r"^[A-Za-z0-9][A-Za-z0-9\-_.:]{0,254}$"

TAGS = {
    "Publisher": "Pub/Sub topics",
    "Subscriber": "Pub/Sub subscriptions",
    "SchemaService": "Pub/Sub schemas",
    "IAMPolicy": "Pub/Sub policies",
}

EXAMPLES: dict[str, Any] = {
    "PublishRequest": {"messages": [{"data": "aGVsbG8=", "attributes": {"kind": "greeting"}}]},
    "Subscription": {"topic": "projects/demo/topics/orders", "ackDeadlineSeconds": 30},
    "PullRequest": {"maxMessages": 10},
    "UpdateTopicRequest": {"topic": {"labels": {"team": "shop"}}, "updateMask": "labels"},
    "UpdateSubscriptionRequest": {"subscription": {"ackDeadlineSeconds": 60}, "updateMask": "ackDeadlineSeconds"},
}

PRETTY = Parameter("prettyPrint", "Whether the answer has line breaks and indentation.", {"type": "boolean"})

_SCALARS = {
    FieldDescriptor.TYPE_INT32: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)],
    FieldDescriptor.TYPE_INT64: Annotated[str, Meta(pattern="^-?[0-9]{1,19}$", description="A 64-bit integer, as a string.")],
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_BYTES: bytes,
    FieldDescriptor.TYPE_DOUBLE: float,
}

_WELL_KNOWN = {
    "google.protobuf.Timestamp": Annotated[str, Meta(extra_json_schema={"format": "date-time"})],
    "google.protobuf.Duration": Annotated[str, Meta(pattern=r"^-?[0-9]{1,12}(\.[0-9]{1,9})?s$", description="Seconds: `600s`.")],
    "google.protobuf.FieldMask": Annotated[str, Meta(description="Names of fields: `labels,retryPolicy`.")],
    "google.protobuf.Struct": dict[str, Any],
}


class ErrorInfo(msgspec.Struct, omit_defaults=True):
    """The cause, for programs: `reason` is a stable code."""

    type_url: str = msgspec.field(name="@type")
    reason: str
    domain: str
    metadata: dict[str, str] = {}


class ApiError(msgspec.Struct):
    """An error: the HTTP status, a sentence, Google's status name, and the reason."""

    code: int
    message: str
    status: str
    details: list[ErrorInfo]


class ApiErrorEnvelope(msgspec.Struct):
    """An error in the form of Google's APIs."""

    error: ApiError


class DetailedRefusal(Refusal):
    """A refusal with a problem for each of several items: ack ids, with the problem of each."""

    metadata: Mapping[str, str] = {}


def _render(refusal: Refusal) -> web.Response:
    text = f"{refusal.message} ({refusal.hint})" if refusal.hint else refusal.message
    metadata = dict(refusal.metadata) if isinstance(refusal, DetailedRefusal) else {}
    info = ErrorInfo(ERROR_INFO, refusal.reason.upper(), DOMAIN, metadata)
    envelope = ApiErrorEnvelope(ApiError(refusal.status, text, refusal.word, [info]))
    return web.Response(status=refusal.status, body=msgspec.json.encode(envelope), content_type="application/json")


API_ERRORS = ErrorBody(_render, ApiErrorEnvelope)


def rest_routes(services: Iterable[object], fast: Mapping[str, FastCall]) -> list[Route]:
    """The routes of all calls. `fast` has, by gRPC path, shorter implementations of some."""
    known = list(services)
    documents = OperationDocuments()
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


class OperationDocuments:
    """Descriptions of calls. It makes one type for a message that several calls carry."""

    def __init__(self) -> None:
        self._types: dict[str, Any] = {}

    def operation(self, path: str, method: Method, template: Template, *, verb: str, summary: str) -> Operation:
        """The description of one binding of a method."""
        request = method.request.DESCRIPTOR
        service, _, call = path.rpartition("/")
        body = None
        if template.body is not None:
            content = request if template.body == "*" else request.fields_by_name[template.body].message_type
            in_path = template.field if content.name.endswith("Request") else None
            body = Body(self._type(content, in_path), required=verb != "PUT", example=EXAMPLES.get(content.name))
        return Operation(
            summary=summary,
            description=f"`{call}` of Google's Pub/Sub API. Fields may be named in camelCase or in snake_case.",
            tags=(TAGS[service.rpartition(".")[2]],),
            parameters=(*_in_path(template), *self._in_query(request, template), PRETTY),
            body=body,
            replies={200: Reply("Done.", self._type(method.response.DESCRIPTOR))},
        )

    def _in_query(self, request: Descriptor, template: Template) -> Iterator[Parameter]:
        if template.body == "*":
            return
        for field in request.fields:
            if field.name in {template.body, template.field}:
                continue
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                for inner in field.message_type.fields:
                    yield Parameter(f"{field.camelcase_name}.{inner.camelcase_name}", "", self._single(inner))
            else:
                yield Parameter(field.camelcase_name, "", self._single(field))

    def _type(self, descriptor: Descriptor, in_path: str | None = None) -> Any:
        """A type with the fields of a message, except the one that the path fills."""
        known = self._types.get(descriptor.full_name)
        if known is None:
            fields = [
                (field.name, self._field(field) | UnsetType, msgspec.field(default=UNSET, name=field.camelcase_name))
                for field in descriptor.fields
                if field.name != in_path
            ]
            known = msgspec.defstruct(
                descriptor.name, fields, forbid_unknown_fields=True, module=__name__, namespace={"__doc__": None}
            )
            self._types[descriptor.full_name] = known
        return known

    def _field(self, field: FieldDescriptor) -> Any:
        if not field.is_repeated:
            return self._single(field)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return dict[str, str]
        return list[self._single(field)]  # type: ignore[misc]  # a type made at run time

    def _single(self, field: FieldDescriptor) -> Any:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            return _WELL_KNOWN.get(field.message_type.full_name) or self._type(field.message_type)
        if field.type == FieldDescriptor.TYPE_ENUM:
            return Literal[tuple(value.name for value in field.enum_type.values)]
        return _SCALARS[field.type]


def _in_path(template: Template) -> Iterator[Parameter]:
    for part in template.name.split("/"):
        if part.startswith("{"):
            name = part.strip("{}")
            pattern = {"project": PROJECT, "schema": SCHEMA_ID}.get(name, ID)
            yield Parameter(name, f"The id of the {name}.", {"type": "string", "pattern": pattern}, "path")
