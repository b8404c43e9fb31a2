"""The server: a broker, and the APIs in front of it. Only this file knows all of them.

start    open the broker, then the APIs; ready when the last port listens
stop     ports close, streams and long polls end, running calls finish within the limit, leases are released, the broker is
flushed and closed
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import logging
import os
import resource
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

import uvloop

from penstock import __version__
from penstock.access import ClientRates, Keyring
from penstock.api.queues import Queues
from penstock.api.service import Service
from penstock.broker.aio import AsyncBroker
from penstock.broker.broker import Broker
from penstock.broker.consumer import DeliveryRules
from penstock.clock import Clock, SystemClock, monotonic
from penstock.config import Settings
from penstock.config.settings import is_loopback
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.extras import how_to_install
from penstock.google.api import GoogleApi
from penstock.google.grpc_port import GrpcLimits
from penstock.http.authentication import TokenGate
from penstock.http.http2_relay import PROTOCOLS, Http2Relay
from penstock.http.limits import HttpLimits
from penstock.http.monitoring import monitoring_routes
from penstock.http.monitoring.samples import Collector
from penstock.http.pages import documented
from penstock.http.port import HttpServer
from penstock.http.routes import Route
from penstock.http.sites import ANY_HOST
from penstock.http.traffic import Traffic, traffic_collector
from penstock.hub.broker.host import HubHost, check_access
from penstock.hub.server.routes import HubServer
from penstock.journal.journal import Journal
from penstock.log.server import LogApi, has_arrow
from penstock.log.writes import Writes
from penstock.native import NativeLimits, NativeServer
from penstock.queue_api import Resp3Server, SocketLimits, SynapRpcServer
from penstock.queue_api import routes as queue_routes
from penstock.rate_limit import RateLimit
from penstock.router.monitoring.api import routes_with_server
from penstock.router.monitoring.metrics import router_collector
from penstock.server.backup import BackupApi
from penstock.server.console import Console
from penstock.server.logging import set_up_logs
from penstock.server.metrics import LoopLag, broker_collector, process_collector
from penstock.server.nodes.relay import RelayEntry
from penstock.server.notify import Supervisor
from penstock.server.tokens import keyring_of
from penstock.values.projects import Projects, Quotas

if TYPE_CHECKING:
    from penstock.router.host import RouterHost
    from penstock.server.nodes.node import Node

log = logging.getLogger("penstock.server")

T = TypeVar("T")

M_ARENA_MAX = -8
"""The number of that option in GNU's malloc.h."""
SWITCH_SECONDS = 0.0005
"""How long one thread may keep the interpreter while another waits for it. With the default, ten times as long, each step of a
commit by the writer's thread would wait that long for the event loop's thread."""


EXAMPLES = (
    """curl -s {origin}/api/v1/command -d '{"command": "queue.create", "payload": {"queue": "tasks"}}'""",
    """curl -s {origin}/api/v1/command -d '{"command": "queue.publish", "payload": {"queue": "tasks", "message": "hello"}}'""",
    """curl -s -X PUT {origin}/v1/projects/penstock/topics/orders -d '{}'""",
    "curl -s {origin}/metrics",
)
"""Examples on the first page for new users."""


class Stoppable(Protocol):
    """A part in front of the broker that can be stopped."""

    async def stop(self, grace_seconds: float) -> None:
        """Accept nothing more, finish running calls within the grace period, cancel the rest.

        Safe to call twice, and before a start.
        """


@dataclass(frozen=True, slots=True)
class Ownership:
    """The ownership of a cluster's log by one node."""

    journal: Journal
    epoch: int
    relay_key: bytes
    """Shared by the nodes: it proves that a connection comes from one of them."""
    routes: Sequence[Route] = ()
    """The routes of every node, about itself and the others."""
    collectors: Sequence[Collector] = ()


class Server:
    """One server. `start` and `stop` belong to one event loop; after `start` the ports are known."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        *,
        router_leads: bool = False,
        ownership: Ownership | None = None,
    ) -> None:
        self.settings = settings
        self._ownership = ownership
        """For a node of a cluster: its ownership of the log, instead of a data directory."""
        self._router_leads = router_leads
        """Whether the server runs only for its router: then the router's health is the server's."""
        self._clock = clock or SystemClock()
        self.port = 0
        self.grpc_port: int | None = None
        self.native_port: int | None = None
        self.resp_port: int | None = None
        self.rpc_port: int | None = None
        self.router: RouterHost | None = None
        self.hub: HubHost | None = None
        self._apis: list[Stoppable] = []
        self._rest = AsyncExitStack()
        """Resources to close after the APIs, last opened first."""
        self._aio: AsyncBroker | None = None
        self._relay = Http2Relay()
        self._is_stopping = False

    async def start(self) -> None:
        """Open everything; if that fails, close what was already opened."""
        check_access(self.settings)
        try:
            await self._open()
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> None:
        settings = self.settings
        keyring = await asyncio.to_thread(keyring_of, settings) if settings.auth == "token" else None
        rates = ClientRates(RateLimit(settings.rate_limit, settings.rate_burst or 1)) if settings.rate_limit else None
        gate = TokenGate(keyring, rates, self._clock)
        owned = self._ownership
        storage: dict[str, Any] = {"data_dir": settings.data_dir} if owned is None else {"journal": owned.journal}
        self.broker = await asyncio.to_thread(Broker, clock=self._clock, **storage)
        self._rest.push_async_callback(asyncio.to_thread, self.broker.close)
        projects = Projects(settings.project, Quotas(queues=settings.max_queues))
        self._aio = aio = AsyncBroker(self.broker)
        lag = LoopLag()
        lag.start()
        self._rest.callback(aio.close)
        self._rest.callback(lag.stop)
        pubsub = GoogleApi(
            aio,
            projects,
            gate,
            limits=GrpcLimits(max_request_bytes=settings.max_request_bytes, max_connections=settings.max_connections),
            url=lambda: settings.url(self.port),
            push_allow=settings.push_allow,
            push_public_only=settings.auth == "token",
            relay=self._relay,
        )
        queues = Queues(aio, projects, defaults=settings.queue_defaults())
        service = Service(aio, projects, pubsub.rules, queues=queues, version=__version__, log_api=has_arrow())
        self._rest.callback(service.close)
        guard = gate if keyring is not None or rates is not None else None
        native = NativeServer(
            service,
            gate=guard,
            limits=NativeLimits(max_frame_bytes=settings.max_request_bytes, max_connections=settings.max_connections),
            epoch=0 if owned is None else owned.epoch,
        )
        writes = await asyncio.to_thread(Writes, self.broker)
        self._rest.push_async_callback(asyncio.to_thread, writes.close)
        logs = LogApi(aio, projects, writes, pubsub.rules, settings.log_read_rate)
        self._rest.callback(logs.close)
        router = self._open_router(aio, projects, pubsub.rules) if settings.router is not None else None
        hub: HubServer | None = None
        if settings.hub:
            self.hub = HubHost(settings, aio, clock=self._clock, projects=projects, keyring=keyring)
            await self.hub.start()
            hub = HubServer(self.hub.service, origins=settings.hub_origins)
        console = self._open_console(service, router, keyring)
        traffic = Traffic()
        routes = [
            *console.routes(),
            *pubsub.routes(),
            *queue_routes(queues, settings.max_request_bytes),
            *native.routes(),
            *logs.routes(),
            *BackupApi(settings).routes(),
            *([] if hub is None else hub.routes()),
            *([] if owned is None else owned.routes),
            *monitoring_routes(
                version=__version__,
                problems=self._problems,
                collectors=[
                    process_collector(version=__version__, lag=lag),
                    traffic_collector(traffic),
                    broker_collector(self.broker, projects, settings.metrics_max_series),
                    pubsub.collect,
                    native.collect,
                    logs.collect,
                    *([] if router is None else [router_collector(router.view)]),
                    *([] if hub is None else [hub.collect]),
                    *([] if owned is None else owned.collectors),
                ],
            ),
        ]
        if router is not None:
            routes = routes_with_server(
                routes,
                router.view,
                version=__version__,
                is_development=settings.router_development,
                leads=self._router_leads,
            )
        table = documented(routes, version=__version__, is_secured=keyring is not None, examples=EXAMPLES, home=console.home)
        sockets = SocketLimits(max_frame_bytes=settings.max_request_bytes, max_connections=settings.max_connections)
        resp, rpc = Resp3Server(queues, gate=guard, limits=sockets), SynapRpcServer(queues, gate=guard, limits=sockets)
        http = HttpServer(
            table,
            gate=gate,
            limits=HttpLimits(max_request_bytes=settings.max_request_bytes, max_connections=settings.max_connections),
            origins=settings.cors_origins,
            traffic=traffic,
            hosts=hosts_of(settings),
            relay=self._relay,
            takeovers=[] if owned is None else [_relay_entry(owned.relay_key, lambda: http, native, resp, rpc)],
        )
        self._apis += [http, pubsub, native, resp, rpc]
        await self._listen(http, pubsub, native, resp, rpc)
        if router is not None:
            # Last: its queues and targets may be on this server.
            await router.start()

    async def _listen(
        self, http: HttpServer, pubsub: GoogleApi, native: NativeServer, resp: Resp3Server, rpc: SynapRpcServer
    ) -> None:
        settings = self.settings
        tls = tls_of(settings)
        self.port = await self._listening("port", http.start(settings.host, settings.port, tls_of(settings, PROTOCOLS)))
        # A server that runs for its router needs no gRPC, unless the port is set.
        grpc_port = settings.grpc_port or None if self._router_leads else settings.grpc_port
        self.grpc_port = await self._listening("grpc_port", pubsub.start(settings.host, grpc_port, _tls_pair(settings)))
        if settings.native_port is not None:
            self.native_port = await self._listening("native_port", native.start(settings.host, settings.native_port, tls))
        if settings.resp_port is not None:
            self.resp_port = await self._listening("resp_port", resp.start(settings.host, settings.resp_port, tls))
        if settings.rpc_port is not None:
            self.rpc_port = await self._listening("rpc_port", rpc.start(settings.host, settings.rpc_port, tls))

    async def _listening(self, name: str, start: Awaitable[T]) -> T:
        """Open a port; an error names the port."""
        try:
            return await start
        except OSError as error:
            port, host = getattr(self.settings, name), self.settings.host
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            flag = f"--{name.replace('_', '-')}"
            raise FailedPrecondition(
                f"cannot listen on {host}, {name} {port}: {reason}",
                hint=f"choose another port with {flag}, 0 for a free one"
                + (", or stop the program that uses this one" if error.errno == errno.EADDRINUSE else ""),
            ) from None

    def _open_router(self, aio: AsyncBroker, projects: Projects, rules: DeliveryRules) -> RouterHost:
        from penstock.router.host import RouterHost  # noqa: PLC0415  # its libraries are another extra

        self.router = RouterHost(self.settings, aio, clock=self._clock, environment=os.environ, projects=projects, rules=rules)
        self._apis.append(self.router)
        return self.router

    def _open_console(self, service: Service, router: RouterHost | None, keyring: Keyring | None) -> Console:
        settings = self.settings
        console = Console(
            service,
            has_log_api=has_arrow(),
            router=None if router is None else router.view,
            hub=None if self.hub is None else self.hub.service,
            settings=settings,
            keyring=keyring,
        )
        console.start()
        self._rest.callback(console.stop)
        return console

    async def stop(self, grace_seconds: float | None = None) -> None:
        """Stop cleanly, within the settings' limit or another one. Safe to call twice."""
        self._is_stopping = True
        if self._aio is not None:
            self._aio.stopping.set()
        grace = self.settings.shutdown_seconds if grace_seconds is None else grace_seconds
        until = monotonic() + int(grace * SECOND)
        ended: list[object] = []
        if self.hub is not None:
            # Its clients get the reason before the HTTP port closes their sockets.
            ended += await asyncio.gather(self.hub.stop(grace / 2), return_exceptions=True)
        apis, self._apis = self._apis, []
        stops = [api.stop(max(until - monotonic(), 0) / SECOND) for api in apis]
        ended += await asyncio.gather(*stops, return_exceptions=True)
        # Whatever error an API had, the broker is flushed and closed.
        await self._rest.aclose()
        for problem in ended:
            if isinstance(problem, BaseException):
                raise problem

    async def abort(self) -> None:
        """Close the broker at once; running calls are cancelled."""
        await asyncio.to_thread(self.broker.close)

    def _problems(self) -> Iterator[str]:
        if self._is_stopping:
            yield "the server is stopping"
        if self.broker.health is not None:
            yield f"the journal cannot write: {self.broker.health}"


def run(settings: Settings, *, router_leads: bool = False) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    set_up_logs(settings.log_level, settings.log_format)
    sys.setswitchinterval(SWITCH_SECONDS)
    _allow_connections(settings.max_connections)
    _bound_arenas()
    return uvloop.run(_serve(settings, router_leads=router_leads))


async def _serve(settings: Settings, *, router_leads: bool) -> int:
    started = monotonic()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server, supervisor = _serving(settings, router_leads=router_leads), Supervisor(os.environ)
    await server.start()
    # Objects loaded by now stay: the collector need not check them again, which would stop every call for tens of milliseconds.
    gc.collect()
    gc.freeze()
    log.info("ready in %.2f s", (monotonic() - started) / SECOND)
    for line in _greeting(server):
        log.info(line)
    supervisor.ready(f"serving {settings.url(server.port)}")
    try:
        return await _until_stopped(server, stopping, supervisor)
    finally:
        supervisor.close()


def _serving(settings: Settings, *, router_leads: bool) -> Server | Node:
    if settings.journal is None:
        return Server(settings, router_leads=router_leads)
    from penstock.server.nodes.node import Node  # noqa: PLC0415  # its library is another extra

    return Node(settings, router_leads=router_leads)


async def _until_stopped(server: Server | Node, stopping: asyncio.Event, supervisor: Supervisor) -> int:
    """Wait for a signal, then stop; returns the exit code."""
    settings = server.settings
    failure = await _wait_for_stop(stopping, server)
    limit = settings.shutdown_seconds if server.router is None else max(settings.shutdown_seconds, server.router.stop_seconds)
    log.info("stopping: finishing what runs, %g s at most; a second signal stops at once", limit)
    supervisor.stopping("finishing what runs")
    stopping.clear()
    finished, hurried = asyncio.create_task(server.stop()), asyncio.create_task(stopping.wait())
    await asyncio.wait([finished, hurried], return_when=asyncio.FIRST_COMPLETED)
    if not finished.done():
        log.warning("stopping at once: running calls are cut off, what is confirmed is kept")
        finished.cancel()
        await server.abort()
        return 1
    await finished
    hurried.cancel()
    log.info("stopped")
    if failure is not None:
        log.error("%s", failure)
    return 0 if failure is None else 1


async def _wait_for_stop(stopping: asyncio.Event, server: Server | Node) -> BaseException | None:
    """Wait for a signal, or for a router that cannot start; returns why it cannot."""
    told: asyncio.Future[object] = asyncio.ensure_future(stopping.wait())
    if server.router is None:
        await told
        return None
    failed: asyncio.Future[object] = server.router.lifecycle.failed
    await asyncio.wait([told, failed], return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    return failed.exception() if failed.done() else None


def _relay_entry(
    key: bytes, http: Callable[[], HttpServer], native: NativeServer, resp: Resp3Server, rpc: SynapRpcServer
) -> RelayEntry:
    ports = {"native": native.protocol, "resp": resp.protocol, "rpc": rpc.protocol}
    return RelayEntry(key, {"http": lambda: http().protocol(), **ports})


def _greeting(server: Server | Node) -> Iterator[str]:
    """Where the server listens, and how to try it."""
    settings = server.settings
    url = settings.url(server.port)
    yield f"HTTP and WebSocket  {url}  (try {url}/docs)"
    if server.hub is not None:
        advice = "needs a token" if server.hub.asks_for_token else f"try penstock hub listen '#' --server {url}"
        yield f"hub (WebSocket)     {url.replace('http', 'ws', 1)}/ws  ({advice})"
    if server.router is not None:
        yield f"router              {url}/monitoring/dashboard  (try penstock router status --server {url})"
    needs = [word for word, is_on in (("TLS", settings.tls_cert is not None), ("a token", settings.auth == "token")) if is_on]
    if server.grpc_port is not None:
        address = f"{settings.host}:{server.port}"
        advice = f"needs {' and '.join(needs)}" if needs else f"export PUBSUB_EMULATOR_HOST={address}"
        yield f"Pub/Sub             {address}  ({advice})"
        yield f"gRPC (Pub/Sub)      {settings.host}:{server.grpc_port}  (the same, for gRPC alone)"
    if server.native_port is not None:
        advice = f"needs {' and '.join(needs)}" if needs else f'PubSub("{url}")'
        yield f"native (client)     {settings.host}:{server.native_port}  ({advice})"
    if server.resp_port is not None:
        yield f"RESP3 (queues)      {settings.host}:{server.resp_port}"
    if server.rpc_port is not None:
        yield f"SynapRPC (queues)   {settings.host}:{server.rpc_port}"
    if not has_arrow():
        yield f"log API (Spark)     off: pyarrow is not installed  ({how_to_install('arrow')})"
    kept = "in PostgreSQL" if settings.journal is not None else "in memory only" if settings.memory else f"in {settings.data_dir}"
    yield f"messages are kept   {kept}"


def hosts_of(settings: Settings) -> set[str]:
    """The host names of this server's own pages. On a local address it answers to no others, otherwise to any."""
    own = {settings.host, urlsplit(settings.url(0)).hostname or ""}
    return own if is_loopback(settings.host) else {*own, ANY_HOST}


def tls_of(settings: Settings, protocols: Sequence[str] = ()) -> ssl.SSLContext | None:
    """The TLS settings of a port; `protocols` are those that clients may choose from, in the server's order of preference."""
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"tls_cert {str(settings.tls_cert)!r} and tls_key {str(settings.tls_key)!r} cannot be used: {error}",
            hint="expected a PEM certificate chain and its PEM private key, without a passphrase",
        ) from None
    if protocols:
        context.set_alpn_protocols([*protocols])
    return context


def _tls_pair(settings: Settings) -> tuple[bytes, bytes] | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return settings.tls_key.read_bytes(), settings.tls_cert.read_bytes()


def _bound_arenas() -> None:
    """Keep the allocator from holding memory after large requests: by default every thread keeps memory of its own."""
    with suppress(OSError, AttributeError):  # the C library is not GNU's
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def _allow_connections(count: int) -> None:
    """Raise the limit of open files to what this process may need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count * 4 + 1_000  # a connection that is relayed to gRPC needs three
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
