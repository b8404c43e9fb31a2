"""Converts REST requests to protobuf messages and answers to JSON, by the rules of Google's transcoding.

A request's fields come from its path, its query string and its JSON body; the path has precedence. Names are accepted in
camelCase and in snake_case, and unknown names are refused. Values follow proto3's JSON form, parsed by protobuf's own
`json_format`; input that it accepts too generously (base64 with other characters in it, a string in place of a list) is refused
here before. If a JSON key is repeated, the last one counts.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import parse_qsl

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from penstock.errors import InvalidArgument
from penstock.google.messages.methods import Binding

Message = Any
"""A raw protobuf message: its classes are made at run time, so it has no static type."""

MAX_QUERY_FIELDS = 100
MAX_SHOWN = 300
"""Characters of protobuf's text about a wrong value: it repeats the value, however long it is."""

# Parameters that any call of Google's accepts, with or without a dollar sign. Of these `alt` and `prettyPrint` choose the form of
# the answer; the others are for Google's own frontend (tokens are taken only from headers) and are ignored.
SYSTEM_PARAMETERS = frozenset(
    {
        *("alt", "prettyPrint", "fields", "key", "access_token", "oauth_token"),
        *("quotaUser", "userIp", "upload_protocol", "uploadType", ".xgafv"),
    }
)

_VARIABLE = re.compile(r"\{([a-z_.]+)=([^}]+)\}")
_WRONG = (json_format.Error, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""The errors that `json_format` and the message classes raise for invalid values."""


@dataclass(frozen=True, slots=True)
class Style:
    """The form of an answer."""

    is_pretty: bool = False
    enums_as_numbers: bool = False


@dataclass(frozen=True, slots=True)
class Template:
    """The path of a binding, and the field of the request that it fills."""

    path: str
    """The path in the form of the HTTP server: `/v1/projects/{project}/topics/{topic}:publish`."""
    field: str
    """The field, with dots into messages: `topic`, `topic.name`."""
    name: str
    """The value of the field: `projects/{project}/topics/{topic}`."""
    body: str | None
    """The field that the body fills: `*` for the whole request, one field, or None."""

    @classmethod
    def of(cls, binding: Binding) -> Self:
        """The template of a binding such as `/v1/{topic=projects/*/topics/*}:publish`."""
        variable = _VARIABLE.search(binding.path)
        if variable is None:
            raise InvalidArgument.of("path", binding.path, "a path with one {field=pattern}")
        parts = variable[2].split("/")
        named = [f"{{{parts[index - 1].removesuffix('s')}}}" if part == "*" else part for index, part in enumerate(parts)]
        name = "/".join(named)
        return cls(binding.path.replace(variable[0], name), variable[1], name, binding.body)

    def filled(self, match: Mapping[str, str]) -> str:
        return self.name.format_map(match)


def read_query(query: str) -> tuple[list[tuple[str, str]], Style]:
    """The fields of a query string, and the form of the answer that it requests."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise InvalidArgument(f"the query string is not percent-encoded UTF-8 of at most {MAX_QUERY_FIELDS} parameters") from None
    fields = []
    is_pretty = as_numbers = False
    for name, value in pairs:
        match name.removeprefix("$"):
            case "alt":
                kind, _, encoding = value.partition(";")
                if kind != "json":
                    raise InvalidArgument.of(name, value, "json")
                as_numbers = encoding == "enum-encoding=int"
            case "prettyPrint":
                is_pretty = value.lower() in {"true", "1", ""}
            case plain if plain not in SYSTEM_PARAMETERS:
                fields.append((name, value))
    return fields, Style(is_pretty, as_numbers)


def read_request(request: Message, template: Template, name: str, fields: list[tuple[str, str]], body: bytes) -> Message:
    """Fill an empty request of a call. `name` is the resource of its path, `fields` come from its query."""
    descriptor = request.DESCRIPTOR
    given: dict[str, Any] = {}
    if template.body == "*":
        if fields:
            raise _unknown(fields[0][0], "the query string", "this call takes its fields from the body")
        given = _object(descriptor, _decoded(body), "")
    else:
        if template.body is not None:
            given[template.body] = _value(descriptor.fields_by_name[template.body], _decoded(body), template.body)
        given |= _from_query(descriptor, fields, {template.body, template.field.partition(".")[0]})
    try:
        json_format.ParseDict(given, request)
        *parents, last = template.field.split(".")
        target = request
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, last, name)
    except _WRONG as error:
        raise InvalidArgument(f"the request does not fit {descriptor.name}: {str(error)[:MAX_SHOWN]}") from None
    return request


def write_answer(answer: Message, style: Style) -> bytes:
    """An answer as JSON: camelCase, without what has its default value, as Google writes it."""
    return msgspec.json.encode(json_format.MessageToDict(answer, use_integers_for_enums=style.enums_as_numbers))


def _decoded(body: bytes) -> Any:
    if not body:
        return {}
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidArgument(f"the body is not JSON: {problem[:MAX_SHOWN]}") from None


# ── the body, checked field by field ─────────────────────────────────────────────────────────────────────────────────────


def _object(descriptor: Descriptor, given: Any, path: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InvalidArgument.of(path or "the body", given, "a JSON object")
    checked = {}
    for key, value in given.items():
        field = _field(descriptor, key)
        if field is None:
            raise _unknown(key, path or "the body", f"{descriptor.name} has no such field")
        inner, name = f"{path}.{key}" if path else key, field.name
        if value is None:
            continue  # as if absent, which is the meaning of null in protobuf's JSON
        if name in checked:
            raise InvalidArgument(f"{inner} is given twice, in camelCase and in snake_case")
        if not field.is_repeated:
            checked[name] = _value(field, value, inner)
        elif _is_map(field):
            checked[name] = _map(value, inner)
        elif isinstance(value, list):
            checked[name] = [_value(field, item, f"{inner}[{index}]") for index, item in enumerate(value)]
        else:
            raise InvalidArgument.of(inner, value, "a list")
    return checked


def _value(field: FieldDescriptor, value: Any, path: str) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        match field.message_type.full_name:
            case "google.protobuf.FieldMask":
                return _camel_case(_text(value, path))
            case "google.protobuf.Timestamp" | "google.protobuf.Duration":
                return _text(value, path)
            case "google.protobuf.Struct":
                return value
        return _object(field.message_type, value, path)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _base64(value, path)
    if field.type == FieldDescriptor.TYPE_STRING:
        return _text(value, path)
    if isinstance(value, (dict, list)):
        raise InvalidArgument.of(path, value, "a single value")
    return value


def _map(value: Any, path: str) -> dict[str, str]:
    """All maps of this API are of strings to strings."""
    if not isinstance(value, dict):
        raise InvalidArgument.of(path, value, "a JSON object")
    return {key: _text(item, f"{path}[{key[:80]!r}]") for key, item in value.items()}


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument.of(path, value, "a string")
    return value


def _base64(value: Any, path: str) -> str:
    """Base64 in its canonical form, from either alphabet, padded or not."""
    text = _text(value, path).replace("-", "+").replace("_", "/").rstrip("=")
    padded = text + "=" * (-len(text) % 4)
    try:
        binascii.a2b_base64(padded, strict_mode=True)
    except ValueError:
        raise InvalidArgument.of(path, value, "base64") from None
    return padded


def _camel_case(mask: str) -> str:
    """A field mask with snake_case paths, which Google accepts too, in the only form that `json_format` accepts."""
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), mask)


# ── the query ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_query(descriptor: Descriptor, fields: Iterable[tuple[str, str]], taken: Collection[str | None]) -> dict[str, Any]:
    """The JSON form of fields such as `pageSize=10` and `options.requestedPolicyVersion=3`."""
    found: dict[str, Any] = {}
    for path, value in fields:
        owner, place = descriptor, found
        *parents, last = path.split(".")
        for part in parents:
            field = _field(owner, part)
            if field is None or field.is_repeated or field.type != FieldDescriptor.TYPE_MESSAGE or field.name in taken:
                raise _unknown(path, "the query string", f"{descriptor.name} has no such field")
            owner, place = field.message_type, place.setdefault(field.name, {})
        field = _field(owner, last)
        if field is None or _is_map(field) or (owner is descriptor and field.name in taken):
            raise _unknown(path, "the query string", f"{descriptor.name} has no such field")
        if field.is_repeated:
            place.setdefault(field.name, []).append(_query_value(field, value, path))
        elif field.name in place:
            raise InvalidArgument(f"{path} is given twice in the query string")
        else:
            place[field.name] = _query_value(field, value, path)
    return found


def _query_value(field: FieldDescriptor, value: str, path: str) -> Any:
    if field.type == FieldDescriptor.TYPE_BOOL:
        if value not in {"true", "false"}:
            raise InvalidArgument.of(path, value, "true or false")
        return value == "true"
    return _value(field, value, path)


def _field(descriptor: Descriptor, key: str) -> FieldDescriptor | None:
    return descriptor.fields_by_camelcase_name.get(key) or descriptor.fields_by_name.get(key)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _unknown(name: str, where: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"Unknown name {name[:80]!r} in {where}: {why}")
