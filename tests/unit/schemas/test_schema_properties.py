"""Promises for any schema: what its encoder writes is taken, and any bytes at all are answered by yes or InvalidArgument.

The encoders are others' work: fastavro for Avro, google.protobuf for Protocol Buffers.
"""

import io
import json
from typing import Any

import fastavro
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.schemas import Encoding, Schema, SchemaKind, check_revision, compile_schema
from penstock.schemas.proto_parser import parse_proto

Pair = tuple[Any, Any]  # an Avro type and a value of it: JSON trees of any form


def is_valid(schema: Schema, data: bytes, encoding: Encoding) -> bool:
    """Whether the data is taken; any other error than InvalidArgument is the test's failure."""
    try:
        schema.validate(data, encoding)
    except InvalidArgument:
        return False
    return True


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.binary(max_size=9),
    "string": st.text(max_size=9),
}


@st.composite
def avro_pairs(draw: st.DrawFn, names: list[str], depth: int = 3) -> Pair:
    """A type and a value. Values of unions are tuples of the branch's name and the value, as fastavro takes them."""
    forms = ["scalar", "scalar", "enum", "fixed"] + ["array", "map", "record", "union"] * (depth > 0)
    name = f"N{len(names)}"
    match draw(st.sampled_from(forms)):
        case "enum":
            names.append(name)
            return {"type": "enum", "name": name, "symbols": ["A", "B"]}, draw(st.sampled_from("AB"))
        case "fixed":
            names.append(name)
            return {"type": "fixed", "name": name, "size": 3}, draw(st.binary(min_size=3, max_size=3))
        case "array" | "map" as form:
            kind, value = draw(avro_pairs(names, depth - 1))
            count = draw(st.integers(0, 3))
            if form == "array":
                return {"type": "array", "items": kind}, [value] * count
            return {"type": "map", "values": kind}, dict.fromkeys(draw(st.lists(st.text(max_size=3), max_size=3)), value)
        case "record":
            names.append(name)
            fields = [draw(avro_pairs(names, depth - 1)) for _ in range(draw(st.integers(0, 3)))]
            kinds = [{"name": f"f{index}", "type": kind} for index, (kind, _) in enumerate(fields)]
            return {"type": "record", "name": name, "fields": kinds}, {
                f"f{index}": value for index, (_, value) in enumerate(fields)
            }
        case "union":
            scalar = draw(st.sampled_from(sorted(SCALARS)))
            kind, value = draw(
                avro_pairs(names, depth - 1).filter(lambda pair: not isinstance(pair[0], list) and pair[0] != scalar)
            )
            if draw(st.booleans()):
                return [scalar, kind], (branch_of(kind), value)
            return [scalar, kind], (scalar, draw(SCALARS[scalar]))
    scalar = draw(st.sampled_from(sorted(SCALARS)))
    return scalar, draw(SCALARS[scalar])


def branch_of(kind: Any) -> str:
    return str(kind if isinstance(kind, str) else kind.get("name", kind["type"]))


def as_json(kind: Any, value: Any) -> object:
    """Avro's JSON form, written down from the specification."""
    match kind:
        case list():
            branch, inner = value
            picked = next(option for option in kind if branch_of(option) == branch)
            return None if branch == "null" else {branch: as_json(picked, inner)}
        case "bytes" | {"type": "fixed"}:
            return value.decode("latin-1")
        case {"type": "array", "items": items}:
            return [as_json(items, item) for item in value]
        case {"type": "map", "values": values}:
            return {key: as_json(values, item) for key, item in value.items()}
        case {"type": "record", "fields": fields}:
            return {field["name"]: as_json(field["type"], value[field["name"]]) for field in fields}
    return value


def for_fastavro(kind: Any, value: Any) -> Any:
    """The same value with `null` of a union bare: fastavro takes no tuple for it."""
    match kind:
        case list():
            branch, inner = value
            picked = next(option for option in kind if branch_of(option) == branch)
            # A tuple inside a tuple is taken for a hint too, so the inner value is converted first.
            return None if branch == "null" else (branch, for_fastavro(picked, inner))
        case {"type": "array", "items": items}:
            return [for_fastavro(items, item) for item in value]
        case {"type": "map", "values": values}:
            return {key: for_fastavro(values, item) for key, item in value.items()}
        case {"type": "record", "fields": fields}:
            return {field["name"]: for_fastavro(field["type"], value[field["name"]]) for field in fields}
    return value


@st.composite
def avro_messages(draw: st.DrawFn) -> tuple[Schema, bytes, bytes]:
    """A schema, and a message of it in JSON and in binary."""
    definition, value = draw(avro_pairs([]))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(definition), for_fastavro(definition, value))
    schema = compile_schema(SchemaKind.AVRO, json.dumps(definition))
    return schema, json.dumps(as_json(definition, value)).encode(), out.getvalue()


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """The data with a few bytes replaced, removed, put in or doubled."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(changed)))
        match draw(st.sampled_from(["replace", "remove", "insert", "double", "cut"])):
            case "replace":
                changed[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "remove":
                del changed[at : at + draw(st.integers(1, 3))]
            case "insert":
                changed[at:at] = draw(
                    st.one_of(st.binary(max_size=3), st.sampled_from([b"\xff" * 9, b"[", b"{", b"null", b"1e9"]))
                )
            case "double":
                changed[at:at] = changed[at : at + 8]
            case "cut":
                del changed[at:]
    return bytes(changed)


@given(avro_messages())
def test_what_an_avro_encoder_writes_is_taken(message: tuple[Schema, bytes, bytes]) -> None:
    schema, text, data = message

    schema.validate(text, Encoding.JSON)
    schema.validate(data, Encoding.BINARY)
    check_revision(schema, schema)
    assert not is_valid(schema, data + b"\x00", Encoding.BINARY)


@given(avro_messages(), st.data())
def test_any_bytes_are_answered_by_an_avro_schema(message: tuple[Schema, bytes, bytes], data: st.DataObject) -> None:
    schema, text, binary = message

    is_valid(schema, data.draw(mutated(text)), Encoding.JSON)
    is_valid(schema, data.draw(st.binary(max_size=30)), Encoding.BINARY)
    changed = data.draw(mutated(binary))
    if is_valid(schema, changed, Encoding.BINARY):
        # What we take, the reader that subscribers use can read, to the last byte.
        source = io.BytesIO(changed)
        fastavro.schemaless_reader(source, fastavro.parse_schema(json.loads(schema.definition)), None)
        assert source.read() == b""


DEFINITION = """
syntax = "proto3";
message M {
  enum E { A = 0; B = 1; C = -5; }
  message N { optional string s = 1; repeated M ms = 2; map<string, E> es = 3; }
  string text = 1; int32 i32 = 2; uint64 u64 = 3; float real = 4; double exact = 5; bool yes = 6; bytes raw = 7; E choice = 8;
  repeated sint64 many = 9; map<int32, N> by_number = 10; map<bool, string> by_yes = 11;
  oneof either { int32 left = 12; N right = 13; }
  N snake_case = 14; fixed32 f32 = 15; sfixed64 sf64 = 16; repeated E choices = 17; repeated string texts = 18;
}
"""
PROTO = compile_schema(SchemaKind.PROTOCOL_BUFFER, DEFINITION)


def message_class() -> Any:
    pool = DescriptorPool()
    pool.AddSerializedFile(parse_proto(DEFINITION).SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("M"))


M = message_class()  # its fields are made from the definition at run time

ENUMS = st.sampled_from([0, 1, -5, 77])
TEXTS = st.text(max_size=5)
BASES: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXTS,
    "i32": SCALARS["int"],
    "u64": st.integers(0, 2**64 - 1),
    "real": st.floats(width=32),
    "exact": st.floats(),
    "yes": st.booleans(),
    "raw": st.binary(max_size=5),
    "choice": ENUMS,
    "many": st.lists(SCALARS["long"], max_size=3),
    "by_yes": st.dictionaries(st.booleans(), TEXTS),
    "f32": st.integers(0, 2**32 - 1),
    "sf64": SCALARS["long"],
    "choices": st.lists(ENUMS, max_size=3),
    "texts": st.lists(TEXTS, max_size=3),
}


@st.composite
def proto_messages(draw: st.DrawFn, depth: int = 2) -> Any:
    given_fields = draw(st.fixed_dictionaries({}, optional=BASES))
    message = M(**given_fields)
    if depth and draw(st.booleans()):
        inner = M.N(s=draw(st.none() | TEXTS), ms=draw(st.lists(proto_messages(depth - 1), max_size=2)), es={"k": draw(ENUMS)})
        match draw(st.sampled_from(["snake_case", "by_number", "right", "left"])):
            case "by_number":
                message.by_number[draw(SCALARS["int"])].CopyFrom(inner)
            case "left":
                message.left = draw(SCALARS["int"])
            case name:
                getattr(message, name).CopyFrom(inner)
    return message


@given(proto_messages(), st.booleans(), st.booleans())
def test_what_a_protocol_buffer_encoder_writes_is_taken(message: Any, keeps_names: bool, as_numbers: bool) -> None:
    text = json_format.MessageToJson(message, preserving_proto_field_name=keeps_names, use_integers_for_enums=as_numbers)

    PROTO.validate(text.encode(), Encoding.JSON)
    PROTO.validate(message.SerializeToString(), Encoding.BINARY)


@given(proto_messages(), st.data())
def test_any_bytes_are_answered_as_the_library_answers(message: Any, data: st.DataObject) -> None:
    changed = data.draw(mutated(message.SerializeToString()) | st.binary(max_size=30))
    try:
        M.FromString(changed)
        taken = True
    except DecodeError:
        taken = False
    assert is_valid(PROTO, changed, Encoding.BINARY) is taken

    text = data.draw(mutated(json_format.MessageToJson(message, indent=0).encode()))
    if is_valid(PROTO, text, Encoding.JSON):
        json_format.Parse(text, M())  # we take nothing that the library refuses


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["A", "B", "1", "-7", "1.0", "NaN", "Infinity", "true", "", "YQ==", "YQ", "_-8", "1e3"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["1", "true", "s", "ms", "es", "text"]), inner, max_size=2)
    ),
    max_leaves=4,
)
KEYS = st.sampled_from([*BASES, "snakeCase", "snake_case", "byNumber", "byYes", "left", "right", "other"])


@given(st.dictionaries(KEYS, JSON_VALUES, max_size=3))
def test_json_is_judged_as_the_library_judges_it(value: dict[str, Any]) -> None:
    text = json.dumps(value).encode()
    try:
        json_format.Parse(text, M())
        taken = True
    except json_format.ParseError:
        taken = False
    if not is_valid(PROTO, text, Encoding.JSON):
        # The library takes more than the mapping allows: numbers of enums in strings, base64 with characters that are not of
        # it, and an empty array or string for a message.
        assert not taken or any(loose in text for loose in (b"choice", b"es", b"raw", b"[]", b'""'))
    else:
        assert taken


@given(st.data())
def test_any_definition_is_answered(data: st.DataObject) -> None:
    for kind, definition in ((SchemaKind.PROTOCOL_BUFFER, DEFINITION), (SchemaKind.AVRO, AVRO_DEFINITION)):
        text = data.draw(mutated(definition.encode())).decode("utf-8", "replace")
        try:
            schema = compile_schema(kind, text)
        except InvalidArgument:
            continue
        check_revision(schema, schema)
        is_valid(schema, b"{}", Encoding.JSON)
        is_valid(schema, b"\x0a\x00", Encoding.BINARY)


AVRO_DEFINITION = json.dumps(
    {
        "type": "record",
        "name": "R",
        "namespace": "a.b",
        "fields": [
            {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}, "default": "B"},
            {"name": "u", "type": ["null", "R", "E", {"type": "array", "items": "R"}], "default": None, "aliases": ["v"]},
            {"name": "m", "type": {"type": "map", "values": {"type": "fixed", "name": "F", "size": 3}}, "default": {"k": "abc"}},
        ],
    }
)


def test_the_definition_that_is_mutated_is_sound(subtests: pytest.Subtests) -> None:
    for encoding in list(Encoding):
        with subtests.test(encoding=encoding):
            assert not is_valid(compile_schema(SchemaKind.AVRO, AVRO_DEFINITION), b"[]", encoding)
