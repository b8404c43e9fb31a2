"""Cursors over HTTP: named positions of readers, with how far they are behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from aiohttp import web

from penstock.access import Right, Verb
from penstock.broker.aio import AsyncBroker
from penstock.broker.cursors import CursorOwner
from penstock.broker.log_view import kind_of
from penstock.errors import CursorNotFound, InvalidArgument, PermissionDenied
from penstock.http.request import Request, json_response
from penstock.http.routes import Body, Operation, Parameter, Reply, Route
from penstock.journal.core.outline import EVENTS
from penstock.log.server import requests
from penstock.log.server.errors import log_route
from penstock.log.server.scope import Scope
from penstock.values.descriptions import Cursor
from penstock.values.message import check_name

_NAMED = (Parameter("cursor", "The cursor.", requests.Name, "path"), requests.PROJECT)


class CursorApi:
    """Answers the paths of cursors. `scope` returns the caller of a request."""

    def __init__(self, aio: AsyncBroker, scope: Callable[[Request], Scope]) -> None:
        self._aio = aio
        self._cursors = aio.broker.cursors
        self._scope = scope

    def routes(self) -> list[Route]:
        one = {200: Reply("The cursor.", Cursor)}
        path = "/log/cursors/{cursor}"
        listing = Operation(
            "All cursors, with their lag", "", ("log",), (requests.PROJECT,), None, {200: Reply("", list[Cursor])}
        )
        setting = Operation("Set a cursor; it is created if it is new", "", ("log",), _NAMED, Body(requests.CursorAsked), one)
        getting = Operation("A cursor, with its lag", "", ("log",), _NAMED, None, one)
        deleting = Operation("Delete a cursor", "", ("log",), _NAMED, None, {200: Reply("Deleted.", requests.Done)})
        return [
            log_route("GET", "/log/cursors", self.list, listing),
            log_route("PUT", path, self.set, setting),
            log_route("GET", path, self.get, getting),
            log_route("DELETE", path, self.delete, deleting),
        ]

    async def list(self, request: Request) -> web.StreamResponse:
        scope = self._scope(request)
        scope.check(Verb.READ)
        found = await self._aio.call(self._cursors.all)
        return json_response([shown for cursor in found if (shown := _shown(scope, cursor)) is not None])

    async def get(self, request: Request) -> web.StreamResponse:
        scope = self._scope(request)
        return json_response(await self._found(scope, _name(scope, request), request.match_info["cursor"]))

    async def set(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.CursorAsked), self._scope(request)
        scope.check(Verb.READ)
        offsets = {_stored(scope, stream): offset for stream, offset in fields.offsets.items()}
        name, now = _name(scope, request), self._aio.broker.clock.now()
        await self._check_whole(scope, name, request.match_info["cursor"])
        moved = await self._aio.call(self._cursors.advance, name, offsets, now, fields.holds, caller=_holder(scope))
        return json_response(_shown(scope, moved))

    async def delete(self, request: Request) -> web.StreamResponse:
        scope = self._scope(request)
        name = _name(scope, request)
        await self._found(scope, name, request.match_info["cursor"])
        await self._check_whole(scope, name, request.match_info["cursor"])
        await self._aio.call(self._cursors.delete, name, caller=_holder(scope))
        return json_response(requests.Done())

    async def _check_whole(self, scope: Scope, name: str, asked: str) -> None:
        """Refuse callers that may not read all streams of a cursor: it may hold events for others that the caller cannot see."""
        with suppress(CursorNotFound):
            cursor = await self._aio.call(self._cursors.get, name)
            if any(stream != EVENTS and scope.visible_name(*kind_of(stream)) is None for stream in cursor.offsets):
                raise PermissionDenied(Verb.READ.value, f"all streams of cursor {asked}")

    async def _found(self, scope: Scope, name: str, asked: str) -> Cursor:
        scope.check(Verb.READ)
        try:
            shown = _shown(scope, await self._aio.call(self._cursors.get, name))
        except CursorNotFound:
            shown = None
        if shown is None:
            raise CursorNotFound(asked)
        return shown


def _name(scope: Scope, request: Request) -> str:
    """The broker's name of the cursor in a request."""
    name = check_name(request.match_info["cursor"], "cursor")
    if "/" in name:
        raise InvalidArgument.of("cursor", name, "a name without '/'")
    return scope.stored(name)


def _holder(scope: Scope) -> CursorOwner:
    """The caller. Creating, moving or deleting a cursor that holds needs a token that may hold each of its streams."""

    def check_hold(streams: Iterable[str]) -> None:
        for stream in streams:
            if stream == EVENTS:
                may, what = scope.principal.may(Right.HOLD_EVENTS, scope.project), "the event log: it needs a token for all names"
            else:
                kind, stored = kind_of(stream)
                may, what = scope.visible_name(kind, stored, Right.HOLD) is not None, f"{kind} {scope.own(stored)}"
            if not may:
                raise PermissionDenied(Verb.CONSUME.value, what)

    return CursorOwner(scope.principal.token_id, check_hold)


def _stored(scope: Scope, stream: str) -> str:
    """The name in the broker's log of a stream that the caller may read."""
    return stream if stream == EVENTS else scope.stored_stream(Verb.READ, stream)


def _shown(scope: Scope, cursor: Cursor) -> Cursor | None:
    """A cursor as the caller sees it; None for one of another project, or of streams that the caller may not read."""
    name = scope.own(cursor.name)
    if name is None:
        return None
    names = {stream: stream if stream == EVENTS else scope.visible_name(*kind_of(stream)) for stream in cursor.offsets}
    offsets = {plain: cursor.offsets[stream] for stream, plain in names.items() if plain is not None}
    if cursor.offsets and not offsets:
        return None
    lag = {plain: cursor.lag[stream] for stream, plain in names.items() if plain is not None}
    return Cursor(name, offsets, lag, cursor.updated_at, cursor.holds)
