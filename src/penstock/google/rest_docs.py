"""What the REST calls look like, for OpenAPI: schemas of the messages, made from their protobuf descriptors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from msgspec import UNSET, Meta, UnsetType

from penstock.google.messages.methods import Method
from penstock.google.transcoding import Template
from penstock.http import Body, Operation, Parameter, Reply

ID = r"^(?!goog)[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}$"
SCHEMA_ID = r"^(?!goog)[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}(@[0-9a-f]{8})?$"
PROJECT = r"^[A-Za-z0-9][A-Za-z0-9\-_.:]{0,254}$"

TAGS = {
    "Publisher": "Pub/Sub topics",
    "Subscriber": "Pub/Sub subscriptions",
    "SchemaService": "Pub/Sub schemas",
    "IAMPolicy": "Pub/Sub policies",
}

EXAMPLES: dict[str, Any] = {
    "PublishRequest": {"messages": [{"data": "aGVsbG8=", "attributes": {"kind": "greeting"}}]},
    "Subscription": {"topic": "projects/demo/topics/orders", "ackDeadlineSeconds": 30},
    "PullRequest": {"maxMessages": 10},
    "UpdateTopicRequest": {"topic": {"labels": {"team": "shop"}}, "updateMask": "labels"},
    "UpdateSubscriptionRequest": {"subscription": {"ackDeadlineSeconds": 60}, "updateMask": "ackDeadlineSeconds"},
}

PRETTY = Parameter("prettyPrint", "Whether the answer has line breaks and indentation.", {"type": "boolean"})

_SCALARS = {
    FieldDescriptor.TYPE_INT32: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)],
    FieldDescriptor.TYPE_INT64: Annotated[str, Meta(pattern="^-?[0-9]{1,19}$", description="A 64-bit integer, as a string.")],
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_BYTES: bytes,
    FieldDescriptor.TYPE_DOUBLE: float,
}

_WELL_KNOWN = {
    "google.protobuf.Timestamp": Annotated[str, Meta(extra_json_schema={"format": "date-time"})],
    "google.protobuf.Duration": Annotated[str, Meta(pattern=r"^-?[0-9]{1,12}(\.[0-9]{1,9})?s$", description="Seconds: `600s`.")],
    "google.protobuf.FieldMask": Annotated[str, Meta(description="Names of fields: `labels,retryPolicy`.")],
    "google.protobuf.Struct": dict[str, Any],
}


class Documents:
    """Descriptions of calls. It makes one type for a message, however many calls carry it."""

    def __init__(self) -> None:
        self._types: dict[str, Any] = {}

    def operation(self, path: str, method: Method, template: Template, *, verb: str, summary: str) -> Operation:
        """The description of one binding of a method."""
        request = method.request.DESCRIPTOR
        service, _, call = path.rpartition("/")
        body = None
        if template.body is not None:
            content = request if template.body == "*" else request.fields_by_name[template.body].message_type
            in_path = template.field if content.name.endswith("Request") else None
            body = Body(self._type(content, in_path), required=verb != "PUT", example=EXAMPLES.get(content.name))
        return Operation(
            summary=summary,
            description=f"`{call}` of Google's Pub/Sub API. Fields may be named in camelCase or in snake_case.",
            tags=(TAGS[service.rpartition(".")[2]],),
            parameters=(*_in_path(template), *self._in_query(request, template), PRETTY),
            body=body,
            replies={200: Reply("Done.", self._type(method.response.DESCRIPTOR))},
        )

    def _in_query(self, request: Descriptor, template: Template) -> Iterator[Parameter]:
        if template.body == "*":
            return
        for field in request.fields:
            if field.name in {template.body, template.field}:
                continue
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                for inner in field.message_type.fields:
                    yield Parameter(f"{field.camelcase_name}.{inner.camelcase_name}", "", self._single(inner))
            else:
                yield Parameter(field.camelcase_name, "", self._single(field))

    def _type(self, descriptor: Descriptor, in_path: str | None = None) -> Any:
        """A type with the fields of a message, but for the one that the path fills."""
        known = self._types.get(descriptor.full_name)
        if known is None:
            fields = [
                (field.name, self._field(field) | UnsetType, msgspec.field(default=UNSET, name=field.camelcase_name))
                for field in descriptor.fields
                if field.name != in_path
            ]
            known = msgspec.defstruct(
                descriptor.name, fields, forbid_unknown_fields=True, module=__name__, namespace={"__doc__": None}
            )
            self._types[descriptor.full_name] = known
        return known

    def _field(self, field: FieldDescriptor) -> Any:
        if not field.is_repeated:
            return self._single(field)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return dict[str, str]
        return list[self._single(field)]  # type: ignore[misc]  # a type made at run time

    def _single(self, field: FieldDescriptor) -> Any:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            return _WELL_KNOWN.get(field.message_type.full_name) or self._type(field.message_type)
        if field.type == FieldDescriptor.TYPE_ENUM:
            return Literal[tuple(value.name for value in field.enum_type.values)]
        return _SCALARS[field.type]


def _in_path(template: Template) -> Iterator[Parameter]:
    for part in template.name.split("/"):
        if part.startswith("{"):
            name = part.strip("{}")
            pattern = {"project": PROJECT, "schema": SCHEMA_ID}.get(name, ID)
            yield Parameter(name, f"The id of the {name}.", {"type": "string", "pattern": pattern}, "path")
