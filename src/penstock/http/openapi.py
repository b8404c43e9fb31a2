"""The OpenAPI document of a table of routes. It is generated from the served table, so no served route is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.http.routes import JSON, Operation, Parameter, Reply, Route, RouteTable, Schema

_REFERENCE = "#/components/schemas/{name}"

SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A token of `penstock token create`."},
    "basic": {"type": "http", "scheme": "basic", "description": "Any user name, and the token as the password."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The token."},
}


def openapi(table: RouteTable, *, title: str, version: str, description: str = "", is_secured: bool = True) -> dict[str, Any]:
    """The OpenAPI 3.1 document of all routes of a table. `is_secured`: whether routes that are not open require a token."""
    types = [schema for route in table for schema in _schemas(route) if not isinstance(schema, Mapping)]
    found, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    described = dict(zip(map(repr, types), found, strict=True))  # not all types are hashable; equal ones have the same repr
    paths: dict[str, dict[str, Any]] = {}
    for route in table:
        entry = _operation(route, described)
        if is_secured and route.is_open:
            entry["security"] = []
        paths.setdefault(route.path, {})[route.method.lower()] = entry
    tags = dict.fromkeys(tag for route in table for tag in route.operation.tags)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": description},
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": {"schemas": components},
    }
    if is_secured:
        document["components"]["securitySchemes"] = SECURITY_SCHEMES
        document["security"] = [{name: []} for name in SECURITY_SCHEMES]
    return document


def _schemas(route: Route) -> list[Schema]:
    operation = route.operation
    bodies = [operation.body.schema] if operation.body is not None else []
    replies = [reply.schema for reply in operation.replies.values() if reply.schema is not None]
    return [*(parameter.schema for parameter in operation.parameters), *bodies, *replies, route.errors.schema]


def _operation(route: Route, described: Mapping[str, Any]) -> dict[str, Any]:
    operation = route.operation
    entry: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": operation.summary,
        "tags": list(operation.tags),
    }
    if operation.description:
        entry["description"] = operation.description
    if route.parameters or operation.parameters:
        entry["parameters"] = [_parameter(parameter, described) for parameter in _parameters(route)]
    if operation.body is not None:
        body = operation.body
        content = _content(body.schema, body.content_type, body.example, described)
        entry["requestBody"] = {"description": body.description, "required": body.required, "content": content}
    entry["responses"] = _responses(operation, described)
    entry["responses"]["default"] = {
        "description": "An error: the status is its kind, the body explains it.",
        "content": _content(route.errors.schema, JSON, None, described),
    }
    return entry


def _parameters(route: Route) -> list[Parameter]:
    """The described parameters, and strings for path parameters without a description."""
    known = {parameter.name for parameter in route.operation.parameters if parameter.where == "path"}
    return [*(Parameter(name, "", str, "path") for name in route.parameters if name not in known), *route.operation.parameters]


def _parameter(parameter: Parameter, described: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1} if parameter.schema is str else _schema(parameter.schema, described)
    entry = {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required or parameter.where == "path",
        "schema": schema,
    }
    if parameter.description:
        entry["description"] = parameter.description
    if parameter.example is not None:
        entry["example"] = parameter.example
    return entry


def _responses(operation: Operation, described: Mapping[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    replies = dict(operation.replies)
    if operation.is_websocket:
        replies = {101: Reply("The connection is a WebSocket from now on."), **{s: r for s, r in replies.items() if s != 200}}
    for status, reply in replies.items():
        responses[str(status)] = {"description": reply.description}
        if reply.schema is not None:
            responses[str(status)]["content"] = _content(reply.schema, reply.content_type, reply.example, described)
    return responses


def _content(schema: Schema, content_type: str, example: object, described: Mapping[str, Any]) -> dict[str, Any]:
    media: dict[str, Any] = {"schema": _schema(schema, described)}
    if example is not None:
        media["example"] = example
    return {content_type: media}


def _schema(schema: Schema, described: Mapping[str, Any]) -> Any:
    return schema if isinstance(schema, Mapping) else described[repr(schema)]


def _operation_id(route: Route) -> str:
    words = re.findall(r"[A-Za-z0-9]+", route.path) or ["root"]
    return route.method.lower() + "".join(word[:1].upper() + word[1:] for word in words)
