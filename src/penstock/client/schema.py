"""A schema of the messages of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client.link import created, exists
from penstock.errors import InvalidArgument
from penstock.wire.operations import Operations
from penstock.wire.results import SchemaInfo

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub


class Schema:
    """A schema by its name. Creating the object creates nothing at the broker: `create` does.

    A broker in this process needs the extra `server` for schemas; without it they are refused.
    """

    def __init__(self, pubsub: PubSub, name: str) -> None:
        self._pubsub = pubsub
        self.name = name

    async def create(self, kind: str, definition: str, *, exist_ok: bool = False) -> Schema:
        """Create it with its first revision. `kind`: AVRO (the definition is JSON) or PROTOCOL_BUFFER (it is a .proto file).

        With `exist_ok` an existing schema stays as it is; AlreadyExists if it has no revision with this definition.
        """

        async def found() -> dict[str, object]:
            revisions = await self.revisions()
            same = [one for one in revisions if (one.kind, one.definition) == (kind, definition)]
            return {"kind": (same or revisions)[0].kind, "definition": (same or revisions)[0].definition}

        creation = self._pubsub.link.call(Operations.create_schema, self.name, kind, definition)
        await created(creation, exist_ok=exist_ok, given={"kind": kind, "definition": definition}, found=found)
        return self

    async def get(self, revision: str | None = None) -> SchemaInfo:
        """Its newest revision, or the named one; SchemaNotFound if it does not exist."""
        return await self._pubsub.link.call(Operations.get_schema, self.name, revision)

    async def exists(self) -> bool:
        """Whether the schema exists."""
        return await exists(self.get())

    async def commit(self, definition: str) -> SchemaInfo:
        """Add a revision; InvalidArgument if it is incompatible with the newest one."""
        return await self._pubsub.link.call(Operations.commit_schema, self.name, definition)

    async def revisions(self) -> list[SchemaInfo]:
        """Its revisions, the newest first."""
        return await self._pubsub.link.call(Operations.list_schema_revisions, self.name)

    async def delete(self) -> None:
        """Delete it; topics that use it refuse messages from then on."""
        await self._pubsub.link.call(Operations.delete_schema, self.name)

    async def validate_message(self, data: bytes, encoding: str = "JSON") -> None:
        """Raise InvalidArgument, with the place, for a message that does not match. `encoding`: JSON or BINARY."""
        if not isinstance(data, bytes):
            raise InvalidArgument.of("data", data, "bytes", hint="encode text with .encode()")
        await self._pubsub.link.call(Operations.validate_message, self.name, data, encoding)
