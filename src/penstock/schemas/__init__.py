"""Message schemas in Avro and Protocol Buffers: compiled, used to check messages, and compared between revisions."""

from penstock.schemas.catalogue import check_revision, compile_schema
from penstock.schemas.schema import MAX_DEFINITION, Encoding, Schema, SchemaKind

__all__ = ["MAX_DEFINITION", "Encoding", "Schema", "SchemaKind", "check_revision", "compile_schema"]
