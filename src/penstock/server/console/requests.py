"""How an operation of the console is made: the caller, the request, and what every route checks.

A `View` answers a question, over GET and over the live connection alike. An action is a POST with a JSON body: a page of another
site cannot send one without the browser asking first, and nothing here is read from a cookie.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from penstock.access import Principal, Verb
from penstock.api.operations import Operations
from penstock.errors import InvalidArgument, PenstockError
from penstock.http.decoding import UNREADABLE, explain
from penstock.http.refusal import Refusal
from penstock.http.request import Request, json_response
from penstock.http.routes import Body, Operation, Parameter, Reply, Route
from penstock.values.projects import check_project

JSON = "application/json"
TAGS = ("console",)
MAX_BODY = 64 * 1024
ROWS = 200
"""How many rows a page of a table has at the most."""

P = TypeVar("P", bound=msgspec.Struct)

Limit = Annotated[int, Meta(ge=1, le=ROWS)]
Offset = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=600)]
Text = Annotated[str, Meta(max_length=600)]

PROJECT = Parameter("project", "The project; without it the token's, or the server's default.", Text)


class NoParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to say."""


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is meant."""

    name: Name


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """An empty object."""


class Confirmation(msgspec.Struct, forbid_unknown_fields=True):
    """What cannot be undone is confirmed by the name of what it happens to."""

    confirm: Text | None = None

    def check(self, name: str) -> None:
        """Return if the name was typed."""
        if self.confirm != name:
            raise Refusal(
                400,
                f"confirm is {self.confirm!r}, expected {name!r}",
                reason="confirmation_required",
                hint="this cannot be undone: repeat the name of what it happens to as `confirm`",
            )


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller, and the project. Two callers with the same scope are shown the same."""

    operations: Operations

    @property
    def principal(self) -> Principal:
        """The caller."""
        return self.operations.principal

    @property
    def project(self) -> str:
        """What they ask about."""
        return self.operations.project

    @property
    def scope(self) -> tuple[Principal, str]:
        """What the answer to a question depends on, beside the question."""
        return replace(self.principal, token_id=""), self.project


Answer = Callable[[Caller, P], Awaitable[Any]]
"""Answers a caller's question. What it raises is an error of the question, or that the caller may not ask."""
CallerOf = Callable[[Principal, str | None], Caller]


@dataclass(frozen=True, slots=True)
class View(Generic[P]):
    """A question that may be asked once, or watched."""

    name: str
    path: str
    summary: str
    parameters: type[P]
    answer: Answer[P]
    reply: Any
    verb: Verb | None = Verb.READ

    def read(self, given: dict[str, Any], *, strict: bool) -> P:
        """The parameters of a question; InvalidArgument for those that cannot be."""
        try:
            return msgspec.convert(given, self.parameters, strict=strict)
        except msgspec.ValidationError as error:
            raise explain(error, self.parameters) from None

    def route(self, caller_of: CallerOf) -> Route:
        """The question over GET."""

        async def handle(request: Request) -> web.StreamResponse:
            given = {name: value for name, value in request.query.items() if name != "project"} | request.match_info
            return json_response(
                await asked(caller_of(request.principal, project_of(request)), self.answer, self.read(given, strict=False))
            )

        names = {part.strip("{}") for part in self.path.split("/") if part.startswith("{")}
        parameters = [
            Parameter(
                field.encode_name, "", field.type, "path" if field.encode_name in names else "query", required=field.required
            )
            for field in msgspec.structs.fields(self.parameters)
        ]
        operation = Operation(self.summary, "", TAGS, (*parameters, PROJECT), replies={200: Reply("As of now.", self.reply)})
        return Route("GET", self.path, handle, operation, verb=self.verb)


@dataclass(frozen=True, slots=True)
class Action(Generic[P]):
    """Something to do. `run` gets the path's parameters and the body."""

    path: str
    summary: str
    body: type[P]
    run: Callable[[Caller, dict[str, str], P], Awaitable[Any]]
    reply: Any
    verb: Verb = Verb.MANAGE
    max_bytes: int = MAX_BODY

    def route(self, caller_of: CallerOf) -> Route:
        """It over POST."""

        async def handle(request: Request) -> web.StreamResponse:
            caller = caller_of(request.principal, project_of(request))
            body = await read_body(request, self.body)
            try:
                return json_response(await self.run(caller, request.match_info, body))
            except PenstockError as error:
                raise caller.operations.for_caller(error) from None

        operation = Operation(self.summary, "", TAGS, (PROJECT,), Body(self.body), {200: Reply("It is done.", self.reply)})
        return Route("POST", self.path, handle, operation, verb=self.verb, max_bytes=self.max_bytes)


async def asked(caller: Caller, answer: Answer[P], question: P) -> Any:
    """The answer to a question; errors name things as the caller knows them."""
    try:
        return await answer(caller, question)
    except PenstockError as error:
        raise caller.operations.for_caller(error) from None


async def read_body(request: Request, kind: type[P]) -> P:
    """The body of an action."""
    if request.content_type != JSON:
        raise Refusal(
            415,
            f"the body's Content-Type is {request.content_type[:100]!r}, expected {JSON}",
            reason="unsupported_media_type",
            hint="actions of the console are JSON, so that no page of another site can send one",
            word="INVALID_ARGUMENT",
        )
    body = await request.read()
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise explain(error, kind) from None


def project_of(request: Request) -> str | None:
    """The project that a request names."""
    project = request.query.get("project")
    return None if not project else check_project(project)


def read_time(text: str) -> datetime:
    """A time that somebody wrote; one without a zone is in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument.of("time", text, "a time such as 2026-11-18T17:00:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
