"""The routes of every node about itself and the others: `/nodes`, and metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

import msgspec
from aiohttp import web

from penstock.access import Verb
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.http.monitoring.samples import Metric, Sample
from penstock.http.request import Request, json_response
from penstock.http.routes import Operation, Reply, Route
from penstock.server.nodes.members import NodeInfo, ReplicaInfo

OWNER = Metric("penstock_node_owner", "gauge", "1 if this node owns the log, else 0.")
EPOCH = Metric("penstock_node_epoch", "gauge", "How often the log has changed its owner; 0 while that is not known.")
RELAYED = Metric("penstock_node_relayed_connections", "gauge", "Connections that this node relays to the owner.")
SILENT = Metric("penstock_node_database_silent_seconds", "gauge", "How long ago the database last answered this node.")


class ClusterInfo(msgspec.Struct):
    """The log, its owner, the nodes, and the standbys of PostgreSQL."""

    node: str
    """The node that answers."""
    epoch: int
    owner: str | None
    nodes: list[NodeInfo]
    replicas: list[ReplicaInfo]
    lag_seconds: float | None = None
    """How far the log that this node reads is behind; only of a read node."""


class NodeState(Protocol):
    """The state that is known without a query."""

    @property
    def is_owner(self) -> bool: ...
    @property
    def epoch(self) -> int: ...
    @property
    def relayed(self) -> int: ...
    @property
    def heard_at(self) -> int:
        """When the database last answered."""


def node_routes(info: Callable[[], Awaitable[ClusterInfo]]) -> list[Route]:
    """The routes; `info` queries the database."""

    async def nodes(_: Request) -> web.StreamResponse:
        return json_response(await info())

    operation = Operation(
        "The nodes of the cluster",
        "Who owns the log and since when, who stands by, and how far the standbys of PostgreSQL are behind.",
        ("monitoring",),
        replies={200: Reply("The nodes.", ClusterInfo)},
    )
    return [Route("GET", "/nodes", nodes, operation, verb=Verb.METRICS)]


def node_collector(state: NodeState) -> Callable[[], Iterator[Sample]]:
    """The metrics of a node, for `/metrics`."""

    def collect() -> Iterator[Sample]:
        yield Sample(OWNER, (), int(state.is_owner))
        yield Sample(EPOCH, (), state.epoch)
        yield Sample(RELAYED, (), state.relayed)
        yield Sample(SILENT, (), (monotonic() - state.heard_at) / SECOND)

    return collect
