"""From a queue's URI to its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.router.core.config import QueueConfig
from penstock.router.source import Source, SourceContext, open_source, schemes
from penstock.router.sources.penstock import Kind


class Asked(Exception):
    """What a source was asked for with."""


class Here:
    def open(self, kind: Kind, name: str, config: QueueConfig) -> Source:
        raise Asked(kind, name)


class There:
    def open(self, server: str, kind: Kind, name: str, config: QueueConfig, environment: Mapping[str, str]) -> Source:
        raise Asked(server, kind, name)


def opened(uri: str, **context: Any) -> None:
    open_source(QueueConfig("orders", uri), SourceContext(environment={}, clock=SystemClock(), **context))


@pytest.mark.parametrize(
    ("uri", "asked"),
    [
        ("penstock:///queues/orders", (Kind.QUEUE, "orders")),
        ("PENSTOCK:///queues/orders", (Kind.QUEUE, "orders")),
        ("penstock:///queues/a%2Fb%20c", (Kind.QUEUE, "a/b c")),
        ("penstock:///subscriptions/orders-hook", (Kind.SUBSCRIPTION, "orders-hook")),
        ("penstock://127.0.0.1:8087/queues/orders", ("penstock://127.0.0.1:8087", Kind.QUEUE, "orders")),
        ("penstock://[::1]:8087/subscriptions/s", ("penstock://[::1]:8087", Kind.SUBSCRIPTION, "s")),
        ("penstocks://broker/queues/orders", ("penstocks://broker", Kind.QUEUE, "orders")),
    ],
)
def test_a_penstock_uri_names_a_queue_here_or_there(uri: str, asked: tuple[object, ...]) -> None:
    with pytest.raises(Asked) as told:
        opened(uri, local=Here(), remote=There())
    assert told.value.args == asked


def test_a_penstock_uri_that_names_no_queue_is_refused_without_telling_a_secret(subtests: pytest.Subtests) -> None:
    for uri in [
        "penstock:",
        "penstock:///",
        "penstock:///queues",
        "penstock:///queues/",
        "penstock:///queues/a/b",
        "penstock:///topics/orders",
        "penstock:///queues/orders?x=1",
        "penstock:///queues/orders#x",
        "penstock://user:secret@host:8087/queues/orders",
        "penstock://[::1/queues/orders",
    ]:
        with subtests.test(uri=uri):
            with pytest.raises(InvalidArgument, match="penstock:///queues/NAME") as told:
                opened(uri, local=Here(), remote=There())
            assert "secret" not in str(told.value)


def test_a_uri_that_no_source_understands_is_refused_with_those_that_are(subtests: pytest.Subtests) -> None:
    for uri in ["", "orders", "kafka://broker/orders", "opening://x", "stomp-client://x", "../sqs://x", "://x"]:
        with subtests.test(uri=uri):
            with pytest.raises(InvalidArgument, match="http:, https:") as told:
                opened(uri)
            assert "penstock:" in str(told.value)


def test_what_is_needed_and_not_there_is_named() -> None:
    with pytest.raises(FailedPrecondition, match="no broker runs in it"):
        opened("penstock:///queues/orders")
    with pytest.raises(FailedPrecondition, match="no way to servers"):
        opened("penstock://host:8087/queues/orders")


def test_helpers_of_sources_are_no_schemes() -> None:
    found = schemes()
    assert {"http", "https", "penstock", "penstocks", "sqs"} <= {*found}
    assert not [scheme for scheme in found if "_" in scheme or scheme == "opening"]
