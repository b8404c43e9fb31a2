"""One browser for the console's tests, one server with a small shop and one without anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

import msgspec
import pytest

from penstock import Message
from penstock.durations import to_datetime
from penstock.errors import AlreadyExists
from penstock.pipeline.core.levels import Level, Sample, rows
from penstock.pipeline.core.triage import Group, report
from penstock.testing.server import LocalServer
from tests.integration.console.shop import Shop, fill
from tests.integration.hub.chromium import chromium


@dataclass
class ShopServer:
    """A server and what is in it."""

    url: str
    shop: Shop


@pytest.fixture(scope="session")
def devtools() -> Iterator[str]:
    with chromium() as address:
        yield address


@pytest.fixture(scope="module")
def shop() -> Iterator[ShopServer]:
    """Shared: a test that changes something uses a queue of its own."""
    with LocalServer() as server:
        filled = fill(server.broker)
        now = to_datetime(server.broker.clock.now())
        publish_triage(filled, now)
        publish_levels(filled, now)
        yield ShopServer(server.url, filled)


def publish_levels(shop: Shop, at: datetime) -> None:
    """Publish some windows of levels, as the metrics job does."""
    shop.topics.register_topic("_penstock.levels")
    samples = [
        Sample(
            at + timedelta(minutes=number),
            [
                Level("queue", "mail", ready=40 + number, oldest_seconds=60.0 * number, retries=3 * number),
                Level("queue", "mail", priority=9, ready=13),
                Level("pool", "default", ready=7, in_flight=3, utilisation=0.75, rate_limit_waits=4 * number),
                Level("target", "https://shop.example", is_open=number > 3),
            ],
        )
        for number in range(6)
    ]
    for before, after in pairwise(samples):
        shop.topics.publish("_penstock.levels", [Message(msgspec.json.encode(rows([after], before)))])


def publish_triage(shop: Shop, at: datetime) -> str:
    """Publish what a triage of the shop finds, as `penstock pipeline triage` does; the id of its only group."""
    group = Group(
        stream="queue:mail",
        subscription="mail",
        reason="max_retries_exceeded",
        error="SMTP … mailbox … unavailable",
        target="",
        status=0,
        shape="{order: number, template: string, to: string}",
        version="",
        count=4,
        first_at=at,
        last_at=at,
        samples=[shop.dead_mail],
        example="SMTP 550 mailbox 3 unavailable",
    )
    found = report([group], at)
    with suppress(AlreadyExists):
        shop.topics.register_topic("_penstock.triage")
    shop.topics.publish("_penstock.triage", [Message(msgspec.json.encode(found))])
    return found.groups[0].id


@pytest.fixture(scope="module")
def nothing() -> Iterator[str]:
    """The address of a server that has nothing yet."""
    with LocalServer() as server:
        yield server.url
