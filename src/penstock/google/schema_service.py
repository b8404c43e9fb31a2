"""`google.pubsub.v1.SchemaService`: schemas and their revisions."""

from __future__ import annotations

from typing import Any

from penstock.access import Principal, Verb
from penstock.api.schemas import Schemas
from penstock.errors import InvalidArgument
from penstock.google import messages
from penstock.google.core import schemas
from penstock.google.core.fields import timestamp
from penstock.google.core.paging import page
from penstock.google.resources import Message, Resources
from penstock.values import resource_names as names
from penstock.values.stored_forms import ENCODINGS, KINDS, SchemaRevision


class SchemaService:
    """The calls of the service, by their names in lower case."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._schemas = Schemas(resources.aio)

    # ── the calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_schema(self, request: Any, caller: Principal) -> Message:
        """Create a schema with its first revision."""
        project = names.parse_project(request.parent, "parent")
        name = names.child(project, names.SCHEMAS, request.schema_id, "schema_id")
        caller.check(Verb.MANAGE, project, name.id, kind="schema")
        schemas.check_schema(request.schema)
        return schema_message(await self._schemas.create(name, KINDS[request.schema.type], request.schema.definition))

    async def get_schema(self, request: Any, caller: Principal) -> Message:
        """A schema: its newest revision, or the named one."""
        name, revision = self._admit(caller, Verb.READ, request.name)
        return schemas.viewed(schema_message(self._schemas.one(name, revision)), request.view, unset=schemas.FULL)

    async def list_schemas(self, request: Any, caller: Principal) -> Message:
        """The schemas of a project, each with its newest revision."""
        project = names.parse_project(request.parent, "parent")
        caller.check(Verb.READ, project)
        found = [names.parse(one, names.SCHEMAS, "name") for one in self._schemas.names(project)]
        mine = [name for name in found if caller.may(Verb.READ, project, name.id)]
        part, token = page([str(name) for name in mine], request.page_size, request.page_token, f"schemas of {project}")
        newest = [schema_message(self._schemas.one(name)) for name in mine[part]]
        return messages.ListSchemasResponse(
            schemas=[schemas.viewed(schema, request.view, unset=schemas.BASIC) for schema in newest], next_page_token=token
        )

    async def list_schema_revisions(self, request: Any, caller: Principal) -> Message:
        """The revisions of a schema, the newest first."""
        name, _ = self._admit(caller, Verb.READ, request.name)
        found = {schemas.revision_key(schema): schema for schema in map(schema_message, self._schemas.revisions(name))}
        keys = sorted(found)
        part, token = page(keys, request.page_size, request.page_token, f"revisions of {name}")
        viewed = [schemas.viewed(found[key], request.view, unset=schemas.BASIC) for key in keys[part]]
        return messages.ListSchemaRevisionsResponse(schemas=viewed, next_page_token=token)

    async def commit_schema(self, request: Any, caller: Principal) -> Message:
        """Add a revision that is compatible with the newest one."""
        name, _ = self._admit(caller, Verb.MANAGE, request.name)
        schemas.check_commit(schema_message(self._schemas.one(name)), request.schema)
        return schema_message(await self._schemas.commit(name, request.schema.definition))

    async def rollback_schema(self, request: Any, caller: Principal) -> Message:
        """Make an older revision the newest again, under a new id."""
        name, _ = self._admit(caller, Verb.MANAGE, request.name)
        return schema_message(await self._schemas.rollback(name, names.check_revision(request.revision_id, "revision_id")))

    async def delete_schema_revision(self, request: Any, caller: Principal) -> Message:
        """Delete one revision; the last one stays."""
        name, revision = self._admit(caller, Verb.MANAGE, request.name)
        revision = names.check_revision(request.revision_id or revision or "", "name")
        return schema_message(await self._schemas.delete_revision(name, revision))

    async def delete_schema(self, request: Any, caller: Principal) -> Message:
        """Delete a schema; topics that use it show `_deleted-schema_`."""
        name, revision = self._admit(caller, Verb.MANAGE, request.name)
        if revision is not None:
            raise InvalidArgument.of("name", request.name, "a schema without a revision", hint="use DeleteSchemaRevision")
        await self._schemas.delete(name)
        return messages.Empty()

    async def validate_schema(self, request: Any, caller: Principal) -> Message:
        """Check whether a definition is valid."""
        caller.check(Verb.READ, names.parse_project(request.parent, "parent"))
        schemas.check_schema(request.schema)
        await self._schemas.validate(KINDS[request.schema.type], request.schema.definition)
        return messages.ValidateSchemaResponse()

    async def validate_message(self, request: Any, caller: Principal) -> Message:
        """Check whether a message matches a schema, stored or given."""
        caller.check(Verb.READ, names.parse_project(request.parent, "parent"))
        match request.WhichOneof("schema_spec"):
            case "name":
                schema = schema_message(self._schemas.one(*self._admit(caller, Verb.READ, request.name)))
            case "schema":
                schema = request.schema
                schemas.check_schema(schema)
            case _:
                raise InvalidArgument("the request has neither name nor schema, expected one of them")
        if request.encoding not in ENCODINGS:
            raise InvalidArgument.of("encoding", request.encoding, "JSON (1) or BINARY (2)")
        kind, encoding = KINDS[schema.type], ENCODINGS[request.encoding]
        await self._schemas.validate_message(kind, schema.definition, request.message, encoding)
        return messages.ValidateMessageResponse()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def _admit(caller: Principal, verb: Verb, text: str) -> tuple[names.Name, str | None]:
        name, revision = names.parse_schema(text, "name")
        caller.check(verb, name.project, name.id, kind="schema")
        return name, revision


def schema_message(schema: SchemaRevision) -> Message:
    """A revision in the form of Google's API."""
    return messages.Schema(
        name=schema.name,
        type=messages.Schema.Type.Value(schema.kind),
        definition=schema.definition,
        revision_id=schema.revision_id,
        revision_create_time=timestamp(schema.created_at),
    )
