"""Topics with a schema or a transform, for tests of whatever publishes to them."""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock import Broker
from penstock.broker.catalog import Catalog
from penstock.google import messages
from penstock.journal.core.events import Event
from penstock.values.stored_forms import SCHEMA_PREFIX

AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}'
SCRIPT = """function f(message, metadata) {
  if (message.data.includes("drop")) return null;
  if (message.data.includes("fail")) throw new Error("failed");
  message.data = message.data.toUpperCase();
  return message;
}"""
SCHEMA = "projects/penstock/schemas/order"


def topic_spec(*, schema: str | None = None, code: str | None = None, name: str = "orders") -> bytes:
    """A topic as Google's API stores it."""
    topic: Any = messages.Topic(name=f"projects/penstock/topics/{name}", state=messages.Topic.State.ACTIVE)
    if schema is not None:
        topic.schema_settings.schema = schema
        topic.schema_settings.encoding = messages.Encoding.JSON
    if code is not None:
        topic.message_transforms.add(javascript_udf=messages.JavaScriptUDF(function_name="f", code=code))
    spec: bytes = topic.SerializeToString()
    return spec


def schema_body(*definitions: str) -> bytes:
    """A schema as it is stored. Its revisions are `00000000`, `00000001` and so on."""
    revisions = [
        messages.Schema(name=SCHEMA, type=messages.Schema.Type.Value("AVRO"), definition=text, revision_id=f"{number:08x}")
        for number, text in enumerate(definitions)
    ]
    body: bytes = messages.ListSchemaRevisionsResponse(schemas=revisions).SerializeToString()
    return body


def make_topics(broker: Broker) -> None:
    """The topics `checked`, whose messages must fit AVRO, `scripted`, whose messages pass SCRIPT, and `plain`."""
    body = schema_body(AVRO)
    broker.change(lambda catalog, now: catalog.keep_document(f"{SCHEMA_PREFIX}{SCHEMA}", body, now))
    for name, spec in (
        ("checked", topic_spec(schema=SCHEMA, name="checked")),
        ("scripted", topic_spec(code=SCRIPT, name="scripted")),
        ("plain", b""),
    ):
        broker.change(partial(_make, name, spec))


def _make(name: str, spec: bytes, catalog: Catalog, now: int) -> Event:
    if name in catalog.topics:
        return catalog.update_topic(name, spec, None, now)
    return catalog.create_topic(name, now, spec=spec)
