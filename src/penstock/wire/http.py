"""One request to the HTTP port of a server, and the errors that its answers stand for."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, RemoteDisconnected

from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, ServerUnreachable, Unauthenticated, Unavailable
from penstock.wire.address import NOT_HTTP, Address, split_servers, text_of

MAX_ANSWER = 10_000
"""The maximum length of the body of an error, in bytes."""


@contextmanager
def answer(
    server: str, path: str, *, token: str | None = None, tls: ssl.SSLContext | None = None, seconds: float
) -> Iterator[HTTPResponse]:
    """The answer to a GET, with the body unread; `seconds` is the limit of each wait for it.

    Nodes of a cluster (`http://a:8085,http://b:8085`) are tried in turn.

    Raises:
        InvalidArgument: the address is invalid, or that of the native port.
        ServerUnreachable: no connection, or no answer.
        Unauthenticated, Unavailable, FailedPrecondition: the server answered with an error.
    """
    servers = split_servers(server)
    for one in servers:
        if Address.parse(one).scheme not in {"http", "https"}:
            raise InvalidArgument.of("server", one, "the address of the HTTP port", hint="http://HOST:8085")
    if token is not None and not (token.isascii() and token.isprintable()):
        raise Unauthenticated("this is not a Penstock token")
    with ExitStack() as stack:
        yield _first(stack, [partial(_answer, one, path, token, tls, seconds) for one in servers])


def _first(stack: ExitStack, answers: list[Callable[[], AbstractContextManager[HTTPResponse]]]) -> HTTPResponse:
    for one in answers[:-1]:
        with suppress(Unavailable):
            return stack.enter_context(one())
    return stack.enter_context(answers[-1]())


@contextmanager
def _answer(server: str, path: str, token: str | None, tls: ssl.SSLContext | None, seconds: float) -> Iterator[HTTPResponse]:
    address = Address.parse(server)
    connection = HTTPConnection(address.host, address.port, timeout=seconds)
    if address.has_tls:
        context = tls or ssl.create_default_context()
        connection = HTTPSConnection(address.host, address.port, timeout=seconds, context=context)
    with closing(connection):
        try:
            connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            is_foreign = isinstance(error, HTTPException) and not isinstance(error, RemoteDisconnected)
            raise ServerUnreachable(server, NOT_HTTP if is_foreign else text_of(error)) from error
        if response.status != 200:
            raise _refused(server, path, response)
        yield response


def _refused(server: str, path: str, response: HTTPResponse) -> PenstockError:
    try:
        detail = json.loads(response.read(MAX_ANSWER))["error"]
        text, hint = str(detail["message"]), detail.get("hint")
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        text = f"{server} answers {response.status} to GET {path}"
        return FailedPrecondition(text, hint="is it a Penstock server of this version?")
    match response.status:
        case 401:
            return Unauthenticated(text.removeprefix("not authenticated: "))
        case 404:
            return FailedPrecondition(f"{text}: {server} does not serve {path}", hint="is it a Penstock server of this version?")
        case 429 | 503:
            return Unavailable(text, hint=hint)
        case _:
            return FailedPrecondition(text, hint=hint)
