"""The operations on schemas. Part of `Operations`: every public method is one operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.access import Principal, Verb
from penstock.api.service import Service
from penstock.broker import lookup
from penstock.broker.catalog import Catalog
from penstock.durations import DAY, SECOND, micros, to_datetime
from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.journal.core.events import Event
from penstock.values.message import check_string
from penstock.values.policy import converted
from penstock.values.resource_names import SCHEMAS, TOPICS, Name, check_revision, parse
from penstock.values.stored_forms import ENCODINGS, KINDS, SchemaRevision, SchemaUse, stored_topic, topic_form
from penstock.wire.results import SchemaInfo, TopicSettings

MIN_RETENTION, MAX_RETENTION = 600 * SECOND, 31 * DAY
"""Limits of the retention of topics with a schema, which Google's clients can see and change."""


class SchemaOperations:
    """The operations of one caller on the schemas of one project."""

    _service: Service
    principal: Principal
    project: str

    async def create_schema(self, schema: str, kind: str, definition: str) -> SchemaInfo:
        name = self._schema(Verb.MANAGE, schema)
        return self._shown(await self._service.schemas.create(name, _kind(kind), definition))

    async def get_schema(self, schema: str, revision: str | None = None) -> SchemaInfo:
        name = self._schema(Verb.READ, schema)
        return self._shown(self._service.schemas.one(name, revision and check_revision(revision, "revision")))

    async def list_schemas(self) -> list[SchemaInfo]:
        self.principal.check(Verb.READ, self.project)
        named = [parse(one, SCHEMAS, "schema") for one in self._service.schemas.names(self.project)]
        mine = [name for name in named if self.principal.may(Verb.READ, self.project, name.id)]
        return [self._shown(self._service.schemas.one(name)) for name in mine]

    async def list_schema_revisions(self, schema: str) -> list[SchemaInfo]:
        found = self._service.schemas.revisions(self._schema(Verb.READ, schema))
        newest_first = sorted(found, key=lambda one: (-one.created_at, one.revision_id))
        return [self._shown(one) for one in newest_first]

    async def commit_schema(self, schema: str, definition: str) -> SchemaInfo:
        return self._shown(await self._service.schemas.commit(self._schema(Verb.MANAGE, schema), definition))

    async def delete_schema(self, schema: str) -> None:
        await self._service.schemas.delete(self._schema(Verb.MANAGE, schema))

    async def validate_schema(self, kind: str, definition: str) -> None:
        self.principal.check(Verb.READ, self.project)
        await self._service.schemas.validate(_kind(kind), definition)

    async def validate_message(self, schema: str, data: bytes, encoding: str) -> None:
        found = self._service.schemas.one(self._schema(Verb.READ, schema))
        await self._service.schemas.validate_message(found.kind, found.definition, data, _encoding(encoding))

    def _topic_with_schema(
        self, key: str, topic: str, schema: str, encoding: str, retention: float | None
    ) -> Callable[[Catalog, int], Event]:
        """The settings of a new topic with a schema; `key` is the broker's name of the topic."""
        name = parse(self._full(topic, TOPICS), TOPICS, "topic")
        # The errors of a schema reveal its content, so callers that name it must be allowed to read it.
        use = SchemaUse(str(self._schema(Verb.READ, schema)), _encoding(encoding))
        span = retention_span(retention, has_schema=True)
        self._service.schemas.revisions(use.schema)

        def create(catalog: Catalog, now: int) -> Event:
            self._service.projects.check_room("topics", key, catalog.topics)
            return catalog.create_topic(key, now, spec=stored_topic(str(name), use, span), retention=span)

        return create

    def _topic_settings(self, key: str) -> TopicSettings:
        """The settings of a topic by its broker's name."""
        found = lookup.topic(self._service.aio.broker, key)
        retention, use = None if found.retention is None else found.retention / SECOND, topic_form(found.spec).schema
        if use is None:
            return TopicSettings(retention)
        return TopicSettings(retention, use.schema.removeprefix(f"projects/{self.project}/schemas/"), use.encoding)

    def _topic_update(self, key: str, topic: str, changes: dict[str, Any]) -> Callable[[Catalog, int], Event]:
        """The change of the retention or the schema of a topic; `key` is the broker's name of the topic."""
        if not changes or not changes.keys() <= {"retention", "schema", "encoding"}:
            raise InvalidArgument.of("changes", sorted(changes), "some of retention, schema, encoding")
        schema, encoding = changes.get("schema"), changes.get("encoding")
        name = f"projects/{'/topics/'.join(self._service.projects.split(key))}"
        if schema is not None:
            parse(name, TOPICS, "topic")
            schema = str(self._schema(Verb.READ, converted(schema, str, "schema")))
            self._service.schemas.revisions(schema)

        def update(catalog: Catalog, now: int) -> Event:
            stream = catalog.topic(key)
            use, span = topic_form(stream.spec).schema, stream.retention
            if stream.spec and (use is None or stream.spec != stored_topic(name, use, span)):
                raise FailedPrecondition(
                    f"topic {topic!r} has settings of the Google Pub/Sub API", hint="change it with UpdateTopic of that API"
                )
            if "schema" in changes:
                use = None if schema is None else SchemaUse(schema, "JSON" if use is None else use.encoding)
            if encoding is not None:
                if use is None:
                    raise InvalidArgument("encoding is given for a topic without a schema", hint="give schema as well")
                use = SchemaUse(use.schema, _encoding(encoding))
            if "retention" in changes:
                span = retention_span(changes["retention"], has_schema=use is not None)
            return catalog.update_topic(key, b"" if use is None else stored_topic(name, use, span), span, now)

        return update

    def _schema(self, verb: Verb, schema: str) -> Name:
        """The full name of a schema, if the caller may do this to it."""
        name = parse(self._full(schema, SCHEMAS), SCHEMAS, "schema")
        self.principal.check(verb, name.project, name.id, kind="schema")
        return name

    def _full(self, name: str, kind: str) -> str:
        is_full = check_string(name, kind.removesuffix("s")).startswith("projects/")
        return name if is_full else f"projects/{self.project}/{kind}/{name}"

    def _shown(self, schema: SchemaRevision) -> SchemaInfo:
        name = schema.name.removeprefix(f"projects/{self.project}/schemas/")
        return SchemaInfo(name, schema.kind, schema.definition, schema.revision_id, to_datetime(schema.created_at))


def retention_span(retention: object, *, has_schema: bool) -> int | None:
    """The retention of a topic in microseconds. With a schema, it is stored in Google's form, with Google's limits."""
    least, most = (MIN_RETENTION / SECOND, MAX_RETENTION / SECOND) if has_schema else (1, 366 * 86_400)
    return None if retention is None else micros(retention, "retention", minimum=least, maximum=most)


def _kind(kind: str) -> str:
    if kind not in KINDS.values():
        raise InvalidArgument.of("kind", kind, "'AVRO' or 'PROTOCOL_BUFFER'")
    return kind


def _encoding(encoding: str) -> str:
    if encoding not in ENCODINGS.values():
        raise InvalidArgument.of("encoding", encoding, "'JSON' or 'BINARY'")
    return encoding
