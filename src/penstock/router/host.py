"""A router with its environment: its configuration, its HTTP client, a broker for its records, and its standby."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import msgspec

from penstock.broker.aio import AsyncBroker
from penstock.broker.consumer import DeliveryRules
from penstock.clock import Clock
from penstock.config import Settings
from penstock.errors import FailedPrecondition
from penstock.http.client.allowed_addresses import AllowedAddresses
from penstock.http.client.client import HttpTransport
from penstock.router.broker_records import BrokerRecords, redriven
from penstock.router.configuration import Configuration, find_places
from penstock.router.core.config import RouterConfig
from penstock.router.core.outcome import Severity
from penstock.router.inspection import Inspection
from penstock.router.lifecycle import RouterLifecycle
from penstock.router.options import BreakerScope, RouterOptions
from penstock.router.router import DRAIN_SECONDS, ROUTER, STOP_POLLING_SECONDS, Router
from penstock.router.source import SourceContext, open_source
from penstock.router.sources.local import BrokerQueues
from penstock.router.sources.remote import ServerQueues
from penstock.router.standby import Standby
from penstock.values.projects import Projects

CACHE = "router-config.json"
"""The last known configuration, in the data directory."""


class RouterHost:
    """One router in this process. Create it inside the running loop."""

    stop_seconds = STOP_POLLING_SECONDS + DRAIN_SECONDS
    """How long polls, and then running calls, may take to end when the router stops."""

    def __init__(
        self,
        settings: Settings,
        aio: AsyncBroker,
        *,
        clock: Clock,
        environment: Mapping[str, str],
        projects: Projects | None = None,
        rules: DeliveryRules | None = None,
    ) -> None:
        self.options = options = options_of(settings)
        local = BrokerQueues(aio, projects=projects, rules=rules)
        context = SourceContext(
            environment=environment,
            clock=clock,
            local=local,
            remote=ServerQueues(),
            sqs_max_messages=settings.router_sqs_max_messages_per_poll,
            sqs_wait_seconds=settings.router_sqs_wait_time_seconds,
        )
        self._transport = HttpTransport(options, AllowedAddresses(options.allow_targets))
        self._records = BrokerRecords(aio, local)
        self.router = Router(lambda config: open_source(config, context), self._transport, self._records, options, clock)
        file, urls = _place(settings.router)
        configuration = Configuration(
            find_places(file=file, urls=urls, environment=environment),
            warn=self._warn,
            cache=settings.data_dir / CACHE if settings.data_dir is not None else None,
        )
        standby = settings.router_standby
        self.lifecycle = RouterLifecycle(
            self.router,
            configuration,
            widen=with_redriven,
            is_enabled=settings.router_enabled,
            election=None if standby is None else lambda told: Standby(standby, on_change=told, warn=self._warn, clock=clock),
        )
        self.view = Inspection(self.lifecycle)

    async def start(self) -> None:
        """Start; the first configuration is fetched in the background. See `lifecycle.failed`."""
        await self.lifecycle.start()

    async def stop(self, grace_seconds: float = 0) -> None:
        """Stop cleanly, within the router's own limits. Safe to call twice."""
        await self.lifecycle.stop()
        await self._transport.close()
        await self._records.flush()

    def _warn(self, category: str, severity: Severity, message: str, /) -> None:
        self.router.warn(category, severity, message, ROUTER)


def with_redriven(config: RouterConfig) -> RouterConfig:
    """The configuration with the queues for redriven dead letters added."""
    known = {queue.name: queue for queue in config.queues}
    for queue in config.queues:
        found = redriven(queue)
        if found is not None:
            known.setdefault(found.name, found)  # two queues may share a dead-letter queue
    return msgspec.structs.replace(config, queues=tuple(known.values()))


def options_of(settings: Settings) -> RouterOptions:
    file = settings.router_signing_secret_file
    return RouterOptions(
        fifo="strict" if settings.router_fifo == "strict" else "batch",
        payload="thin" if settings.router_payload == "thin" else "full",
        max_attempts=settings.router_max_attempts,
        request_timeout=settings.router_timeout,
        http_version="HTTP_2" if settings.router_http_version == "HTTP_2" else "HTTP_1_1",
        per_target=settings.router_per_target,
        breaker_scope=cast("BreakerScope", settings.router_breaker_scope),
        allow_targets=settings.router_allow,
        signing_secret=None if file is None else _secret(file),
        sync_interval=settings.router_sync_interval,
        max_pools=settings.router_max_pools,
        pool_warning_threshold=settings.router_pool_warning_threshold or max(settings.router_max_pools // 2, 1),
        is_development=settings.router_development,
    )


def _secret(file: Path) -> str:
    try:
        secret = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise FailedPrecondition(
            f"the file of the signing secret {str(file)!r} cannot be read: {why}", hint="write the secret into it, alone"
        ) from None
    if not secret or len(secret.split()) > 1:
        raise FailedPrecondition(
            f"the file of the signing secret {str(file)!r} holds {'more than one word' if secret else 'nothing'}",
            hint="write the secret into it, alone",
        )
    return secret


def _place(router: str | None) -> tuple[Path | None, str | None]:
    """The file or the URLs in a setting."""
    if router is None:
        return None, None
    return (None, router) if "://" in router else (Path(router), None)
