"""Schemas for what reaches the broker by another way than this door. They are the same ones: both sides see each other's."""

from __future__ import annotations

from penstock.access import Principal, Verb
from penstock.durations import SECOND, micros, to_datetime
from penstock.errors import InvalidArgument
from penstock.google import messages
from penstock.google.core import names
from penstock.google.core.paging import MAX_PAGE_SIZE
from penstock.google.core.periods import MAX_RETENTION, MIN_RETENTION
from penstock.google.core.schemas import FULL, MAX_DEFINITION_BYTES
from penstock.google.publisher import Publisher
from penstock.google.resources import Message
from penstock.google.schema_service import SchemaService
from penstock.values.message import check_text
from penstock.wire.results import SchemaInfo


class PubSubSchemas:
    """`penstock.api.rules.Schemas`: the calls of the service, in plain values."""

    def __init__(self, service: SchemaService, publisher: Publisher) -> None:
        self._service = service
        self._publisher = publisher

    async def create(self, caller: Principal, name: str, kind: str, definition: str) -> SchemaInfo:
        """Create a schema with its first revision."""
        parsed = names.parse(name, names.SCHEMAS, "schema")
        request = messages.CreateSchemaRequest(
            parent=f"projects/{parsed.project}", schema_id=parsed.id, schema=_schema(kind, definition)
        )
        return _info(await self._service.create_schema(request, caller))

    async def get(self, caller: Principal, name: str, revision: str | None) -> SchemaInfo:
        """The newest revision of a schema, or the named one."""
        names.parse(name, names.SCHEMAS, "schema")
        full = name if revision is None else f"{name}@{names.check_revision(revision, 'revision')}"
        return _info(await self._service.get_schema(messages.GetSchemaRequest(name=full, view=FULL), caller))

    async def listed(self, caller: Principal, project: str) -> list[SchemaInfo]:
        """The newest revision of every schema of a project that the caller may read."""
        request = messages.ListSchemasRequest(parent=f"projects/{project}", view=FULL, page_size=MAX_PAGE_SIZE)
        found: list[SchemaInfo] = []
        while True:
            page = await self._service.list_schemas(request, caller)
            found += map(_info, page.schemas)
            request.page_token = page.next_page_token
            if not request.page_token:
                return found

    async def revisions(self, caller: Principal, name: str) -> list[SchemaInfo]:
        """The revisions of a schema, the newest first."""
        # A schema has no more revisions than fit on a page.
        request = messages.ListSchemaRevisionsRequest(name=_plain(name), view=FULL, page_size=MAX_PAGE_SIZE)
        return [_info(one) for one in (await self._service.list_schema_revisions(request, caller)).schemas]

    async def commit(self, caller: Principal, name: str, definition: str) -> SchemaInfo:
        """Add a revision that messages of the one before can live with."""
        parsed = names.parse(name, names.SCHEMAS, "schema")
        caller.check(Verb.MANAGE, parsed.project, parsed.id, kind="schema")
        newest = self._service.revisions(parsed)[-1]
        schema = _schema(messages.Schema.Type.Name(newest.type), definition)
        return _info(await self._service.commit_schema(messages.CommitSchemaRequest(name=name, schema=schema), caller))

    async def delete(self, caller: Principal, name: str) -> None:
        """Forget a schema; topics that use it refuse messages until they are given another."""
        await self._service.delete_schema(messages.DeleteSchemaRequest(name=_plain(name)), caller)

    async def validate(self, caller: Principal, project: str, kind: str, definition: str) -> None:
        """InvalidArgument for a definition that could not be stored."""
        request = messages.ValidateSchemaRequest(parent=f"projects/{project}", schema=_schema(kind, definition))
        await self._service.validate_schema(request, caller)

    async def validate_message(self, caller: Principal, name: str, data: bytes, encoding: str) -> None:
        """InvalidArgument for a message that does not fit."""
        parsed = names.parse(name, names.SCHEMAS, "schema")
        request = messages.ValidateMessageRequest(
            parent=f"projects/{parsed.project}", name=name, message=data, encoding=_encoding(encoding)
        )
        await self._service.validate_message(request, caller)

    async def create_topic(self, caller: Principal, name: str, schema: str, encoding: str, retention: float | None) -> None:
        """Create a topic whose messages must fit a schema."""
        names.parse(name, names.TOPICS, "topic")
        settings = messages.SchemaSettings(schema=_plain(schema), encoding=_encoding(encoding))
        topic = messages.Topic(name=name, schema_settings=settings)
        if retention is not None:
            least, most = MIN_RETENTION / SECOND, MAX_RETENTION / SECOND
            topic.message_retention_duration.FromMicroseconds(micros(retention, "retention", minimum=least, maximum=most))
        await self._publisher.create_topic(topic, caller)


def _plain(name: str) -> str:
    """The name of a schema as a whole: the service's own calls take one revision of it, too."""
    return str(names.parse(name, names.SCHEMAS, "schema"))


def _schema(kind: str, definition: str) -> Message:
    known = messages.Schema.Type
    if kind not in {"AVRO", "PROTOCOL_BUFFER"}:
        raise InvalidArgument.of("kind", kind, "'AVRO' or 'PROTOCOL_BUFFER'")
    check_text(definition, "definition", MAX_DEFINITION_BYTES)
    return messages.Schema(type=known.Value(kind), definition=definition)


def _encoding(encoding: str) -> int:
    if encoding not in {"JSON", "BINARY"}:
        raise InvalidArgument.of("encoding", encoding, "'JSON' or 'BINARY'")
    value: int = messages.Encoding.Value(encoding)
    return value


def _info(schema: Message) -> SchemaInfo:
    created = to_datetime(schema.revision_create_time.ToMicroseconds())
    return SchemaInfo(schema.name, messages.Schema.Type.Name(schema.type), schema.definition, schema.revision_id, created)
