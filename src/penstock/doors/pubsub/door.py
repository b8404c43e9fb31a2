"""The Pub/Sub door: Google's API over gRPC, and the same as REST on the HTTP port."""

from __future__ import annotations

from penstock.access import Principal
from penstock.broker.aio import AsyncBroker
from penstock.doors.http import Gate, Route
from penstock.doors.pubsub import messages, wire
from penstock.doors.pubsub.fast_calls import FastCalls
from penstock.doors.pubsub.grpc_door import GrpcDoor
from penstock.doors.pubsub.iam import IamPolicies
from penstock.doors.pubsub.inspection import Inspection
from penstock.doors.pubsub.janitor import Janitor
from penstock.doors.pubsub.publisher import Publisher
from penstock.doors.pubsub.resources import Resources
from penstock.doors.pubsub.rest import rest_routes
from penstock.doors.pubsub.schema_service import SchemaService
from penstock.doors.pubsub.streaming import Streams
from penstock.doors.pubsub.subscriber import Subscriber
from penstock.projects import Projects


class PubSubDoor:
    """All of the door's parts, put together."""

    def __init__(self, aio: AsyncBroker, projects: Projects, gate: Gate, *, max_request_bytes: int) -> None:
        resources = Resources(aio, projects)
        schemas = SchemaService(resources)
        inspection = Inspection(resources, schemas)
        self._publisher = Publisher(resources, inspection)
        self._subscriber = Subscriber(resources, inspection)
        self._services = [self._publisher, self._subscriber, schemas, IamPolicies(resources, schemas)]
        self._janitor = Janitor(resources)
        streams = Streams(resources, self._subscriber, inspection)
        self._grpc = GrpcDoor(
            self._services,
            streams,
            gate=gate,
            overrides={
                "/google.pubsub.v1.Publisher/Publish": self._publish,
                "/google.pubsub.v1.Subscriber/Pull": self._pull,
            },
            max_request_bytes=max_request_bytes,
        )

    async def start(self, host: str, port: int, tls: tuple[bytes, bytes] | None = None) -> int:
        """Listen for gRPC; returns the port. `tls`: key and certificates, PEM."""
        self._janitor.start()
        return await self._grpc.start(host, port, tls)

    async def stop(self, grace_seconds: float) -> None:
        """End streams, finish what runs within the grace."""
        await self._janitor.stop()
        await self._grpc.stop(grace_seconds)

    def routes(self) -> list[Route]:
        """The REST form of the API, for the HTTP port."""
        return rest_routes(self._services, FastCalls(self._publisher, self._subscriber).by_path)

    async def _publish(self, request: bytes, caller: Principal) -> bytes:
        """Publish, with the answer written directly."""
        parsed = messages.PublishRequest.FromString(request)
        return wire.published(await self._publisher.publish_ids(parsed, caller, len(request)))

    async def _pull(self, request: bytes, caller: Principal) -> bytes:
        """Pull, with the answer written directly."""
        return await self._subscriber.pull_bytes(messages.PullRequest.FromString(request), caller)
