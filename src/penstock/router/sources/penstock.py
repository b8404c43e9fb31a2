"""Penstock's own queues, by the URIs of the router. How they are reached is injected: the router does not depend on a broker.

penstock:///queues/orders               a work queue of the broker in this process; created if it does not exist
penstock:///subscriptions/orders-hook   a subscription; the broker itself keeps the order of its ordering keys
penstock://host:8087/queues/orders      the same at a server; its token is in PENSTOCK_TOKEN, its project in PENSTOCK_PROJECT
penstocks://host:8087/queues/orders     with TLS
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.router.core.config import QueueConfig, shown_uri
from penstock.router.source import Source, SourceContext


class Kind(StrEnum):
    """What kind of queue a URI names."""

    QUEUE = "queues"
    SUBSCRIPTION = "subscriptions"


class LocalQueues(Protocol):
    """The queues of a broker in this process."""

    def open(self, kind: Kind, name: str, config: QueueConfig) -> Source:
        """A source of one of them, not started."""


class RemoteQueues(Protocol):
    """The queues of other Penstock servers."""

    def open(self, server: str, kind: Kind, name: str, config: QueueConfig, environment: Mapping[str, str]) -> Source:
        """A source of a queue at a server such as `penstock://host:port`, not started."""


def open_source(config: QueueConfig, context: SourceContext) -> Source:
    parts = _split(config.uri)
    kind, _, name = parts.path.removeprefix("/").partition("/") if parts is not None else ("", "", "")
    is_whole = parts is not None and not parts.query and not parts.fragment and "@" not in parts.netloc
    if parts is None or not is_whole or kind not in set(Kind) or not name or "/" in name:
        raise InvalidArgument.of(
            "uri",
            shown_uri(config.uri),
            "penstock:///queues/NAME, penstock:///subscriptions/NAME or penstock://host:port/queues/NAME",
            hint="a token is given in PENSTOCK_TOKEN, and what is not a letter, a digit or one of -._~ in a name as %XX",
        )
    if not parts.netloc:
        if context.local is None:
            raise FailedPrecondition(
                f"{shown_uri(config.uri)!r} is a queue of this process, and no broker runs in it",
                hint="name the server, as in penstock://127.0.0.1:8087/queues/NAME, or run the router with `penstock serve`",
            )
        return context.local.open(Kind(kind), unquote(name), config)
    if context.remote is None:
        raise FailedPrecondition(f"{shown_uri(config.uri)!r} is at a server, and this router was given no way to servers")
    return context.remote.open(f"{parts.scheme}://{parts.netloc}", Kind(kind), unquote(name), config, context.environment)


def _split(uri: str) -> SplitResult | None:
    try:
        return urlsplit(uri)
    except ValueError:
        return None
