"""Schemas and their revisions, stored as documents of the broker. Callers check permissions."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256

from penstock.broker import lookup
from penstock.broker.aio import AsyncBroker
from penstock.broker.catalog import Catalog
from penstock.broker.topic_rules import check_message, compiled_schema
from penstock.errors import Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, ResourceExhausted, SchemaNotFound
from penstock.journal.core.events import Event
from penstock.values.message import check_text
from penstock.values.resource_names import Name
from penstock.values.stored_forms import IAM_PREFIX, SCHEMA_PREFIX, SchemaRevision, schema_revisions, stored_revisions

MAX_SCHEMAS = 10_000
"""Schemas of one project."""
MAX_DEFINITION_BYTES = 300 * 1024
MAX_REVISIONS = 20


class Schemas:
    """The schemas of a broker. Changes return once they are durable."""

    def __init__(self, aio: AsyncBroker) -> None:
        self._aio = aio
        self._broker = aio.broker

    def names(self, project: str) -> list[str]:
        """The full names of the schemas of a project, sorted."""
        prefix = f"{SCHEMA_PREFIX}projects/{project}/"
        return sorted(key.removeprefix(SCHEMA_PREFIX) for key in lookup.document_names(self._broker, prefix))

    def revisions(self, name: Name | str) -> tuple[SchemaRevision, ...]:
        """The revisions of a schema in the order of their commits; SchemaNotFound if there is none."""
        body = lookup.document(self._broker, f"{SCHEMA_PREFIX}{name}")
        if body is None:
            raise SchemaNotFound(str(name))
        return schema_revisions(body)

    def one(self, name: Name, revision: str | None = None) -> SchemaRevision:
        """The newest revision of a schema, or the named one."""
        for found in reversed(self.revisions(name)):
            if revision in {None, found.revision_id}:
                return found
        raise SchemaNotFound(f"{name}@{revision}")

    async def create(self, name: Name, kind: str, definition: str) -> SchemaRevision:
        """Create a schema with its first revision."""
        await self.validate(kind, definition)
        made: list[SchemaRevision] = []

        def create(catalog: Catalog, now: int) -> Event | None:
            if f"{SCHEMA_PREFIX}{name}" in catalog.documents:
                raise AlreadyExists("Schema", str(name))
            check_schemas(len(self.names(name.project)), name.project)
            made.append(_revision(name, kind, definition, now, ()))
            return _keep(catalog, name, made, now)

        await self._aio.call(self._broker.change, create)
        return made[0]

    async def commit(self, name: Name, definition: str) -> SchemaRevision:
        """Add a revision that is compatible with the newest one."""
        newest = self.one(name)
        check_definition(definition)
        await self._aio.call(_check_revision, newest, definition)
        return await self._add(name, newest.kind, definition, after=newest)

    async def rollback(self, name: Name, revision: str) -> SchemaRevision:
        """Make an older revision the newest again, under a new id."""
        older = self.one(name, revision)
        return await self._add(name, older.kind, older.definition)

    async def delete_revision(self, name: Name, revision: str) -> SchemaRevision:
        """Delete one revision; the last one stays. Returns what was deleted."""
        gone = self.one(name, revision)

        def delete(catalog: Catalog, now: int) -> Event | None:
            before = self.revisions(name)
            kept = [one for one in before if one.revision_id != revision]
            if len(kept) == len(before):
                raise SchemaNotFound(f"{name}@{revision}")
            check_revision_deletable(len(before), str(name))
            return _keep(catalog, name, kept, now)

        await self._aio.call(self._broker.change, delete)
        return gone

    async def delete(self, name: Name) -> None:
        """Delete a schema and its access policy. Topics that use it refuse messages."""

        def delete(catalog: Catalog, now: int) -> Event | None:
            self.revisions(name)
            return catalog.drop_document(f"{SCHEMA_PREFIX}{name}", now)

        def both() -> None:
            self._broker.change(delete)
            self._broker.change(lambda catalog, now: catalog.drop_document(f"{IAM_PREFIX}{name}", now))

        await self._aio.call(both)

    async def validate(self, kind: str, definition: str) -> None:
        """Raise InvalidArgument for an invalid definition."""
        check_definition(definition)
        await self._aio.call(compiled_schema, kind, definition)

    async def validate_message(self, kind: str, definition: str, data: bytes, encoding: str) -> None:
        """Raise InvalidArgument for a message that does not match."""
        await self._aio.call(check_message, kind, definition, data, encoding)

    async def _add(self, name: Name, kind: str, definition: str, after: SchemaRevision | None = None) -> SchemaRevision:
        """Add a revision; if `after` is given, it must still be the newest one."""
        made: list[SchemaRevision] = []

        def add(catalog: Catalog, now: int) -> Event | None:
            before = self.revisions(name)
            if after is not None and before[-1].revision_id != after.revision_id:
                raise Aborted(f"another revision of {name} was committed at the same moment", hint="commit again")
            check_room(len(before), str(name))
            made.append(_revision(name, kind, definition, now, [one.revision_id for one in before]))
            return _keep(catalog, name, [*before, *made], now)

        await self._aio.call(self._broker.change, add)
        return made[0]


def _check_revision(newest: SchemaRevision, definition: str) -> None:
    old, new = (compiled_schema(newest.kind, text) for text in (newest.definition, definition))
    from penstock.schemas import check_revision  # noqa: PLC0415  # it is there: the line above has used it

    check_revision(old, new)


def check_definition(definition: str) -> None:
    size = check_text(definition, "schema.definition", MAX_DEFINITION_BYTES)
    if not size:
        raise InvalidArgument(f"schema.definition is 0 bytes long, expected 1 to {MAX_DEFINITION_BYTES}")


def check_schemas(count: int, project: str) -> None:
    """Check that a project has room for one more schema."""
    if count >= MAX_SCHEMAS:
        raise ResourceExhausted(
            f"project {project!r} has {count} schemas, which is the limit", hint="delete some that are not used"
        )


def check_room(count: int, name: str) -> None:
    """Check that a schema has room for one more revision."""
    if count >= MAX_REVISIONS:
        raise FailedPrecondition(
            f"{name} has {count} revisions, expected fewer than {MAX_REVISIONS} before another is added",
            hint="delete a revision that no topic needs",
        )


def check_revision_deletable(count: int, name: str) -> None:
    """A schema keeps at least one revision."""
    if count <= 1:
        raise FailedPrecondition(f"{name} has only this revision, which cannot be deleted", hint="delete the schema instead")


def revision_id(name: str, definition: str, at: int, taken: Collection[str]) -> str:
    """8 hexadecimal digits that differ from the ids of all revisions of the schema."""
    attempt = 0
    while True:
        digits = sha256(f"{name}\n{at}\n{attempt}\n{definition}".encode()).hexdigest()[:8]
        if digits not in taken:
            return digits
        attempt += 1


def _revision(name: Name, kind: str, definition: str, now: int, taken: Collection[str]) -> SchemaRevision:
    return SchemaRevision(str(name), kind, definition, revision_id(str(name), definition, now, taken), now)


def _keep(catalog: Catalog, name: Name, revisions: Collection[SchemaRevision], now: int) -> Event | None:
    return catalog.keep_document(f"{SCHEMA_PREFIX}{name}", stored_revisions(revisions), now)
