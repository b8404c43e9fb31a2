"""Which messages an Avro schema takes, in its JSON and in its binary form."""

import json

import pytest

from penstock.errors import InvalidArgument
from penstock.schemas import Encoding, Schema, SchemaKind, compile_schema


def top(kind: object) -> Schema:
    return compile_schema(SchemaKind.AVRO, json.dumps(kind))


def schema_of(kind: object) -> Schema:
    definition = {"type": "record", "name": "R", "namespace": "n", "fields": [{"name": "f", "type": kind}]}
    return compile_schema(SchemaKind.AVRO, json.dumps(definition))


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 2}
INTS = {"type": "array", "items": "int"}
MAP = {"type": "map", "values": "long"}
RECORD = {"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "null"}]}


def test_json_that_fits_is_taken(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, list[str]]] = [
        ("null", ["null"]),
        ("boolean", ["true", "false"]),
        ("int", ["0", "-2147483648", "2147483647"]),
        ("long", ["9223372036854775807", "-9223372036854775808"]),
        ("float", ["1", "-1.5e3"]),
        ("double", ["1.7976931348623157e308", "1e-999"]),
        ("bytes", ['""', '"\\u00ff\\u0000"', '"\u00ff"']),
        ("string", ['""', '"\\ud83d\\ude00"', '"\u20ac"']),
        (ENUM, ['"A"']),
        (FIXED, ['"\\u00ffa"']),
        (INTS, ["[]", "[1, 2]"]),
        (MAP, ["{}", '{"x": 1, "": 2}']),
        (["null", "int", ENUM, INTS, MAP], ["null", '{"int": 1}', '{"n.E": "B"}', '{"array": [1]}', '{"map": {"a": 1}}']),
        (RECORD, ['{"a": 1, "b": null}', '{"b": null, "a": 1}']),
        (["null", "n.R"], ['{"n.R": {"f": null}}']),
    ]
    for kind, texts in rows:
        with subtests.test(kind=kind, texts=texts):
            for text in texts:
                schema_of(kind).validate(f'{{"f": {text}}}'.encode(), Encoding.JSON)


def test_json_that_does_not_fit_is_told_where(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, str, str]] = [
        ("null", "0", "at f: found the number 0, expected null"),
        ("boolean", "1", "at f: found the number 1, expected boolean"),
        ("int", "2147483648", "at f: found the number 2147483648, expected an int of 32 bits"),
        ("int", "true", "found true"),
        ("int", "1.0", "found the number 1.0"),
        ("int", '"1"', "found the string '1'"),
        ("long", "9223372036854775808", "expected a long of 64 bits"),
        ("double", "NaN", "NaN is no number of JSON"),
        ("double", "1e999", "expected a finite double"),
        ("double", "1" + "0" * 400, "found a number of 401 digits"),
        ("double", '"NaN"', "expected a finite double"),
        ("bytes", '"\u0100"', "expected bytes"),
        ("string", '"\\ud800"', "expected a string"),
        ("string", "null", "found null, expected a string"),
        (ENUM, '"C"', "found the string 'C', expected one of A, B"),
        (ENUM, "[]", "found an array of 0"),
        (FIXED, '"abc"', "expected 2 bytes"),
        (INTS, '[1, "x"]', "at f[1]: found the string 'x'"),
        (INTS, "{}", "expected an array"),
        (MAP, '{"k": null}', "at f.k: found null"),
        (MAP, "[]", "expected an object of a map"),
        (MAP, '{"\\ud800": 1}', "half a surrogate pair"),
        (["null", "int"], "1", 'found the number 1, expected one branch of the union: null, {"int": ...}'),
        (["null", "int"], '{"long": 1}', "found the branch 'long'"),
        (["null", "int"], '{"null": null}', "found the branch 'null'"),
        (["null", "int"], '{"int": 1, "null": 1}', "an object of 2"),
        (["int"], "null", "found null"),
        (["null", ENUM], '{"E": "A"}', "found the branch 'E'"),
        (RECORD, '{"a": 1}', "at f.b: the field is missing"),
        (RECORD, '{"a": 1, "b": null, "c": 1}', "at f.c: the schema has no such field"),
        (RECORD, "[]", "expected an object with the fields a, b"),
        ("int", '1, "f": 1', "the member 'f' is there twice"),
    ]
    for kind, text, told in rows:
        with subtests.test(kind=kind, text=text):
            with pytest.raises(InvalidArgument) as caught:
                schema_of(kind).validate(f'{{"f": {text}}}'.encode("utf-8", "surrogatepass"), Encoding.JSON)
            assert told in str(caught.value)


def test_what_is_not_one_object_of_json_in_utf_8_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [b"", b"\xff", b"[]", b"null", b"{}{}", b'{"f": 1', b"\xff\xfe{\x00}\x00", b'\xef\xbb\xbf{"f": 1}']
    for data in rows:
        with subtests.test(data=data), pytest.raises(InvalidArgument):
            schema_of("int").validate(data, Encoding.JSON)


def test_bytes_that_fit_are_taken_and_a_byte_more_is_not(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, bytes]] = [
        ("null", b""),
        ("boolean", b"\x01"),
        ("int", b"\xff\xff\xff\xff\x0f"),
        ("long", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ("float", b"abcd"),
        ("double", b"abcdefgh"),
        ("bytes", b"\x04\xff\xff"),
        ("string", b"\x04\xc3\xa9"),
        ("string", b"\x80\x01" + b"x" * 64),
        (ENUM, b"\x02"),
        (FIXED, b"\xff\xff"),
        (INTS, b"\x00"),
        (INTS, b"\x04\x02\x02\x02\x02\x00"),
        (INTS, b"\x03\x04\x02\x02\x00"),
        (MAP, b"\x02\x02a\x02\x00"),
        ({"type": "array", "items": "null"}, b"\x80\x80\x01\x00"),
        (["null", "int"], b"\x02\x02"),
        (RECORD, b"\x02"),
        (["null", "n.R"], b"\x02\x02\x02\x00"),
    ]
    for kind, data in rows:
        with subtests.test(kind=kind, data=data):
            schema = schema_of(kind)
            schema.validate(data, Encoding.BINARY)
            with pytest.raises(InvalidArgument, match="1 bytes are left"):
                schema.validate(data + b"\x00", Encoding.BINARY)
            if data:
                with pytest.raises(InvalidArgument, match="at f"):
                    schema.validate(data[:-1], Encoding.BINARY)


def test_bytes_that_do_not_fit_are_told_where(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, bytes, str]] = [
        ("boolean", b"\x02", "at f: found the byte 2, expected a boolean"),
        ("int", b"\x80\x80\x80\x80\x10", "found the integer 2147483648, expected an int of 32 bits"),
        ("long", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x03", "more than 64 bits"),
        ("long", b"\x80" * 11, "more than 10 bytes"),
        ("bytes", b"\x01", "found the length -1"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "the message ends at byte"),
        ("string", b"\x02\xff", "at f: byte 1 is not valid UTF-8"),
        (ENUM, b"\x04", "found the symbol number 2, expected one from 0 to 1"),
        (ENUM, b"\x01", "found the symbol number -1"),
        (["null", "int"], b"\x04", "found the branch number 2"),
        (INTS, b"\x04\x02\x80\x80\x80\x80\x10", "at f[1]: found the integer"),
        (INTS, b"\xfe\xff\xff\xff\x0f\x00", "found a count of 2147483647 items with 1 bytes left"),
        (INTS, b"\x03\x06\x02\x02\x00", "its size says byte"),
        (MAP, b"\x02\x02\xff\x02\x00", "at f[0]: byte 2 is not valid UTF-8"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", "items that take no bytes"),
        (["null", "n.R"], b"\x02" * 10_000, "nested more than 200 deep"),
        (RECORD, b"\x80", "at f.a: the message ends at byte 1, inside an integer"),
    ]
    for kind, data, told in rows:
        with subtests.test(kind=kind, data=data):
            with pytest.raises(InvalidArgument) as caught:
                schema_of(kind).validate(data, Encoding.BINARY)
            assert told in str(caught.value)


def test_the_top_of_a_schema_is_any_type(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, bytes, bytes, bytes]] = [
        ("null", b"null", b"", b"0"),
        ("string", b'"a"', b"\x02a", b"1"),
        ("int", b"1", b"\x02", b"true"),
        ("bytes", b'"\\u00ff"', b"\x02\xff", b'"\\u0100"'),
        (ENUM, b'"B"', b"\x02", b'"C"'),
        (FIXED, b'"ab"', b"ab", b'"abc"'),
        (INTS, b"[1, 2]", b"\x04\x02\x04\x00", b'[1, "x"]'),
        (MAP, b'{"x": 1}', b"\x02\x02x\x02\x00", b'{"x": null}'),
        (["null", "string", RECORD], b'{"I": {"a": 1, "b": null}}', b"\x04\x02", b'"a"'),
        (["null", "string"], b"null", b"\x00", b'{"int": 1}'),
    ]
    for kind, text, data, wrong in rows:
        with subtests.test(kind=kind):
            schema = top(kind)
            schema.validate(text, Encoding.JSON)
            schema.validate(data, Encoding.BINARY)
            with pytest.raises(InvalidArgument, match="message does not match its schema"):
                schema.validate(wrong, Encoding.JSON)
            with pytest.raises(InvalidArgument, match="1 bytes are left"):
                schema.validate(data + b"\x00", Encoding.BINARY)
            if data:
                with pytest.raises(InvalidArgument):
                    schema.validate(data[:-1], Encoding.BINARY)
