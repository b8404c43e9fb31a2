"""Every operation is on the wire, asks whether the caller may, and is refused to who may nothing."""

import asyncio
import inspect
import types
from datetime import UTC, datetime
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from penstock import Broker
from penstock.access import Principal, Verb
from penstock.api.operations import Operations
from penstock.api.service import embedded_service
from penstock.errors import InvalidArgument, PermissionDenied, Unimplemented
from penstock.wire import operations as wire
from penstock.wire.operations import operation

NAMES = sorted(
    name
    for name, value in inspect.getmembers(Operations)
    if not name.startswith("_") and inspect.iscoroutinefunction(value) and name != "publish_checked"  # for the same process alone
)
KINDS = {"topic", "subscription", "queue", "snapshot", "schema"}
NAMED = [name for name in NAMES if KINDS & {*operation(name).parameters}]
"""Those that name something; the others are about the project as a whole."""
FOR_EVERYBODY = {"info"}
"""It tells the version and whether the disk is well, and nothing of what is kept."""
NOBODY = Principal("nobody", None, frozenset())
SOMETHING: dict[type, object] = {
    str: "some-name",
    int: 1,
    float: 1.0,
    bool: True,
    bytes: b"x",
    datetime: datetime(2026, 1, 1, tzinfo=UTC),
}
GIVEN = {
    "message_id": "0" * 30,
    "kind": "AVRO",
    "encoding": "JSON",
    "definition": '"string"',
    "payload": "x",
    "changes": {},
    **dict.fromkeys(KINDS, "some-name"),
}


def made_up(name: str, hint: Any) -> object:
    """A value of a type, such that nothing but the caller is wrong."""
    if name in GIVEN:
        return GIVEN[name]
    origin, args = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        return None if type(None) in args else made_up(name, args[0])
    if origin is list:
        return [made_up("", args[0])]
    if origin is tuple:
        return tuple(made_up("", one) for one in args)
    return SOMETHING[hint] if hint in SOMETHING else hint(**required(hint))


def required(kind: Any) -> dict[str, object]:
    hints = get_type_hints(kind)
    parameters = inspect.signature(kind).parameters.values()
    return {one.name: made_up(one.name, hints[one.name]) for one in parameters if one.default is inspect.Parameter.empty}


def arguments_of(name: str) -> dict[str, object]:
    method = getattr(Operations, name)
    hints = get_type_hints(method)
    return {one: made_up(one, hints[one]) for one in operation(name).parameters}


async def refusal(name: str, principal: Principal, project: str = "penstock") -> None:
    broker = Broker()
    service = embedded_service(broker)
    try:
        await getattr(Operations(service, principal, project), name)(**arguments_of(name))
    finally:
        service.close()
        service.aio.close()
        broker.close()


def test_there_are_operations() -> None:
    assert {"publish", "pull", "create_topic", "create_queue", "create_schema", "trace", "overview"} <= set(NAMES)
    assert len(NAMES) > 40


def test_who_may_nothing_is_refused_every_operation(subtests: pytest.Subtests) -> None:
    for name in [name for name in NAMES if name not in FOR_EVERYBODY]:
        with subtests.test(name=name), pytest.raises(PermissionDenied):
            asyncio.run(refusal(name, NOBODY))


def test_who_belongs_to_another_project_is_refused_every_operation(subtests: pytest.Subtests) -> None:
    for name in [name for name in NAMES if name not in FOR_EVERYBODY]:
        with subtests.test(name=name), pytest.raises(PermissionDenied):
            asyncio.run(refusal(name, Principal("red", "red", frozenset(Verb)), "blue"))


def test_who_may_use_other_names_is_refused_every_operation_that_has_a_name(subtests: pytest.Subtests) -> None:
    for name in NAMED:
        with subtests.test(name=name), pytest.raises(PermissionDenied):
            asyncio.run(refusal(name, Principal("other", None, frozenset(Verb), ("other-*",))))


def test_arguments_of_every_operation_cross_the_wire(subtests: pytest.Subtests) -> None:
    for name in NAMES:
        with subtests.test(name=name):
            given = arguments_of(name)
            read = operation(name).read_arguments(msgspec.msgpack.encode(given))
            assert {one: getattr(read, one) for one in operation(name).parameters} == given


def test_an_argument_that_no_operation_has_is_refused(subtests: pytest.Subtests) -> None:
    for name in NAMES:
        with subtests.test(name=name), pytest.raises((msgspec.ValidationError, InvalidArgument)):
            operation(name).read_arguments(msgspec.msgpack.encode({**arguments_of(name), "extra": 1}))


def test_only_public_coroutines_are_operations(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "",
        "_name",
        "_change",
        "__init__",
        "__class__",
        "open",
        "open_queue",
        "lease",
        "ack_many",
        "list_dead_letters",
        "info.x",
        "Info",
        "info ",
        "mro",
        "\ud800",
    ]
    for name in rows:
        with subtests.test(name=name), pytest.raises(Unimplemented):
            operation(name)


def test_the_operations_of_the_protocol_and_those_of_the_broker_are_the_same(subtests: pytest.Subtests) -> None:
    listed = {name for name, value in inspect.getmembers(wire.Operations) if inspect.iscoroutinefunction(value)}
    assert listed == set(NAMES)
    for name in NAMES:
        with subtests.test(name=name):
            promised, given = getattr(wire.Operations, name), getattr(Operations, name)
            assert inspect.signature(promised) == inspect.signature(given)
            assert get_type_hints(promised) == get_type_hints(given)
