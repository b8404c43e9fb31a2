"""The Google Pub/Sub API over gRPC, and over REST on the HTTP port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from penstock.access import Principal
from penstock.api.schemas import Schemas
from penstock.broker.aio import AsyncBroker
from penstock.broker.subscription_rules import SubscriptionRules
from penstock.google import messages, wire
from penstock.google.core.push_endpoints import Endpoints
from penstock.google.expiry import ExpirySweeper
from penstock.google.fast_calls import FastCalls
from penstock.google.grpc_port import GrpcLimits, GrpcServer
from penstock.google.iam import IamPolicies
from penstock.google.oidc import TokenIssuer
from penstock.google.publisher import Publisher
from penstock.google.push import Pushers
from penstock.google.resources import Resources
from penstock.google.rest import rest_routes
from penstock.google.schema_service import SchemaService
from penstock.google.streaming import Streams
from penstock.google.subscriber import Subscriber
from penstock.http.authentication import Gate
from penstock.http.http2_relay import Http2Relay
from penstock.http.monitoring.samples import Sample
from penstock.http.routes import Route
from penstock.values.projects import Projects


class GoogleApi:
    """All parts of the API, put together."""

    def __init__(
        self,
        aio: AsyncBroker,
        projects: Projects,
        gate: Gate,
        *,
        limits: GrpcLimits,
        url: Callable[[], str],
        push_allow: Iterable[str],
        push_public_only: bool,
        relay: Http2Relay,
    ) -> None:
        self._resources = resources = Resources(aio, projects)
        schemas = SchemaService(resources)
        self.rules = SubscriptionRules(aio.broker, resources.in_use)
        """Hooks for the deliveries of other APIs: use keeps a subscription from expiring."""
        self._publisher = Publisher(resources)
        endpoints = Endpoints(push_allow, public_only=push_public_only)
        self._subscriber = Subscriber(resources, self.rules, endpoints)
        self._services = [self._publisher, self._subscriber, schemas, IamPolicies(resources, Schemas(aio))]
        self._expiry_sweeper = ExpirySweeper(resources)
        self._issuer = TokenIssuer(resources, url)
        self._pushers = Pushers(resources, self.rules, self._issuer, endpoints)
        streams = Streams(resources, self._subscriber, self.rules)
        self._grpc = GrpcServer(
            self._services,
            streams,
            gate=gate,
            overrides={
                "/google.pubsub.v1.Publisher/Publish": self._publish,
                "/google.pubsub.v1.Subscriber/Pull": self._pull,
            },
            limits=limits,
            relay=relay,
        )

    async def start(self, host: str, port: int | None, tls: tuple[bytes, bytes] | None = None) -> int | None:
        """Start, and listen for gRPC unless the port is None; returns the port. `tls`: key and certificates, PEM."""
        self._expiry_sweeper.start()
        self._pushers.start()
        return None if port is None else await self._grpc.start(host, port, tls)

    async def stop(self, grace_seconds: float) -> None:
        """End streams, and wait for running calls within the grace period."""
        await self._expiry_sweeper.stop()
        await asyncio.gather(self._grpc.stop(grace_seconds), self._pushers.stop(grace_seconds))

    def routes(self) -> list[Route]:
        """The REST routes of the API, for the HTTP port, and the routes with which endpoints check push tokens."""
        rest = rest_routes(self._services, FastCalls(self._publisher, self._subscriber).by_path)
        return [*rest, *self._issuer.routes()]

    def collect(self) -> Iterator[Sample]:
        """The metrics of push, for `/metrics`."""
        return self._pushers.collect()

    async def _publish(self, request: bytes, caller: Principal) -> bytes:
        """Publish, with the answer encoded directly."""
        parsed = messages.PublishRequest.FromString(request)
        return wire.published(await self._publisher.publish_ids(parsed, caller, len(request)))

    async def _pull(self, request: bytes, caller: Principal) -> bytes:
        """Pull, with the answer encoded directly."""
        return await self._subscriber.pull_bytes(messages.PullRequest.FromString(request), caller)
