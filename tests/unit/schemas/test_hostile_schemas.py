"""Definitions and messages made to hurt: each is answered, soon, by a result or by InvalidArgument."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.errors import InvalidArgument
from penstock.schemas import MAX_DEFINITION, Encoding, Schema, SchemaKind, check_revision, compile_schema

SOON = 60.0  # seconds; the worst here takes less than one on an idle machine
AVRO, PROTO = SchemaKind.AVRO, SchemaKind.PROTOCOL_BUFFER


@contextmanager
def soon() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < SOON


def avro(*fields: object) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)}, separators=(",", ":"))


def proto3(body: str) -> str:
    return f"syntax='proto3';message M{{{body}}}"


def filled(form: str, parts: Callable[[int], str], *, join: str = "") -> str:
    """As many parts as a definition of 100 KB has room for: a third of the largest, to keep the test short."""
    texts: list[str] = []
    room = 100_000 - len(form) - 2
    while room > 0:
        texts.append(parts(len(texts)))
        room -= len(texts[-1]) + len(join)
    return form.replace("...", join.join(texts[:-1]))


def doubling(depth: int) -> str:
    """Records that hold the one before twice: 2 to the power of `depth` values, in no bytes at all."""
    kind: object = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "null"}]}
    fields = [{"name": "f0", "type": kind}]
    for level in range(1, depth):
        pair = [{"name": name, "type": f"R{level - 1}"} for name in "ab"]
        fields.append({"name": f"f{level}", "type": {"type": "record", "name": f"R{level}", "fields": pair}})
    return avro(*fields)


def chain(length: int) -> str:
    """Records of one field that holds the record before."""
    fields: list[object] = [
        {"name": "f0", "type": {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "boolean"}]}}
    ]
    for level in range(1, length):
        inner = {"type": "record", "name": f"R{level}", "fields": [{"name": "a", "type": f"R{level - 1}"}]}
        fields.append({"name": f"f{level}", "type": inner})
    return avro(*fields, {"name": "many", "type": {"type": "array", "items": f"R{length - 1}"}})


WIDE = json.dumps([{"name": f"g{n}", "type": "int", "default": 0} for n in range(1_000)])
DEFINITIONS: list[tuple[SchemaKind, str]] = [
    (AVRO, "[" * 100_000),
    (AVRO, '{"a":' * 50_000),
    (AVRO, avro({"name": "f", "type": "int"})[:-2] + ',{"name":"g","type":' + '{"type":"array","items":' * 9_000),
    (AVRO, '{"type":"record","name":"R","fields":[{"name":"f","type":' + '{"type":' * 300 + '"int"' + "}" * 300 + "}]}"),
    (AVRO, filled('{"type":"record","name":"R","fields":[...]}', lambda n: f'{{"name":"f{n}","type":"int"}}', join=",")),
    (AVRO, filled('{"type":"record","name":"R","fields":[{"name":"f","type":{"type":"enum","name":"E","symbols":[...]}}]}',
                  lambda n: f'"S{n}"', join=",")),
    (AVRO, filled('{"type":"record","name":"R","fields":[{"name":"f","type":{"type":"array","items":{"type":"enum","name":"E",'
                  '"symbols":["a","b"]}},"default":[...]}]}', lambda n: '"a"', join=",")),
    (AVRO, filled('{"type":"record","name":"R","fields":[{"name":"f","type":[...]}]}',
                  lambda n: f'{{"type":"record","name":"N{n}","fields":[]}}', join=",")),
    (AVRO, filled('{"type":"record","name":"R","fields":[{"name":"f","type":{"type":"array","items":{"type":"record","name":"I",'
                  f'"fields":{WIDE}}}}},"default":[...]}}]}}', lambda n: "{}", join=",")),
    (AVRO, filled('{"type":"record","name":"R","namespace":"' + "n" * 1000 + '","fields":[{"name":"f","type":[...]}]}',
                  lambda n: f'{{"type":"fixed","name":"N{n}","size":1,"aliases":["a"]}}', join=",")),
    (AVRO, doubling(60)),
    (AVRO, chain(1_000)),
    (PROTO, "message M{" * 25_000),
    (PROTO, proto3("message M{" * 31 + "}" * 31)),
    (PROTO, filled(proto3("..."), lambda n: f"int32 a{n}={n + 1 if n < 18_999 else n + 1_001};")),
    (PROTO, filled(proto3("..."), lambda n: f"M a{n}={n + 1};")),
    (PROTO, filled(proto3("..."), lambda n: f"message N{n}{{}}")),
    (PROTO, filled(proto3("enum E{...}"), lambda n: f"A{n}={n};")),
    (PROTO, filled(proto3("..."), lambda n: f"map<int32,M>a{n}={n + 1};")),
    (PROTO, filled(proto3("..."), lambda n: f"optional M a{n}={n + 1};")),
    (PROTO, filled(proto3("reserved ...;"), lambda n: str(2 * n + 1), join=",")),
    (PROTO, filled(proto3("int32 a=1[...];"), lambda n: "a=1", join=",")),
    (PROTO, filled("package ...;message M{}", lambda n: "p", join=".")),
    (PROTO, filled(proto3("... a=1;"), lambda n: "M", join=".")),
    (PROTO, proto3("option a={" + "{" * 45_000 + "}" * 45_000 + "};")),
    (PROTO, "/*" * 50_000),
    (PROTO, "/" * 100_000),
    (PROTO, "'" + "\\" * 100_000),
    (PROTO, "syntax=" + "''" * 50_000 + ";"),
    (PROTO, proto3("int32 a=" + "9" * 100_000 + ";")),
    (PROTO, proto3("int32 a=1[default=" + "1e" * 50_000 + "];")),
    (PROTO, ";" * 100_000),
    (PROTO, "\x00" * 100_000),
    (PROTO, "\u20ac" * 100_000),
]  # fmt: skip


def test_a_definition_is_answered_soon(subtests: pytest.Subtests) -> None:
    for kind, definition in DEFINITIONS:
        with subtests.test(kind=kind, definition=definition[:40]), soon():
            assert len(definition.encode()) <= MAX_DEFINITION
            schema = None
            try:
                schema = compile_schema(kind, definition)
                check_revision(schema, schema)
            except InvalidArgument as error:
                told = [str(error)]
            else:
                told = [
                    _told(schema, data, encoding)
                    for encoding in Encoding
                    for data in (b"", b"{}", b"\x00" * 1_000, b"\x02" * 1_000)
                ]
            assert schema is None or len(told) > 1, told  # a schema may follow itself
            assert max(map(len, told)) < 1_000  # an error that somebody reads


def _told(schema: Schema, data: bytes, encoding: Encoding) -> str:
    """What is said of a message; nothing if it is taken."""
    try:
        schema.validate(data, encoding)
    except InvalidArgument as error:
        return str(error)
    return ""


LARGE = 2_000_000
LIST = compile_schema(AVRO, avro({"name": "f", "type": ["null", "R"]}))
ARRAYS = compile_schema(AVRO, avro({"name": "f", "type": {"type": "array", "items": {"type": "array", "items": "null"}}}))
HIMSELF = compile_schema(AVRO, avro({"name": "a", "type": "R"}, {"name": "b", "type": "R"}))
CHAIN = compile_schema(AVRO, chain(150))
ANYTHING = compile_schema(PROTO, proto3("repeated M m=1; map<string,M> n=2; string s=3; repeated int32 i=4; bytes b=5;"))
FAT = compile_schema(PROTO, proto3("repeated F f=1; message F{" + "".join(f"string a{n}={n + 1};" for n in range(3_000)) + "}"))


def test_a_message_is_answered_soon(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Schema, bytes, str]] = [
        (LIST, b"\x02" * LARGE, "nested more than 200 deep"),
        (LIST, b'{"f":{"R":' * (LARGE // 10), "nested too deeply"),
        (LIST, b'{"f":{"R":' * 150 + b'{"f":null}' + b"}}" * 150, "nested more than 200 deep"),
        (HIMSELF, b"\x00" * 100, "nested more than 200 deep"),
        (ARRAYS, b"\xfe\xff\xff\xff\x0f" * 100, "found a count of 2147483647 items"),
        (ARRAYS, b"\x80\xb5\x18" + b"\x00" * 200_001, ""),
        (CHAIN, b"\x00" * 150 + b"\x80\xb5\x18" + b"\x00" * 200_001, ""),
        (LIST, b"[" * LARGE, "nested too deeply"),
        (LIST, b'{"f":' + b"1" * LARGE + b"}", "4,300 digits"),
        (LIST, b'{"' + b"k" * LARGE + b'":1}', "the field is missing"),
        (LIST, b'{"f":"' + b"\xff" * LARGE, "not valid UTF-8"),
        (ANYTHING, b"\xff" * 1_000_000, "more than 10 bytes"),
        (ANYTHING, b"\x0b" * LARGE, "Error parsing message"),
        (ANYTHING, b"\x0b" * 10_000_000, "groups are nested more than 100 deep"),
        (ANYTHING, b'{"' + b"k" * LARGE + b'":1}', "the schema has no such field"),
        (ANYTHING, b'{"b":"' + b"=" * LARGE + b'"}', "expected bytes in base64"),
        (ANYTHING, b'{"i":[' + b"0," * 100_000 + b"null]}", "at i[100000]"),
        (FAT, b"\x0a\x00" * (LARGE // 2), "would take more than 256 MiB of memory"),
    ]
    for schema, data, told in rows:
        with subtests.test(data=data[:40], told=told), soon():
            texts = [_told(schema, data, encoding) for encoding in Encoding]
            assert max(map(len, texts)) < 1_000
            assert told in " ".join(texts)


def test_little_stack_left_is_an_answer_too() -> None:
    """A caller deep in its own calls is told InvalidArgument, never RecursionError."""
    data = b'{"f":{"R":' * 50 + b'{"f":null}' + b"}}" * 50
    answers: list[str] = []

    def sink(depth: int) -> None:
        try:
            LIST.validate(data, Encoding.JSON)
        except InvalidArgument as error:
            answers.append(str(error))
            return
        sink(depth + 1)

    sink(0)
    assert "nested too deeply" in answers[0]
