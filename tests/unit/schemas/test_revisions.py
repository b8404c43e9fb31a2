"""Which revision may follow which."""

import json

import pytest

from penstock.errors import InvalidArgument
from penstock.schemas import Schema, SchemaKind, check_revision, compile_schema


def avro(*fields: object, name: str = "R") -> Schema:
    return compile_schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": name, "fields": list(fields)}))


def top(kind: object) -> Schema:
    return compile_schema(SchemaKind.AVRO, json.dumps(kind))


def field(kind: object, **more: object) -> dict[str, object]:
    return {"name": "f", "type": kind, **more}


def enum(*symbols: str, **more: object) -> dict[str, object]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def inner(*fields: object) -> dict[str, object]:
    return {"type": "record", "name": "I", "fields": list(fields)}


def array_of(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


def proto(body: str, syntax: str = "proto3") -> Schema:
    return compile_schema(SchemaKind.PROTOCOL_BUFFER, f"syntax = '{syntax}'; message M {{ {body} }}")


LIST = ["null", {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}]


def test_what_may_follow_may_also_be_taken_back(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Schema, Schema]] = [
        (avro(field("int")), avro(field("int"))),
        (avro(), avro(field("int", default=1))),
        (avro(field("int")), avro(field("int"), {"name": "g", "type": ["null", "int"], "default": None})),
        (avro(field("string")), avro(field("bytes"))),
        (avro(field(["int", "null"])), avro(field(["null", "int"]))),
        (avro(field(enum("A", "B"))), avro(field(enum("B", "A")))),
        (avro(field(enum("A", default="A"))), avro(field(enum("A", "B", default="A")))),
        (avro(field(array_of("int"))), avro(field(array_of("int")))),
        (avro(field({"type": "map", "values": inner()})), avro(field({"type": "map", "values": inner(field("int", default=0))}))),
        (avro(field(LIST)), avro(field(LIST))),
        (avro(name="a.R"), avro(name="b.R")),
        (top("string"), top("bytes")),
        (top(["null", "int"]), top(["int", "null"])),
        (top(array_of(inner())), top(array_of(inner(field("int", default=0))))),
        (avro(name="R"), compile_schema(SchemaKind.AVRO, '{"type": "record", "name": "R", "aliases": ["Q"], "fields": []}')),
        (proto("int32 a = 1;"), proto("int32 a = 1;")),
        (proto(""), proto("optional int32 a = 1;")),
        (proto(""), proto("int32 a = 1; M m = 2;")),
        (proto("int32 a = 1; int32 b = 2;"), proto("int32 a = 1; int32 c = 3;")),
        (proto("N n = 1; message N {}"), proto("N n = 1; message N { M m = 1; string s = 2; }")),
        (proto("optional int32 a = 1; required int32 b = 2;", "proto2"), proto("required int32 b = 2;", "proto2")),
    ]
    for one, other in rows:
        with subtests.test(one=one, other=other):
            check_revision(one, other)
            check_revision(other, one)


def test_what_may_not_follow_may_not_be_taken_back_either(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Schema, Schema, str]] = [
        (avro(), avro(field("int")), "at f: the field is only in one of the two and has no default"),
        (avro(field("int")), avro(field("long")), "at f: long cannot be read as int"),
        (avro(field("int")), avro(field("string")), "cannot be read as"),
        (avro(field("int")), avro(field(["null", "int"])), "at f: null cannot be read as int"),
        (avro(field(["int", "string"])), avro(field(["int", "boolean"])), "no branch of the union reads"),
        (avro(field(enum("A"))), avro(field(enum("A", "B"))), "the symbol 'B' of the enum 'E' is gone"),
        (avro(field(enum("A"))), avro(field({**enum("A"), "name": "F"})), "the enum"),
        (avro(name="R"), avro(name="Q"), "the record"),
        (top("int"), top("long"), "the old cannot read the new: long cannot be read as int"),
        (top("string"), avro(), "the record 'R' cannot be read as string"),
        (top(enum("A")), top(enum("A", "B")), "the symbol 'B' of the enum 'E' is gone"),
        (proto(""), top("int"), "stays one"),
        (
            avro(field({"type": "fixed", "name": "F", "size": 1})),
            avro(field({"type": "fixed", "name": "F", "size": 2})),
            "bytes in one",
        ),
        (avro(field(array_of(inner()))), avro(field(array_of(inner(field("int"))))), "at f.f:"),
        (avro(field(array_of("int"))), avro(field({"type": "map", "values": "int"})), "cannot be read as"),
        (proto("int32 a = 1;"), proto("int64 a = 1;"), "at M.a: the field was int32 a = 1 and is int64 a = 1"),
        (proto("int32 a = 1;"), proto("int32 b = 1;"), "the field was int32"),
        (proto("int32 a = 1;"), proto("int32 a = 2;"), "at M.a: the field had the number"),
        (proto("int32 a = 1;"), proto("repeated int32 a = 1;"), "at M.a: the field was"),
        (proto("int32 a = 1;"), proto("oneof o { int32 a = 1; }"), "int32 a = 1 in oneof o"),
        (proto(""), proto("repeated int32 a = 1;"), "the repeated field is"),
        (proto(""), proto("map<string, string> a = 1;"), "the repeated field is"),
        (proto("", "proto2"), proto("required int32 a = 1;", "proto2"), "the required field is"),
        (proto("map<string, int32> a = 1;"), proto("map<string, int64> a = 1;"), "at AEntry.value: the field was"),
        (proto("N n = 1; message N { N n = 2; int32 a = 3; }"), proto("N n = 1; message N { N n = 2; bool a = 3; }"), "at N.a:"),
        (proto("enum E { A = 0; B = 1; } E e = 1;"), proto("enum E { A = 0; B = 2; } E e = 1;"), "is gone"),
        (proto("int32 a = 1;"), avro(), "stays one"),
    ]
    for one, other, told in rows:
        with subtests.test(one=one, other=other):
            texts = []
            for old, new in ((one, other), (other, one)):
                with pytest.raises(InvalidArgument) as caught:
                    check_revision(old, new)
                texts.append(str(caught.value))
            assert told in " ".join(texts)


def test_an_alias_lets_only_the_reader_that_has_it_read() -> None:
    renamed = avro({"name": "g", "type": "int", "aliases": ["f"]})

    with pytest.raises(InvalidArgument, match="the old cannot read the new: at f"):
        check_revision(avro(field("int")), renamed)


def test_a_value_may_be_added_to_an_enum_and_not_removed() -> None:
    few, many = proto("enum E { A = 0; } E e = 1;"), proto("enum E { A = 0; B = 1; } E e = 1;")

    check_revision(few, many)
    with pytest.raises(InvalidArgument, match="the value 'B' = 1 is gone"):
        check_revision(many, few)


def test_a_pair_that_turned_out_unreadable_takes_back_what_counted_on_it() -> None:
    """While A is compared, B inside counts on A. A fails, its stand-in reads `u`; `b`, looked at next, is still unreadable."""

    def schema(kind: str, *more: object) -> Schema:
        b = {"type": "record", "name": "B", "fields": [{"name": "a", "type": ["null", "A"]}]}
        a = {"type": "record", "name": "A", "fields": [{"name": "b", "type": b}, {"name": "x", "type": kind}]}
        return avro({"name": "u", "type": ["null", a, *more]}, {"name": "b", "type": "B"})

    stand_in = {"type": "record", "name": "C", "aliases": ["A"], "fields": []}
    with pytest.raises(InvalidArgument, match=r"the new revision cannot read the old: at b\.a: no branch"):
        check_revision(schema("string"), schema("int", stand_in))
