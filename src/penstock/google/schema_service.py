"""`google.pubsub.v1.SchemaService`: schemas and their revisions, kept as documents of the broker."""

from __future__ import annotations

from typing import Any

from penstock.access import Principal, Verb
from penstock.broker.catalog import Catalog
from penstock.broker.core.stored_forms import SCHEMA_PREFIX
from penstock.errors import Aborted, AlreadyExists, InvalidArgument, SchemaNotFound
from penstock.google import messages
from penstock.google.core import limits, names, schemas
from penstock.google.core.paging import page
from penstock.google.core.periods import timestamp
from penstock.google.resources import Message, Resources
from penstock.schemas import Encoding, Schema, SchemaKind, check_revision, compile_schema


class SchemaService:
    """The calls of the service, by their names in lower case."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._aio = resources.aio

    # ── for the doors ────────────────────────────────────────────────────────────────────────────────────────────────────

    def revisions(self, name: names.Name) -> list[Message]:
        """The revisions of a schema in the order of their commits; SchemaNotFound when there is no such schema."""
        body = self._resources.broker.catalog.documents.get(f"{SCHEMA_PREFIX}{name}")
        if body is None:
            raise SchemaNotFound(str(name))
        return list(self._resources.parsed(messages.ListSchemaRevisionsResponse, body).schemas)

    # ── the calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_schema(self, request: Any, caller: Principal) -> Message:
        """Create a schema with its first revision."""
        project = names.parse_project(request.parent, "parent")
        name = names.child(project, names.SCHEMAS, request.schema_id, "schema_id")
        caller.check(Verb.MANAGE, project, name.id, kind="schema")
        schemas.check_schema(request.schema)
        await self._compiled(request.schema)
        made: list[Message] = []

        def create(catalog: Catalog, now: int) -> Any:
            if f"{SCHEMA_PREFIX}{name}" in catalog.documents:
                raise AlreadyExists("Schema", str(name))
            prefix = f"{SCHEMA_PREFIX}projects/{project}/"
            count = sum(key.startswith(prefix) for key in catalog.documents)
            limits.check_schemas(count, project)
            made.append(_revision(name, request.schema, now, []))
            return self._keep(catalog, name, made, now)

        await self._resources.change(create)
        return made[0]

    async def get_schema(self, request: Any, caller: Principal) -> Message:
        """A schema: its newest revision, or the one that the name asks for."""
        name, revision = self._admit(caller, Verb.READ, request.name)
        return schemas.viewed(self._one(name, revision), request.view, unset=schemas.FULL)

    async def list_schemas(self, request: Any, caller: Principal) -> Message:
        """The schemas of a project, each with its newest revision."""
        project = names.parse_project(request.parent, "parent")
        caller.check(Verb.READ, project)
        stored = self._resources.broker.catalog.documents
        found = [
            names.parse(key.removeprefix(SCHEMA_PREFIX), names.SCHEMAS, "name") for key in stored if key.startswith(SCHEMA_PREFIX)
        ]
        mine = sorted(str(name) for name in found if name.project == project and caller.may(Verb.READ, project, name.id))
        part, token = page(mine, request.page_size, request.page_token, f"schemas of {project}")
        newest = [self.revisions(names.parse(one, names.SCHEMAS, "name"))[-1] for one in mine[part]]
        shown = [schemas.viewed(schema, request.view, unset=schemas.BASIC) for schema in newest]
        return messages.ListSchemasResponse(schemas=shown, next_page_token=token)

    async def list_schema_revisions(self, request: Any, caller: Principal) -> Message:
        """The revisions of a schema, the newest first."""
        name, _ = self._admit(caller, Verb.READ, request.name)
        found = {schemas.revision_key(schema): schema for schema in self.revisions(name)}
        keys = sorted(found)
        part, token = page(keys, request.page_size, request.page_token, f"revisions of {name}")
        shown = [schemas.viewed(found[key], request.view, unset=schemas.BASIC) for key in keys[part]]
        return messages.ListSchemaRevisionsResponse(schemas=shown, next_page_token=token)

    async def commit_schema(self, request: Any, caller: Principal) -> Message:
        """Add a revision that messages of the one before can live with."""
        name, _ = self._admit(caller, Verb.MANAGE, request.name)
        newest = self.revisions(name)[-1]
        schemas.check_commit(newest, request.schema)
        new = await self._compiled(request.schema)
        check_revision(await self._compiled(newest), new)
        return await self._add(name, request.schema, after=newest)

    async def rollback_schema(self, request: Any, caller: Principal) -> Message:
        """Make an older revision the newest again, under a new id."""
        name, _ = self._admit(caller, Verb.MANAGE, request.name)
        return await self._add(name, self._one(name, names.check_revision(request.revision_id, "revision_id")))

    async def delete_schema_revision(self, request: Any, caller: Principal) -> Message:
        """Forget one revision; the last one stays."""
        name, revision = self._admit(caller, Verb.MANAGE, request.name)
        revision = names.check_revision(request.revision_id or revision or "", "name")

        def delete(catalog: Catalog, now: int) -> Any:
            kept = [schema for schema in self.revisions(name) if schema.revision_id != revision]
            if len(kept) == len(self.revisions(name)):
                raise SchemaNotFound(f"{name}@{revision}")
            schemas.check_revision_deletable(len(kept) + 1, str(name))
            return self._keep(catalog, name, kept, now)

        gone = self._one(name, revision)
        await self._resources.change(delete)
        return gone

    async def delete_schema(self, request: Any, caller: Principal) -> Message:
        """Forget a schema; topics that use it show `_deleted-schema_`."""
        name, revision = self._admit(caller, Verb.MANAGE, request.name)
        if revision is not None:
            raise InvalidArgument.of("name", request.name, "a schema without a revision", hint="use DeleteSchemaRevision")

        def delete(catalog: Catalog, now: int) -> Any:
            self.revisions(name)
            return catalog.drop_document(f"{SCHEMA_PREFIX}{name}", now)

        await self._resources.delete(name, delete)
        return messages.Empty()

    async def validate_schema(self, request: Any, caller: Principal) -> Message:
        """Say whether a definition could be stored."""
        caller.check(Verb.READ, names.parse_project(request.parent, "parent"))
        schemas.check_schema(request.schema)
        await self._compiled(request.schema)
        return messages.ValidateSchemaResponse()

    async def validate_message(self, request: Any, caller: Principal) -> Message:
        """Say whether a message fits a schema, stored or given."""
        caller.check(Verb.READ, names.parse_project(request.parent, "parent"))
        match request.WhichOneof("schema_spec"):
            case "name":
                schema = self._one(*self._admit(caller, Verb.READ, request.name))
            case "schema":
                schema = request.schema
                schemas.check_schema(schema)
            case _:
                raise InvalidArgument("the request has neither name nor schema, wanted one of them")
        compiled = await self._compiled(schema)
        await self._aio.call(compiled.validate, request.message, encoding_of(request.encoding, "encoding"))
        return messages.ValidateMessageResponse()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def _admit(caller: Principal, verb: Verb, text: str) -> tuple[names.Name, str | None]:
        name, revision = names.parse_schema(text, "name")
        caller.check(verb, name.project, name.id, kind="schema")
        return name, revision

    def _one(self, name: names.Name, revision: str | None) -> Message:
        for schema in reversed(self.revisions(name)):
            if revision in {None, schema.revision_id}:
                return schema
        raise SchemaNotFound(f"{name}@{revision}")

    async def _add(self, name: names.Name, schema: Message, after: Message | None = None) -> Message:
        """Add a revision, which was found to fit the one it is to come `after`, if one is given."""
        made: list[Message] = []

        def add(catalog: Catalog, now: int) -> Any:
            before = self.revisions(name)
            if after is not None and before[-1].revision_id != after.revision_id:
                raise Aborted(f"another revision of {name} was committed at the same moment", hint="commit again")
            schemas.check_room(len(before), str(name))
            made.append(_revision(name, schema, now, before))
            return self._keep(catalog, name, [*before, *made], now)

        await self._resources.change(add)
        return made[0]

    @staticmethod
    def _keep(catalog: Catalog, name: names.Name, revisions: list[Message], now: int) -> Any:
        body = messages.ListSchemaRevisionsResponse(schemas=revisions).SerializeToString()
        return catalog.keep_document(f"{SCHEMA_PREFIX}{name}", body, now)

    async def _compiled(self, schema: Message) -> Schema:
        return await self._aio.call(compiled, schema)


def compiled(schema: Message) -> Schema:
    """What checks messages against a stored schema. Takes time for a new definition."""
    return compile_schema(SchemaKind(messages.Schema.Type.Name(schema.type)), schema.definition)


def encoding_of(value: int, field: str) -> Encoding:
    """How messages are written."""
    if value not in {messages.Encoding.JSON, messages.Encoding.BINARY}:
        raise InvalidArgument.of(field, value, "JSON (1) or BINARY (2)")
    return Encoding(messages.Encoding.Name(value))


def _revision(name: names.Name, schema: Message, now: int, before: list[Message]) -> Message:
    taken = [revision.revision_id for revision in before]
    return messages.Schema(
        name=str(name),
        type=schema.type,
        definition=schema.definition,
        revision_id=schemas.revision_id(str(name), schema.definition, now, taken),
        revision_create_time=timestamp(now),
    )
