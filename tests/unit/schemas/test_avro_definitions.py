"""What an Avro definition may say, and what is told of one that may not."""

import json

import pytest

from penstock.errors import InvalidArgument
from penstock.schemas import Encoding, SchemaKind, compile_schema


def record(*fields: object, **more: object) -> dict[str, object]:
    return {"type": "record", "name": "R", "fields": list(fields), **more}


def field(kind: object, **more: object) -> dict[str, object]:
    return {"name": "f", "type": kind, **more}


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


def test_a_sound_definition_compiles(subtests: pytest.Subtests) -> None:
    rows: list[object] = [
        *("string", "null", {"type": "long"}, {"type": "array", "items": "int"}, {"type": "map", "values": "int"}),
        *(ENUM, {"type": "fixed", "name": "F", "size": 2}, ["null", "string", record()]),
        record(),
        record(field("int"), namespace="a.b", doc="said", aliases=["Old"]),
        record(field({"type": "int", "logicalType": "date"})),
        record(field({"type": {"type": "string"}})),
        record(field(["null", "R"], default=None)),
        record(field({"type": "array", "items": "R"}, default=[])),
        record(field({"type": "map", "values": ["null", "R", {"type": "array", "items": "int"}]})),
        record(field(ENUM, default="A"), {"name": "g", "type": "E", "order": "ignore"}),
        record(field({**ENUM, "default": "B"})),
        record(field({"type": "fixed", "name": "F", "size": 2}, default="\xff\x00")),
        record(field({"type": "fixed", "name": "F", "size": 0})),
        record(field("double", default=1)),
        record(field(["string", "null"], default="x", aliases=["old"])),
        record(field({"type": "record", "name": "a.b.Inner", "fields": [field("int", default=3)]}, default={})),
        record(field({"type": "record", "name": "x.E", "fields": [{"name": "n", "type": "E"}]} | {"fields": [field("x.E")]})),
        record(field({"type": "record", "name": "Sibling", "fields": []}), {"name": "g", "type": "n.s.Sibling"}, namespace="n.s"),
    ]
    for definition in rows:
        with subtests.test(definition=definition):
            assert compile_schema(SchemaKind.AVRO, json.dumps(definition)).kind is SchemaKind.AVRO


def test_what_is_wrong_is_told_with_its_place(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, str]] = [
        ("strin", "Avro schema: there is no type 'strin'"),
        (None, "Avro schema: found null, expected a type"),
        ({}, "Avro schema: found an object of 0, expected a type"),
        ([], "the union is empty"),
        (["null", "int", "int"], "at [2]: the union has int twice"),
        ({"type": "array", "items": "R"}, "at items: there is no type 'R'"),
        ({"type": "record", "fields": []}, "'name' is missing"),
        ({"type": "record", "name": "R"}, "'fields' is missing"),
        (record(name="1R"), "at name: found the string '1R'"),
        (record(name="a..R"), "at name"),
        (record(name="int"), "the name 'int' is taken"),
        (record(namespace="a b"), "at namespace"),
        (record(fields={}), "at fields: found an object of 0, expected an array"),
        (record("f"), "at fields[0]: found the string 'f'"),
        (record(field("nothing")), "at fields[0](f).type: there is no type 'nothing'"),
        (record(field(7)), "at fields[0](f).type: found the number 7"),
        (record(field({"items": "int"})), "expected a type"),
        (record(field("int"), field("int")), "at fields[1]: the record has a field 'f' already"),
        (record({"name": "a-b", "type": "int"}), "at fields[0].name"),
        (record(field("int", order="up")), "at fields[0](f).order"),
        (record(field("int", default="1")), "at fields[0](f).default: found the string '1', expected a value of type int"),
        (record(field("int", default=2**31)), ".default"),
        (record(field(["null", "int"], default=1)), "expected a value of type null (of a union: its first branch)"),
        (record(field("boolean", default=0)), ".default"),
        (record(field("bytes", default="\u0100")), ".default"),
        (record(field(ENUM, default="C")), ".default"),
        (record(field({**ENUM, "default": "C"})), "expected one of the symbols"),
        (record(field({**ENUM, "default": []})), "expected one of the symbols"),
        (record(field({**ENUM, "symbols": ["A", "A"]})), "the enum has 'A' already"),
        (record(field({**ENUM, "symbols": ["a b"]})), "symbols[0]"),
        (record(field({"type": "fixed", "name": "F", "size": -1})), "size: found the number -1"),
        (record(field({"type": "fixed", "name": "F", "size": True})), "size: found true"),
        (record(field({"type": "fixed", "name": "F"})), "'size' is missing"),
        (record(field({"type": "array"})), "'items' is missing"),
        (record(field({"type": "map"})), "'values' is missing"),
        (record(field(["int", "int"])), "the union has int twice"),
        (record(field(["int", ["null"]])), "a union may not hold a union"),
        (record(field([])), "the union is empty"),
        (record(field({"type": "record", "name": "R", "fields": []})), "the name 'R' is taken"),
        (record(field({"type": "record", "name": "I", "fields": [field("int")]}, default={})), "is missing and has no default"),
        (record(field({"type": "record", "name": "I", "fields": []}, default={"x": 1})), "the record has no field 'x'"),
        (record(aliases=[""]), "at aliases[0]"),
        (record(name="R" * 1025), "1025 characters"),
        (record(namespace="n" * 1025), "at most 1024"),
    ]
    for definition, told in rows:
        with subtests.test(definition=definition, told=told):
            with pytest.raises(InvalidArgument) as caught:
                compile_schema(SchemaKind.AVRO, json.dumps(definition))
            assert told in str(caught.value)


def test_a_definition_is_strict_json(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("{", "line 1, column 2"),
        ("{'type': 'record'}", "not valid JSON"),
        ('{"type": "record", "name": "R", "name": "S", "fields": []}', "the member 'name' is there twice"),
        ('{"type": "record", "name": "R", "fields": [], "x": NaN}', "NaN is no number of JSON"),
        ('{"type": "record", "name": "R", "fields": []} x', "not valid JSON"),
        ("\ufeff{}", "not valid JSON"),
        ('{"type": "record", "name": "R", "fields": [' + "9" * 5000 + "]}", "4,300 digits"),
        ("\ud800", "half a surrogate pair"),
    ]
    for definition, told in rows:
        with subtests.test(definition=definition, told=told):
            with pytest.raises(InvalidArgument) as caught:
                compile_schema(SchemaKind.AVRO, definition)
            assert told in str(caught.value)


def test_a_name_is_looked_up_in_the_namespace_around_it() -> None:
    inner = {"type": "record", "name": "x.y.Inner", "fields": [field({"type": "fixed", "name": "F", "size": 1})]}
    schema = compile_schema(SchemaKind.AVRO, json.dumps(record(field(inner), {"name": "g", "type": ["null", "x.y.F"]})))

    schema.validate(b'{"f": {"f": "a"}, "g": {"x.y.F": "b"}}', Encoding.JSON)
    with pytest.raises(InvalidArgument, match="there is no type 'F'"):
        compile_schema(SchemaKind.AVRO, json.dumps(record(field(inner), {"name": "g", "type": "F"})))
