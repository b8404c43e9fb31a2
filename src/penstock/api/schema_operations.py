"""What may be asked about schemas. Part of `Operations`: every public method is one operation."""

from __future__ import annotations

import msgspec

from penstock.access import Principal
from penstock.api.service import Service
from penstock.wire.results import SchemaInfo


class SchemaOperations:
    """What one caller may ask of the schemas of one project. The schemas themselves ask whether the caller may."""

    _service: Service
    principal: Principal
    project: str

    async def create_schema(self, schema: str, kind: str, definition: str) -> SchemaInfo:
        """Create a schema with its first revision; `kind` is AVRO or PROTOCOL_BUFFER."""
        made = await self._service.rules.schemas.create(self.principal, self._full(schema, "schemas"), kind, definition)
        return self._shown(made)

    async def get_schema(self, schema: str, revision: str | None = None) -> SchemaInfo:
        """The newest revision of a schema, or the named one."""
        return self._shown(await self._service.rules.schemas.get(self.principal, self._full(schema, "schemas"), revision))

    async def list_schemas(self) -> list[SchemaInfo]:
        """The schemas of the project, each with its newest revision."""
        return [self._shown(one) for one in await self._service.rules.schemas.listed(self.principal, self.project)]

    async def list_schema_revisions(self, schema: str) -> list[SchemaInfo]:
        """The revisions of a schema, the newest first."""
        found = await self._service.rules.schemas.revisions(self.principal, self._full(schema, "schemas"))
        return [self._shown(one) for one in found]

    async def commit_schema(self, schema: str, definition: str) -> SchemaInfo:
        """Add a revision that messages of the one before can live with."""
        return self._shown(await self._service.rules.schemas.commit(self.principal, self._full(schema, "schemas"), definition))

    async def delete_schema(self, schema: str) -> None:
        """Forget a schema; topics that use it refuse messages from then on."""
        await self._service.rules.schemas.delete(self.principal, self._full(schema, "schemas"))

    async def validate_schema(self, kind: str, definition: str) -> None:
        """InvalidArgument for a definition that could not be stored."""
        await self._service.rules.schemas.validate(self.principal, self.project, kind, definition)

    async def validate_message(self, schema: str, data: bytes, encoding: str) -> None:
        """InvalidArgument for a message that does not fit the newest revision of a schema."""
        await self._service.rules.schemas.validate_message(self.principal, self._full(schema, "schemas"), data, encoding)

    async def _create_topic_with_schema(self, topic: str, schema: str, encoding: str, retention: float | None) -> None:
        name, of = self._full(topic, "topics"), self._full(schema, "schemas")
        await self._service.rules.schemas.create_topic(self.principal, name, of, encoding, retention)

    def _full(self, name: str, kind: str) -> str:
        return name if name.startswith("projects/") else f"projects/{self.project}/{kind}/{name}"

    def _shown(self, schema: SchemaInfo) -> SchemaInfo:
        return msgspec.structs.replace(schema, name=schema.name.removeprefix(f"projects/{self.project}/schemas/"))
