"""One node of a cluster: a server that owns the log in PostgreSQL, or a standby that can take it over.

    standby ── the owner's session has ended ──> owner ── its epoch is over ──> standby ── stop ──> …

A standby listens on every port and relays to the owner. To become the owner, a node opens the journal, which raises the epoch,
and starts the server on the same ports; to step down, it stops that server, whose clients get temporary errors, and is a standby
again. Safety does not depend on the decisions here: every commit checks the epoch. They only decide which node tries.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import __version__
from penstock.clock import Clock, SystemClock, monotonic
from penstock.config import Settings
from penstock.durations import SECOND
from penstock.errors import InvalidArgument, LogInUse, PenstockError, Unavailable
from penstock.http.authentication import TokenGate
from penstock.http.http2_relay import PROTOCOLS
from penstock.http.limits import HttpLimits
from penstock.http.monitoring import monitoring_routes
from penstock.journal.postgres import IDLE_SECONDS, PostgresJournal
from penstock.server.metrics import LoopLag, process_collector
from penstock.server.nodes.members import RELAY_KEY, Members, OwnerInfo
from penstock.server.nodes.relay import Owner, Relay
from penstock.server.nodes.replica import Replica
from penstock.server.nodes.routes import ClusterInfo, node_collector, node_routes
from penstock.server.nodes.standby import NO_OWNER, Standby
from penstock.server.server import Ownership, Server, hosts_of, tls_of
from penstock.server.tokens import keyring_of
from penstock.values.projects import Projects

if TYPE_CHECKING:
    from penstock.router.host import RouterHost

log = logging.getLogger("penstock.server")

T = TypeVar("T")

LOOK_SECONDS = 0.25
"""How often a standby checks whether the log is free."""
OWNER_LOOK_SECONDS = 1.0
ANSWER_SECONDS = 6.0
"""The time limit for an answer of the database, including connecting."""
CUT_OFF = 2 * IDLE_SECONDS * SECOND
"""After this long without an answer of the database an owner gives up the log: another node may own it."""
STEP_DOWN_SECONDS = 1.0
"""How long calls may take to finish when nothing can be stored any more."""
OTHERS = ("grpc", "native", "resp", "rpc")
"""The ports other than that of HTTP."""


class Node:
    """Start once; stop is always safe. Belongs to one event loop."""

    hub = None
    """For the greeting, which shows the hub of a server."""

    def __init__(self, settings: Settings, clock: Clock | None = None, *, router_leads: bool = False) -> None:
        assert settings.journal is not None, "a node shares a log in PostgreSQL"
        if settings.public_url is None and settings.host in {"0.0.0.0", "::"}:
            raise InvalidArgument(
                f"host is {settings.host!r} and public_url is not set: nodes and clients do not know how to reach this node",
                hint="set public_url to http://HOST:PORT of this node",
            )
        self.settings = settings
        """With the real port numbers, after the start."""
        self._journal = settings.journal
        self._clock = clock or SystemClock()
        self._router_leads = router_leads
        self.server: Server | None = None
        """Set while this node owns the log."""
        self.epoch = 0
        """The newest known epoch."""
        self.heard_at = monotonic()
        self._owned: PostgresJournal | None = None
        """The journal, set while this node owns the log."""
        self._known: OwnerInfo | None = None
        self._relay = Relay(self._owner, self._trust)
        self._standby: Standby | None = None
        self._thread = ThreadPoolExecutor(1, "penstock-nodes")
        """The thread for queries to the database, one after the other."""
        self._lag = LoopLag()
        self._name = ""
        self._members: Members | None = None
        self._life: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._is_lost = False
        self._is_stopping = False
        self._trouble: str | None = None
        self._replica: Replica | None = None
        """The routes that a read node serves itself."""

    # ── start ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Listen, and take the log if it has no owner; an error in the database's address is raised."""
        self._lag.start()
        try:
            if self.settings.read_only:
                projects, rate = Projects(self.settings.project), self.settings.log_read_rate
                self._replica = await self._ask(partial(Replica, self._journal, projects, rate))
            await self._stand_by()
            self._name = self.settings.node or f"{socket.gethostname()}:{self.port}"
            reports = self._replica is None
            self._members = Members(self._journal, self._name, self.settings.url(self.port), reports=reports)
            await self._look()
            if self._may_take_over():
                await self._take_over()
        except BaseException:
            await self.stop()
            raise
        self._life = asyncio.create_task(self._live(), name="penstock node")

    async def stop(self) -> None:
        """Stop serving, give up the log, and leave the cluster. Safe to call twice."""
        self._is_stopping = True
        self._wake.set()
        life, self._life = self._life, None
        if life is not None:
            await asyncio.wait([life])
        if self._members is not None:
            with suppress(PenstockError):
                await self._ask(partial(self._members.look, "stopping"))
        try:
            if self.server is not None:
                await self._stop_owner(self.server)
            if self._standby is not None:
                await self._standby.stop(self.settings.shutdown_seconds)
        finally:
            self.server = self._standby = None
            if self._members is not None:
                members, self._members = self._members, None
                await self._ask(members.leave)
            if self._replica is not None:
                await self._ask(self._replica.close)
            self._lag.stop()
            self._thread.shutdown(wait=False)

    async def _stop_owner(self, server: Server) -> None:
        """Stop the server, even if a commit waits for a missing standby of PostgreSQL."""
        stopping = asyncio.create_task(server.stop())
        await asyncio.wait([stopping], timeout=self.settings.shutdown_seconds + STEP_DOWN_SECONDS)
        if not stopping.done() and self._owned is not None:
            log.warning("the database does not answer: the outcome of the last commit is unknown")
            self._owned.abandon()
        await stopping

    async def abort(self) -> None:
        """Close the broker at once; running calls are cancelled."""
        if self.server is not None:
            await self.server.abort()

    async def _live(self) -> None:
        """Check the owner, take over and step down, until the node is stopped."""
        while not self._is_stopping:
            try:
                if self._is_lost:
                    await self._step_down()
                await self._look()
                if self._may_take_over():
                    await self._take_over()
            except PenstockError as error:
                if str(error) != self._trouble:
                    log.warning("%s", error)
                self._trouble = str(error)
                self._give_up_if_cut_off()
            else:
                self._trouble = None
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS if self.state == "standby" else OWNER_LOOK_SECONDS):
                    await self._wake.wait()

    def _give_up_if_cut_off(self) -> None:
        """Give up the log if neither the writer nor other queries get an answer: clients then go to the next owner."""
        if self._owned is not None and monotonic() - max(self.heard_at, self._owned.alive_at) > CUT_OFF:
            log.warning("the database has not answered for %d s", CUT_OFF // SECOND)
            self._owned.abandon()
            self._lose()

    async def _look(self) -> None:
        assert self._members is not None, "it is set by start"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                known = await self._ask(partial(self._members.look, self.state))
        except TimeoutError:
            self._members.cut()
            raise Unavailable(f"the database has not answered for {ANSWER_SECONDS:g} s") from None
        self.heard_at = monotonic()
        if known is not None and known.epoch > self.epoch:
            self.epoch = known.epoch
            log.info(
                "node %s owns the log since %s, epoch %d", known.node, known.since.isoformat(timespec="seconds"), known.epoch
            )
            self._relay.cut(before=known.epoch)
        self._known = known
        if self._replica is not None:
            await self._ask(self._replica.measure)

    def _may_take_over(self) -> bool:
        is_free = self._known is None or not self._known.is_held
        return is_free and self.server is None and self._replica is None and not self._is_stopping

    async def _take_over(self) -> None:
        loop = asyncio.get_running_loop()

        def lost() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._lose)

        self._is_lost = False
        self._wake.clear()
        try:
            journal = await self._ask(
                partial(
                    PostgresJournal,
                    self._journal,
                    node=self._name,
                    advertised=self.settings.url(self.port),
                    version=__version__,
                    on_lost=lost,
                )
            )
        except LogInUse:
            return  # another node was faster
        key = await self._ask(partial(_relay_key, journal))
        self.epoch = journal.epoch
        standby, self._standby = self._standby, None
        assert standby is not None, "it was a standby"
        await standby.stop()
        ownership = Ownership(journal, journal.epoch, key, node_routes(self.info), [node_collector(self)])
        server = Server(self.settings, self._clock, router_leads=self._router_leads, ownership=ownership)
        try:
            await server.start()
        except BaseException:
            await self._ask(journal.close)
            await self._stand_by()
            raise
        self.server, self._owned = server, journal
        log.info("this node, %s, owns the log now, epoch %d", self._name, journal.epoch)

    def _lose(self) -> None:
        self._is_lost = True
        self._wake.set()

    async def _step_down(self) -> None:
        """Give up the log that another node owns: end every connection with a temporary error, and become a standby."""
        self._is_lost = False
        self._wake.clear()
        server, self.server, self._owned = self.server, None, None
        if server is None:
            return
        log.warning("this node, %s, has lost the log and stands by", self._name)
        try:
            await server.stop(STEP_DOWN_SECONDS)
        except PenstockError as error:
            log.debug("stopping without the log: %s", error)
        await self._stand_by()

    async def _stand_by(self) -> None:
        settings = self.settings
        keyring = await asyncio.to_thread(keyring_of, settings) if settings.auth == "token" else None
        about = monitoring_routes(
            version=__version__,
            problems=self._problems,
            collectors=[
                process_collector(version=__version__, lag=self._lag),
                node_collector(self),
                *([] if self._replica is None else [self._replica.collect]),
            ],
        )
        if self._replica is not None:
            about += self._replica.routes()
        standby = self._standby = Standby(
            self._relay,
            self._owner,
            [*about, *node_routes(self.info)],
            gate=TokenGate(keyring, None, self._clock),
            limits=HttpLimits(max_request_bytes=settings.max_request_bytes, max_connections=settings.max_connections),
            hosts=hosts_of(settings),
        )
        found: dict[str, Any] = {"port": await standby.start_http(settings.host, settings.port, tls_of(settings, PROTOCOLS))}
        for name in OTHERS:
            port = getattr(settings, f"{name}_port")
            if port is not None and not (name == "grpc" and self._router_leads and not port):
                tls = tls_of(settings, PROTOCOLS[1:] if name == "grpc" else ())
                found[f"{name}_port"] = await standby.start(name, settings.host, port, tls)
        self.settings = replace(settings, **found)

    # ── state ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def state(self) -> str:
        if self._is_stopping:
            return "stopping"
        return "owner" if self.server is not None else "standby" if self._replica is None else "read-only"

    @property
    def is_owner(self) -> bool:
        return self.server is not None

    @property
    def relayed(self) -> int:
        return len(self._relay)

    @property
    def router(self) -> RouterHost | None:
        return None if self.server is None else self.server.router

    @property
    def port(self) -> int:
        return self.settings.port

    @property
    def grpc_port(self) -> int | None:
        return self.settings.grpc_port

    @property
    def native_port(self) -> int | None:
        return self.settings.native_port

    @property
    def resp_port(self) -> int | None:
        return self.settings.resp_port

    @property
    def rpc_port(self) -> int | None:
        return self.settings.rpc_port

    async def info(self) -> ClusterInfo:
        """Query the database for the nodes."""
        members = self._members
        if members is None:
            raise Unavailable("this node is stopping")

        def ask() -> ClusterInfo:
            known = members.look(self.state)
            nodes = members.nodes()
            return ClusterInfo(
                self._name,
                0 if known is None else known.epoch,
                None if known is None else known.node,
                nodes,
                members.replicas(),
                None if self._replica is None else self._replica.lag_seconds,
            )

        return await self._ask(ask)

    def _owner(self) -> Owner | None:
        known = self._known
        # A standby of PostgreSQL has no locks. If this node was the last known owner, that has ended.
        if known is None or known.relay_key is None or not (known.is_held or self._replica is not None):
            return None
        if known.node == self._name and self.server is None:
            return None
        return Owner(known.epoch, known.address, known.relay_key)

    def _problems(self) -> Iterator[str]:
        if self._is_stopping:
            yield "the server is stopping"
        if self._owner() is None:
            yield NO_OWNER
        if self._trouble is not None:
            yield self._trouble

    def _trust(self) -> ssl.SSLContext:
        """The certificates that this node trusts at other nodes: those of the system, and its own, which nodes may share."""
        context = ssl.create_default_context()
        if self.settings.tls_cert is not None:
            context.load_verify_locations(self.settings.tls_cert)
        return context

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)


def _relay_key(journal: PostgresJournal) -> bytes:
    """The key that the nodes share; the first owner creates it."""
    key = journal.read_file(RELAY_KEY)
    if key is None:
        key = secrets.token_bytes(32)
        journal.write_file(RELAY_KEY, key)
    return key
