"""What the Pub/Sub door made of topics and subscriptions, as the operations need to know it: schemas, transforms, push, expiry.

The operations own these ports. A server gives them the door's rules; a broker in somebody's own process has them loaded when the
first topic or subscription has any, because most have none and they cost half a second.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Protocol

import msgspec

from penstock.access import Principal
from penstock.broker.consumer import DeliveryRules
from penstock.broker.core.leases import Lease
from penstock.broker.core.queue import Queue
from penstock.errors import FailedPrecondition
from penstock.values.subscription import SubscriptionSpec
from penstock.wire.results import SchemaInfo


class Rules(DeliveryRules, Protocol):
    """The rules of topics too, and the schemas that they refer to."""

    @property
    def schemas(self) -> Schemas:
        """The schemas of the broker."""


class Schemas(Protocol):
    """Schemas by their full names, `projects/PROJECT/schemas/NAME`. Every method asks whether the caller may."""

    async def create(self, caller: Principal, name: str, kind: str, definition: str) -> SchemaInfo:
        """Create a schema with its first revision."""

    async def get(self, caller: Principal, name: str, revision: str | None) -> SchemaInfo:
        """The newest revision of a schema, or the named one."""

    async def listed(self, caller: Principal, project: str) -> list[SchemaInfo]:
        """The newest revision of every schema of a project that the caller may read."""

    async def revisions(self, caller: Principal, name: str) -> list[SchemaInfo]:
        """The revisions of a schema, the newest first."""

    async def commit(self, caller: Principal, name: str, definition: str) -> SchemaInfo:
        """Add a revision that messages of the one before can live with."""

    async def delete(self, caller: Principal, name: str) -> None:
        """Forget a schema."""

    async def validate(self, caller: Principal, project: str, kind: str, definition: str) -> None:
        """InvalidArgument for a definition that could not be stored."""

    async def validate_message(self, caller: Principal, name: str, data: bytes, encoding: str) -> None:
        """InvalidArgument for a message that does not fit."""

    async def create_topic(self, caller: Principal, name: str, schema: str, encoding: str, retention: float | None) -> None:
        """Create a topic, `projects/PROJECT/topics/NAME`, whose messages must fit a schema."""


def unavailable() -> Rules:
    """What `LateRules` loads where there is nothing to load: what has rules is refused, rather than its rules forgotten."""
    raise FailedPrecondition(
        "schemas, transforms and push subscriptions need protobuf, which is not installed here",
        hint="pip install 'penstock[server]'",
    )


class LateRules:
    """Rules that are loaded when something has any. `load` raises where they cannot be."""

    def __init__(self, load: Callable[[], Rules] = unavailable) -> None:
        self._load = load
        self._loaded: Rules | None = None

    @property
    def schemas(self) -> Schemas:
        """The schemas of the broker."""
        return self._rules().schemas

    def check_pulled(self, queue: Queue) -> None:
        """Whether a subscription may be pulled."""
        if has_form(queue.spec):
            self._rules().check_pulled(queue)

    def transforms(self, queue: Queue) -> bool:
        """Whether deliveries of a subscription must be looked at first."""
        return has_form(queue.spec) and self._rules().transforms(queue)

    async def ready(self, queue: Queue, leases: list[Lease], max_bytes: int) -> list[Lease]:
        """What is delivered of these leases."""
        return await self._rules().ready(queue, leases, max_bytes)

    def in_use(self, number: int) -> AbstractContextManager[None]:
        """Nothing expires: that is the work of a server."""
        return nullcontext()

    def _rules(self) -> Rules:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded


@lru_cache(maxsize=4096)
def has_form(spec: bytes) -> bool:
    """Whether the stored settings of a subscription hold what only the Pub/Sub door understands."""
    return bool(msgspec.msgpack.decode(spec, type=SubscriptionSpec).form)
