"""The queue API over HTTP: one command a request, in an envelope.

The kind of answer is in the status, and again in the envelope, for clients that only read bodies:
`{"success": false, "request_id": …, "payload": null, "error": "Queue not found: x", "code": "queue_not_found", "hint": …}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from penstock.api.queues import ProjectQueues, Queues
from penstock.errors import InvalidArgument, PenstockError
from penstock.http.decoding import explain
from penstock.http.refusal import ErrorBody, Refusal, refusal_of
from penstock.http.request import Request
from penstock.http.routes import Body, Operation, Parameter, Reply, Route
from penstock.queue_api import calls
from penstock.queue_api.calls import CALLS, AnyCall
from penstock.queue_api.commands import COMMANDS

PATH = "/api/v1/command"
PROJECT_HEADER = "X-Penstock-Project"
_PROJECT = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$"
PROJECT = Parameter(
    PROJECT_HEADER,
    "The project, for a token that is not bound to one; without it the default project.",
    {"type": "string", "pattern": _PROJECT},
    "header",
)

STATUS = {"queue_full": 507, "ack_deadline_exceeded": 409, "unimplemented": 400}
"""The errors for which this API has another status than usual."""
HINTS = {
    "queue_not_found": "create it first with the command queue.create",
    "topic_not_found": "create it first with the command stream.create",
}
"""Hints in place of those that are about Python."""


class Answered(msgspec.Struct):
    """A successful answer; `payload` is the command's own."""

    success: bool
    request_id: str | None
    payload: Any
    error: None = None


class Failed(msgspec.Struct):
    """A failure: a sentence, a stable code for programs, and a hint."""

    success: bool
    request_id: str | None
    payload: None
    error: str
    code: str
    hint: str | None


_encode = msgspec.json.Encoder().encode


class CommandApi:
    """Executes commands on the work queues of a broker."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    async def handle(self, request: Request) -> web.StreamResponse:
        body = await request.read()
        try:
            call = calls.decode(body)
        except PenstockError as error:
            return failed(refusal_of(error), calls.request_id(body))
        try:
            answer = await CALLS[type(call)].run(project_queues(self._queues, request), call.payload)  # type: ignore[attr-defined]  # every call type has one
        except PenstockError as error:
            return failed(refusal_of(error), call.request_id)
        return web.Response(body=_encode(Answered(True, call.request_id, answer)), content_type="application/json")


def project_queues(queues: Queues, request: Request) -> ProjectQueues:
    project = request.headers.get(PROJECT_HEADER)
    if project is not None and re.fullmatch(_PROJECT, project) is None:
        raise InvalidArgument.of(PROJECT_HEADER, project, "up to 100 letters, digits, '-', '_', '.', ':'")
    gate = request.server_context.gate
    still = None if gate is None or gate.is_open else request.admission().check
    return queues.of(request.principal, project, still=still)


def query_value(request: Request, name: str, kind: type[Any]) -> Any:
    """A query parameter in its type; None if it is absent."""
    value = request.query.get(name)
    if value is None:
        return None
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise explain(msgspec.ValidationError(f"{error} - at `$.{name}`")) from None


def status_of(refusal: Refusal) -> int:
    return STATUS.get(refusal.reason, refusal.status)


def failed(refusal: Refusal, request_id: str | None = None) -> web.Response:
    hint = HINTS.get(refusal.reason, refusal.hint)
    body = _encode(Failed(False, request_id, None, refusal.message, refusal.reason, hint))
    return web.Response(status=status_of(refusal), headers=refusal.headers, body=body, content_type="application/json")


ENVELOPE_ERRORS = ErrorBody(failed, Failed)


def command_route(queues: Queues) -> Route:
    return Route("POST", PATH, CommandApi(queues).handle, _operation(), ENVELOPE_ERRORS)


def _operation() -> Operation:
    names = "\n".join(
        f"| `{name}` | {', '.join(f'`{field}`' for field in command.fields.__struct_fields__) or '–'} |"
        for name, command in COMMANDS.items()
    )
    return Operation(
        "Execute one command.",
        "The command's fields are the `payload`; its answer is the `payload` of the answer.\n\n"
        f"| command | fields |\n|---|---|\n{names}\n",
        ("queues",),
        (PROJECT,),
        Body(
            AnyCall,
            "The command, its fields and an id that the answer repeats.",
            example={"command": "queue.publish", "request_id": "1", "payload": {"queue": "tasks", "message": {"do": "this"}}},
        ),
        {200: Reply("Done.", _answers())},
    )


def _answers() -> Mapping[str, Any]:
    kinds = list(dict.fromkeys(kind for command in COMMANDS.values() for kind in command.answer))
    return {
        "type": "object",
        "properties": {
            "success": {"const": True},
            "request_id": {"type": ["string", "null"]},
            "payload": {"anyOf": [inlined(kind) for kind in kinds]},
            "error": {"type": "null"},
        },
        "required": ["success", "request_id", "payload", "error"],
    }


def inlined(kind: object) -> Any:
    """The JSON Schema of a type without references, so that it can be embedded in a document."""
    (schema,), definitions = msgspec.json.schema_components([kind], ref_template="{name}")
    return _inlined(schema, definitions)


def _inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    match schema:
        case {"$ref": str(name)}:
            return _inlined(definitions[name], definitions)
        case dict():
            return {key: _inlined(value, definitions) for key, value in schema.items()}
        case list():
            return [_inlined(value, definitions) for value in schema]
        case _:
            return schema
