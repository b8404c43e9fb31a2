"""Redrives over HTTP: requeue dead letters that a program has chosen, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from aiohttp import web

from penstock.access import Verb
from penstock.broker.broker import Broker
from penstock.broker.redrives import Letter
from penstock.http.request import Request, json_response
from penstock.http.routes import Body, Operation, Parameter, Reply, Route
from penstock.log.log import RedriveProgress
from penstock.log.redrives import Redrives
from penstock.log.server import requests
from penstock.log.server.errors import log_route
from penstock.log.server.leasing import caller_of, source_of
from penstock.log.server.scope import Scope

MAX_BODY = 1024 * 1024
_NAME = Parameter("redrive", "The redrive: a name that stays the same when it is repeated.", requests.Word, "path")


class RedriveApi:
    """Answers the paths of redrives. `scope` returns the caller of a request."""

    def __init__(self, broker: Broker, scope: Callable[[Request], Scope]) -> None:
        self._redrives = Redrives(broker)
        self._scope = scope

    def routes(self) -> list[Route]:
        path, named = "/log/redrives/{redrive}", (_NAME, requests.PROJECT)
        beginning = Operation(
            "Store a note about a redrive",
            "The note of the first call is returned to all calls.",
            ("log",),
            named,
            Body(requests.RedriveBegun),
            {200: Reply("The stored note.", requests.RedriveBegun)},
        )
        moving = Operation(
            "Redrive dead letters of a queue, each once",
            "Message ids in the order of publishing, each with its time of dead-lettering. Letters that were dead-lettered again"
            " since then, and those of earlier calls for this redrive, are skipped.",
            ("log",),
            named,
            Body(requests.LettersAsked),
            {200: Reply("The progress.", RedriveProgress)},
        )
        return [
            log_route("PUT", path, self.begin, beginning),
            log_route("POST", path, self.move, moving, max_bytes=MAX_BODY),
        ]

    async def begin(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.RedriveBegun), self._scope(request)
        scope.check(Verb.MANAGE)
        note = await asyncio.to_thread(self._redrives.begin, _name(scope, request), fields.note, caller_of(scope, Verb.MANAGE))
        return json_response(requests.RedriveBegun(note=note))

    async def move(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.LettersAsked), self._scope(request)
        letters = [Letter(*letter) for letter in fields.letters]
        move = partial(
            self._redrives.move,
            _name(scope, request),
            source_of(scope, Verb.MANAGE, fields.source),
            letters,
            caller_of(scope, Verb.MANAGE),
        )
        found = await asyncio.to_thread(move)
        return json_response(RedriveProgress(found.redriven, found.is_repeat))


def _name(scope: Scope, request: Request) -> str:
    return scope.stored(requests.word(request, "redrive"))
