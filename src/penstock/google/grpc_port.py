"""The gRPC port: calls by their path, with authentication, limits and errors in gRPC's form.

Requests and answers pass as bytes: the library neither parses nor writes them, so that a publish is parsed once, by the raw
protobuf class, and deliveries are written by `wire` without a protobuf object for each.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from penstock.access import ANYONE, Principal
from penstock.errors import (
    AckIdsRefused,
    BrokerClosed,
    InvalidArgument,
    PenstockError,
    RateLimited,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from penstock.google import messages
from penstock.google.calls import DOMAIN, Call, find_call
from penstock.google.streaming import Streams
from penstock.http.authentication import Gate
from penstock.http.http2_relay import Http2Relay
from penstock.http.refusal import code_location

log = logging.getLogger("penstock.grpc")

Unary = Callable[[bytes, Principal], Awaitable[bytes]]

STREAMING_PULL = "/google.pubsub.v1.Subscriber/StreamingPull"
MAX_STREAMS_PER_CLIENT = 5_000
"""StreamingPulls that one client, identified by its token or its address, may have open."""
GOAWAY_SECONDS = 0.05
"""Seconds between closing the connections and ending their streams."""
CLOSING_SECONDS = 0.5
"""Seconds for written responses to be sent after the last call has ended; clients may not read them."""
DETAILS = "grpc-status-details-bin"
MAX_TEXT = 700
MAX_NAMED = 3_000
"""Characters of an error's text, and of the ack ids it names: clients refuse more than 8 KiB of metadata, where both go in twice
or with much around them, and then see another error than the one that was meant."""

_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """The limits of clients. A client decides how long its calls take, so the calls of all clients are limited together."""

    max_request_bytes: int = 16 * 1024 * 1024
    """The size of a message, after decompression."""
    max_connections: int = 10_000
    """The number of connections; the number of concurrent calls."""
    handshake_seconds: float = 10.0
    """How long a client may take to start: TLS, and the first frame of HTTP/2."""
    ping_seconds: float = 20.0
    """A client that was silent for this long is pinged."""
    answer_seconds: float = 20.0
    """How long its answer may take."""


class GrpcServer:
    """A server of the Pub/Sub API on one port.

    `services` have a method for each call, with the name of the call in lower case.
    """

    def __init__(
        self,
        services: Iterable[object],
        streams: Streams,
        *,
        gate: Gate,
        overrides: dict[str, Unary] | None = None,
        limits: GrpcLimits,
        relay: Http2Relay,
    ) -> None:
        self._streams = streams
        self._relay = relay
        self._gate = gate
        calls: dict[str, Unary] = {}
        for path, method in messages.METHODS.items():
            if not method.client_streaming:
                calls[path] = _parsed(method.request, find_call(services, path))
        calls |= overrides or {}
        # The library looks up a handler for every call, so they are created once.
        self._handlers = {path: grpc.unary_unary_rpc_method_handler(self._unary(call)) for path, call in calls.items()}
        # As a stream, because that is called before the request is received.
        self._refusing = grpc.stream_stream_rpc_method_handler(self._refuse)
        self._handlers[STREAMING_PULL] = grpc.stream_stream_rpc_method_handler(self._serve_stream)
        self._options = [
            ("grpc.max_receive_message_length", limits.max_request_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            # Clients ping to keep idle streams alive; Google's service allows it, so this one must.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
            ("grpc.http2.max_ping_strikes", 0),
            # A peer that vanished, or sent half a request and no more, is noticed within 40 s.
            ("grpc.server_handshake_timeout_ms", int(limits.handshake_seconds * 1_000)),
            ("grpc.keepalive_time_ms", int(limits.ping_seconds * 1_000)),
            ("grpc.keepalive_timeout_ms", int(limits.answer_seconds * 1_000)),
            ("grpc.http2.ping_timeout_ms", int(limits.answer_seconds * 1_000)),  # without it, a ping may take a minute
            ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ]
        self._max_calls = limits.max_connections
        self._server: Any = None
        self._is_stopping = False
        self._streams_of: Counter[str] = Counter()
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self, host: str, port: int, tls: tuple[bytes, bytes] | None = None) -> int:
        """Listen, and return the bound port; 0 takes a free one. `tls`: key and certificates, PEM.

        It also gets the HTTP/2 connections of the HTTP port.
        """
        self._server = grpc.aio.server(options=self._options, maximum_concurrent_rpcs=self._max_calls)
        self._server.add_generic_rpc_handlers((_Handlers(self._handler),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if port:
            # The library's error does not name the problem of a port; its own log prints it on standard error.
            family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            socket.create_server((host, port), family=family).close()
        try:
            if tls is not None:
                bound = self._server.add_secure_port(address, grpc.ssl_server_credentials([tls]))
            else:
                bound = self._server.add_insecure_port(address)
            self._server.add_insecure_port(self._relay.open())
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from None
        await self._server.start()
        return int(bound)

    async def stop(self, grace_seconds: float) -> None:
        """Accept nothing more, end the streams, wait for running calls within the grace period, cancel the rest."""
        if self._server is None:
            return
        self._is_stopping = True
        server, self._server = self._server, None
        stopping = asyncio.create_task(server.stop(grace_seconds))
        # The port and its connections close before the streams end: clients reopen their streams at once, and the library would
        # end a stream that is opened on a closing connection with CANCELLED, which Google's clients do not retry.
        await asyncio.wait([stopping], timeout=GOAWAY_SECONDS)
        self._streams.stop()
        finished = asyncio.create_task(self._idle.wait())
        await asyncio.wait([stopping, finished], return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            # No call runs any more. Only bytes for clients that do not read may remain.
            await server.stop(CLOSING_SECONDS)
        await stopping
        finished.cancel()
        self._relay.close()

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._count += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._idle.set()

    def _handler(self, details: Any) -> Any:
        """The handler of a call. Callers are refused before the request's body is read."""
        if not self._gate.is_open and details.method in self._handlers:
            try:
                self._gate.authenticate(_secret(details.invocation_metadata))
            except PenstockError:
                return self._refusing
        return self._handlers.get(details.method)

    async def _refuse(self, _: Any, context: Any) -> None:
        """End a call with the reason of the refusal."""
        await self._admit(context)
        # The token may have become valid since.
        await _abort(context, Unavailable("try again"))

    async def _admit(self, context: Any) -> tuple[Principal, str | None]:
        """Return the caller and its secret, or end the call with the reason why it is refused.

        A stopping server waits for the refusal to be sent: a call that is cut off instead ends with CANCELLED.
        """
        try:
            return self._caller(context)
        except PenstockError as error:
            with self._running():
                await _abort(context, error)

    def _unary(self, call: Unary) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def serve(request: bytes, context: Any) -> bytes:
            caller, _ = await self._admit(context)
            try:
                with self._running():
                    return await call(request, caller)
            except PenstockError as error:
                return await _abort(context, error)
            except DecodeError as error:
                return await _abort(context, InvalidArgument(f"the request is not a protobuf message of its kind: {error}"))
            except Exception as error:  # noqa: BLE001  # a call's top
                return await _fail(context, error)

        return serve

    async def _serve_stream(self, _: Any, context: Any) -> None:
        async def read() -> bytes | None:
            data = await context.read()
            return None if data is grpc.aio.EOF else data

        caller, secret = await self._admit(context)
        try:
            with self._running(), self._counted(caller, self._address(context)):
                still = partial(self._gate.authenticate, secret) if not self._gate.is_open else _nothing
                await self._streams.serve(read, context.write, caller, still)
        except PenstockError as error:
            await _abort(context, error)
        except DecodeError as error:
            await _abort(context, InvalidArgument(f"a request is not a protobuf message of its kind: {error}"))
        except (grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError):
            # The call is over already: nothing can be sent any more.
            raise asyncio.CancelledError from None
        except Exception as error:  # noqa: BLE001  # a stream's top
            await _fail(context, error)

    @contextmanager
    def _counted(self, caller: Principal, address: str) -> Iterator[None]:
        """Count a stream of a client; the number is limited."""
        client = caller.token_id or address
        if self._streams_of[client] >= MAX_STREAMS_PER_CLIENT:
            raise ResourceExhausted(f"this client has {MAX_STREAMS_PER_CLIENT} streams open, which is the limit")
        self._streams_of[client] += 1
        try:
            yield
        finally:
            self._streams_of[client] -= 1
            if not self._streams_of[client]:
                del self._streams_of[client]

    def _caller(self, context: Any) -> tuple[Principal, str | None]:
        if self._is_stopping:
            raise Unavailable("the server is stopping")
        if self._gate.is_open:
            return ANYONE, None
        secret = _secret(context.invocation_metadata() or ())
        address = self._address(context)
        try:
            principal = self._gate.authenticate(secret)
        except Unauthenticated:
            # Slow down clients that guess tokens.
            self._take_permit(None, address)
            raise
        self._take_permit(principal, address)
        return principal, secret

    def _address(self, context: Any) -> str:
        """The address of the client, without its port, which differs for every connection."""
        peer: str = context.peer()
        # In the form `ipv4:127.0.0.1:51234`.
        return self._relay.address_of(peer) or peer.partition(":")[2].rpartition(":")[0] or peer

    def _take_permit(self, principal: Principal | None, address: str) -> None:
        wait = self._gate.wait_seconds(principal, address)
        if wait > 0:
            raise RateLimited(wait)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # the library ships no types
    """The library asks it for the handler of every call."""

    def __init__(self, find: Callable[[Any], Any]) -> None:
        self._find = find

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a call; None if there is no such call."""
        return self._find(handler_call_details)


def _parsed(kind: Any, call: Call) -> Unary:
    async def serve(request: bytes, caller: Principal) -> bytes:
        answer = await call(kind.FromString(request), caller)
        data: bytes = answer.SerializeToString()
        return data

    return serve


async def _abort(context: Any, error: PenstockError) -> NoReturn:
    """End a call with an error, and its reason in the form of Google's clients."""
    text = f"{error} ({error.hint})" if error.hint else str(error)
    if len(text) > MAX_TEXT:
        text = f"{text[:MAX_TEXT]}…"
    info = messages.ErrorInfo(reason=error.reason.upper(), domain=DOMAIN)
    if isinstance(error, AckIdsRefused):
        # Google's client treats ids without a result as failed, which is safe: they were not settled and are redelivered.
        room = MAX_NAMED
        for ack_id, failure in error.failures.items():
            room -= len(ack_id) + len(failure)
            if room < 0:
                break
            info.metadata[ack_id] = failure
    status = messages.Status(code=error.code, message=text)
    status.details.add().Pack(info)
    code = grpc.StatusCode.UNAVAILABLE if isinstance(error, BrokerClosed) else _CODES[error.code]
    await context.abort(code, text, ((DETAILS, status.SerializeToString()),))
    raise AssertionError("abort always raises")


async def _fail(context: Any, error: Exception) -> NoReturn:
    """End a call that failed unexpectedly. The text of the error is not sent: it may contain data of the client."""
    log.error("a call failed: %s", code_location(error))
    await context.abort(grpc.StatusCode.INTERNAL, "the call failed inside the server; its log has the place")
    raise AssertionError("abort always raises")


def _secret(metadata: Iterable[tuple[str, Any]]) -> str | None:
    """The token of a call: `authorization: Bearer TOKEN`."""
    for key, value in metadata:
        if key == "authorization":
            scheme, _, secret = value.partition(" ")
            if scheme.lower() != "bearer" or not secret:
                raise Unauthenticated("the authorization metadata is not `Bearer TOKEN`")
            return str(secret)
    return None


def _nothing() -> None:
    """Check nothing: callers without authentication stay admitted."""
