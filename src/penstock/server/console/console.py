"""The console of a server, put together: its files, its operations over HTTP, and its live connection."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from penstock.access import Keyring, Principal, Verb
from penstock.api.operations import Operations
from penstock.api.service import Service
from penstock.config import Settings
from penstock.durations import to_datetime
from penstock.http.routes import Handler, Route
from penstock.hub.service import HubService
from penstock.router.monitoring.view import RouterView
from penstock.server.console.audit import Audit
from penstock.server.console.dead_letters import DeadLetterPages
from penstock.server.console.files import Files
from penstock.server.console.live import Live
from penstock.server.console.messages import MessagePages
from penstock.server.console.overview import OverviewPage
from penstock.server.console.parts import PartPages, open_breakers
from penstock.server.console.payloads import SHOWN_BYTES, Payloads
from penstock.server.console.queues import QueuePages
from penstock.server.console.requests import ROWS, Action, Caller, NoParameters, View
from penstock.server.console.sampler import Sampler
from penstock.server.console.settings import SettingsPage
from penstock.server.console.streams import StreamPages
from penstock.values.projects import check_project


class TokenInfo(msgspec.Struct):
    """The caller, without the secret."""

    id: str
    project: str | None
    names: list[str]


class Parts(msgspec.Struct):
    """The parts of this server beside the broker."""

    router: bool
    hub: bool
    log_api: bool


class Session(msgspec.Struct, kw_only=True):
    """The caller, their permissions, and the parts of this server."""

    version: str
    now: datetime
    started_at: datetime
    project: str
    projects: list[str]
    needs_token: bool
    token: TokenInfo | None
    verbs: list[str]
    is_durable: bool
    problem: str | None
    parts: Parts
    payloads: str
    payload_bytes: int
    page_rows: int


class Console:
    """The console. Create it inside the running loop; `start` it when the broker is open, and `stop` it before that is closed."""

    def __init__(
        self,
        service: Service,
        *,
        settings: Settings,
        keyring: Keyring | None,
        router: RouterView | None,
        hub: HubService | None,
        has_log_api: bool,
    ) -> None:
        self._service, self._broker = service, service.aio.broker
        self._needs_token, self._payloads = keyring is not None, settings.console_payloads
        self._parts = Parts(router is not None, hub is not None, has_log_api)
        aio, projects = service.aio, service.projects
        self._files = Files()
        self._sampler = Sampler(aio, projects)
        audit = Audit(aio, projects)
        overview = OverviewPage(
            aio,
            self._sampler,
            version=service.version,
            started_at=service.started_at,
            data_dir=None if settings.memory else settings.data_dir,
            open_breakers=lambda: [] if router is None else open_breakers(router),
        )
        queues = QueuePages(aio, self._sampler, audit)
        shown = Payloads(settings.console_payloads)
        self._streams = streams = StreamPages(aio, projects, shown)
        self._dead = dead = DeadLetterPages(aio, self._sampler, streams, shown, audit)
        messages = MessagePages(aio, streams)
        parts = PartPages(aio, self._sampler, shown, audit, router=router, hub=hub)
        server = SettingsPage(settings, keyring, audit)
        session = View("session", "/console/api/session", "The caller", NoParameters, self._answer_session, Session, None)
        self._views: list[View[Any]] = [
            session,
            *overview.views(),
            *queues.views(),
            *streams.views(),
            *messages.views(),
            *dead.views(),
            *parts.views(),
            *server.views(),
        ]
        self._actions: list[Action[Any]] = [
            *queues.actions(),
            *streams.actions(),
            *dead.actions(),
            *parts.actions(),
            *server.actions(),
        ]
        self._live = Live(self._views, self.caller, session=self.session, pulse=overview.pulse, now=self._broker.clock.now)

    @property
    def home(self) -> Handler:
        """The handler for browsers at `/`."""
        return self._files.shell

    def routes(self) -> list[Route]:
        """All routes."""
        return [
            *self._files.routes(),
            self._live.route(),
            self._streams.download(self.caller),
            self._dead.export(self.caller),
            *(view.route(self.caller) for view in self._views),
            *(action.route(self.caller) for action in self._actions),
        ]

    def start(self) -> None:
        """Start sampling the totals."""
        self._sampler.start()

    def stop(self) -> None:
        """Stop sampling and sending. Can be called twice."""
        self._dead.stop()
        self._sampler.stop()
        self._live.stop()

    def caller(self, principal: Principal, project: str | None) -> Caller:
        """The caller, and the project: the named one, their own, or the server's default."""
        named = project or principal.project or self._service.projects.default
        return Caller(Operations(self._service, principal, check_project(named)))

    async def session(self, caller: Caller) -> Session:
        """The caller."""
        await self._sampler.sample()
        principal, broker, service = caller.principal, self._broker, self._service
        is_token = bool(principal.token_id)
        token = TokenInfo(principal.token_id, principal.project, [*principal.patterns]) if is_token else None
        seen = {project for project in self._sampler.projects() if principal.may(Verb.READ, project)}
        return Session(
            version=service.version,
            now=to_datetime(broker.clock.now()),
            started_at=to_datetime(service.started_at),
            project=caller.project,
            projects=sorted(seen | {caller.project}),
            needs_token=self._needs_token,
            token=token,
            verbs=sorted(verb for verb in Verb if principal.may(verb, caller.project)),
            is_durable=broker.is_durable,
            problem=broker.health,
            parts=self._parts,
            payloads=self._payloads,
            payload_bytes=SHOWN_BYTES,
            page_rows=ROWS,
        )

    async def _answer_session(self, caller: Caller, _: NoParameters) -> Session:
        return await self.session(caller)
