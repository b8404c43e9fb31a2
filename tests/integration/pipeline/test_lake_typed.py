"""Typed tables: the fields of the schema as columns, each message once, whatever becomes of the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock import Message, MessageQueue
from penstock.errors import InvalidArgument
from penstock.log.http import HttpLog
from penstock.pipeline.job import Plan, Target
from penstock.pipeline.lake.archiver import Archiver
from penstock.pipeline.lake.table import Lake
from penstock.pipeline.lake.typed import TypedTables, table_name
from penstock.sync import PubSub
from penstock.testing.server import LocalServer
from tests.unit.pipeline.lake_victim import NO_SPARK, plan_batch

pytestmark = pytest.mark.alone


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": list(fields)})


ID: dict[str, Any] = {"name": "id", "type": "long"}
NOTE: dict[str, Any] = {"name": "note", "type": ["null", "string"], "default": None}
KEY: dict[str, Any] = {"name": "key", "type": ["null", "long"], "default": None}


class Shop:
    """A server, and an archive with typed tables."""

    def __init__(self, server: LocalServer, home: Path) -> None:
        self.server = server
        self.home = home
        self.lake = str(home / "lake")
        self._batch = 0

    def archive(self) -> None:
        """Archive what there is, as a batch of the query would."""
        checkpoint = self.home / "checkpoint"
        with HttpLog(self.server.url) as log:
            ends = {span.stream: (span.number, span.latest) for span in log.spans().streams}
        plan_batch(checkpoint, self._batch, ends)
        self._batch += 1
        plan = Plan(Target(endpoint=self.server.url), self.lake, str(checkpoint), typed=True)
        Archiver(plan, "messages", checkpoint).catch_up(NO_SPARK)

    def rows(self, stream: str = "orders") -> list[dict[str, Any]]:
        table = DeltaTable(f"{self.lake}/{table_name(stream)}")
        return [*table.to_pyarrow_dataset().to_table().sort_by("offset").to_pylist()]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with LocalServer(data_dir=tmp_path / "data") as server:
        yield Shop(server, tmp_path)


def test_a_table_grows_with_its_schema(shop: Shop) -> None:
    with PubSub(shop.server.url) as pubsub:
        schema = pubsub.schema("order")
        schema.create("AVRO", record(ID))
        orders = pubsub.topic("orders")
        orders.create(schema="order", encoding="JSON")
        pubsub.topic("plain").create()
        pubsub.topic("plain").publish_message(b"x")
        orders.publish_message(b'{"id": 1}')
        shop.archive()
        assert [(row["offset"], row["id"], row["_rescued"]) for row in shop.rows()] == [(0, 1, None)]

        schema.commit(record(ID, NOTE, KEY))
        orders.publish_message(b'{"id": 2, "note": {"string": "h\xc3\xa9"}, "key": {"long": 5}}')
        orders.publish_message(b'{"id": 3, "note": null, "key": null}')
        shop.archive()
        shop.archive()

    found = [(row["id"], row.get("note"), row.get("field_key"), row["key"]) for row in shop.rows()]
    assert found == [(1, None, None, None), (2, "hé", 5, None), (3, None, None, None)]
    assert sorted(DeltaTable(f"{shop.lake}/typed/orders").to_pyarrow_table()["id"].to_pylist()) == [1, 2, 3]
    assert Lake(shop.lake).tables() == ["messages", "typed/orders"]


def test_protocol_buffers_and_a_schema_that_is_gone(shop: Shop) -> None:
    with PubSub(shop.server.url) as pubsub:
        pubsub.schema("order").create("PROTOCOL_BUFFER", 'syntax = "proto3"; message Order { int64 id = 1; string name = 2; }')
        orders = pubsub.topic("big+orders")
        orders.create(schema="order", encoding="BINARY")
        orders.publish_message(b"\x08\x07\x12\x01x")
        shop.archive()
        orders.publish_message(b"\x08\x07")
        pubsub.schema("order").delete()
        shop.archive()

    first, second = shop.rows("big+orders")
    assert (first["id"], first["name"], first["_rescued"]) == (7, "x", None)
    assert json.loads(second["_rescued"])["value"] == "CAc="
    assert "is not there any more" in second["_rescued"]


def test_what_no_longer_fits_is_rescued(shop: Shop) -> None:
    with PubSub(shop.server.url) as pubsub:
        for name, kind in (("first", "string"), ("second", "boolean")):
            pubsub.schema(name).create("AVRO", record({"name": "id", "type": kind}))
            pubsub.topic("orders").create(schema=name, encoding="JSON")
            pubsub.topic("orders").publish_message(b'{"id": %s}' % {"string": b'"a"', "boolean": b"true"}[kind])
            shop.archive()
            if kind == "string":
                pubsub.topic("orders").delete()

    assert [(row["id"], row["_rescued"]) for row in sorted(shop.rows(), key=lambda row: row["stream_number"])] == [
        ("a", None),
        (None, '{"id": true}'),
    ]


def test_an_archive_that_was_killed_between_the_two_tables(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with PubSub(shop.server.url) as pubsub:
        pubsub.schema("order").create("AVRO", record(ID))
        pubsub.topic("orders").create(schema="order", encoding="JSON")
        pubsub.topic("orders").publish_message(b'{"id": 1}')
        with monkeypatch.context() as patch:
            patch.setattr(TypedTables, "follow", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                shop.archive()
        shop.archive()

    assert [row["id"] for row in shop.rows()] == [1]


def test_a_data_directory_has_no_schemas_for_it(shop: Shop) -> None:
    MessageQueue(broker=shop.server.broker).register_topic("orders")
    MessageQueue(broker=shop.server.broker).publish("orders", [Message(b"x")])
    shop.server.broker.sync()
    plan_batch(shop.home / "c", 0, {"orders": (1, 1)})

    with pytest.raises(InvalidArgument, match="typed tables need a server"):
        Archiver(Plan(Target(path=str(shop.home / "data")), shop.lake, "c", typed=True), "messages", shop.home / "c").catch_up(
            NO_SPARK
        )
