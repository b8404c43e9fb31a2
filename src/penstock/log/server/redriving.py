"""Redrives over HTTP: dead letters that a program has chosen are requeued, each once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from aiohttp import web

from penstock.access import Verb
from penstock.broker.broker import Broker
from penstock.broker.redrives import Letter
from penstock.errors import InvalidArgument
from penstock.http.request import Request, json_response
from penstock.http.routes import Body, Operation, Parameter, Reply, Route
from penstock.log.leased_batches import Source
from penstock.log.log import QUEUE, RedriveProgress
from penstock.log.redrives import Redrives
from penstock.log.server import requests
from penstock.log.server.errors import log_route
from penstock.log.server.leasing import SUBSCRIPTION
from penstock.log.server.scope import Scope
from penstock.log.writes import Writer
from penstock.values.message import check_name

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
            "Keep what a redrive is about",
            "The note of the first call is returned to all calls.",
            ("log",),
            named,
            Body(requests.RedriveBegun),
            {200: Reply("The note that is kept.", requests.RedriveBegun)},
        )
        moving = Operation(
            "Redrive dead letters of a queue, each once",
            "Ids of messages in the order of publishing, each with when it died. Letters that died again since, and those that an"
            " earlier call for this redrive named, are left alone.",
            ("log",),
            named,
            Body(requests.LettersAsked),
            {200: Reply("How far it is.", RedriveProgress)},
        )
        return [
            log_route("PUT", path, self.begin, beginning),
            log_route("POST", path, self.move, moving, max_bytes=MAX_BODY),
        ]

    async def begin(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.RedriveBegun), self._scope(request)
        scope.check(Verb.MANAGE)
        note = await asyncio.to_thread(self._redrives.begin, _name(scope, request), fields.note, _caller(scope))
        return json_response(requests.RedriveBegun(note=note))

    async def move(self, request: Request) -> web.StreamResponse:
        fields, scope = await requests.asked(request, requests.LettersAsked), self._scope(request)
        letters = [Letter(*letter) for letter in fields.letters]
        move = partial(self._redrives.move, _name(scope, request), _source(scope, fields.source), letters, _caller(scope))
        found = await asyncio.to_thread(move)
        return json_response(RedriveProgress(found.redriven, found.is_repeat))


def _name(scope: Scope, request: Request) -> str:
    return scope.stored(requests.word(request, "redrive"))


def _caller(scope: Scope) -> Writer:
    def may_manage(stored: str) -> bool:
        name = scope.own(stored)
        return name is not None and scope.may(Verb.MANAGE, name)

    return Writer(scope.principal.token_id, may_manage)


def _source(scope: Scope, text: str) -> Source:
    kind, _, name = text.partition(":")
    if kind not in {QUEUE, SUBSCRIPTION} or not name or "/" in name:
        raise InvalidArgument.of("source", text, "queue:NAME for a work queue, or subscription:NAME")
    scope.principal.check(Verb.MANAGE, scope.project, check_name(name, kind), kind=kind)
    return Source(kind, scope.stored(name))
