"""Which messages a Protocol Buffer schema takes, in its JSON and in its binary form."""

import pytest

from penstock.errors import InvalidArgument
from penstock.schemas import Encoding, SchemaKind, compile_schema

PROTO3 = compile_schema(
    SchemaKind.PROTOCOL_BUFFER,
    """
    syntax = "proto3";
    message M {
      enum E { A = 0; B = 1; }
      string text = 1;
      int32 small = 2;
      uint64 large = 3;
      float real = 4;
      double exact = 5;
      bool yes = 6;
      bytes raw = 7;
      E choice = 8;
      repeated sint32 many = 9;
      map<int32, M> by_number = 10;
      map<bool, string> by_yes = 11;
      oneof either { int32 left = 12; M right = 13; }
      M inner = 14;
      optional int32 with_name = 15 [json_name = "named"];
    }
    """,
)
PROTO2 = compile_schema(
    SchemaKind.PROTOCOL_BUFFER,
    """
    message M {
      enum E { A = 1; }
      required int32 must = 1;
      optional E choice = 2;
      optional M inner = 3;
      optional string text = 4;
    }
    """,
)


def test_json_that_fits_is_taken(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "{}",
        '{"text": "\\ud83d\\ude00", "small": -2147483648, "large": "18446744073709551615"}',
        '{"small": "7", "large": 1e3, "many": [1, "2", -3.0]}',
        '{"real": 3.4028234e38, "exact": "NaN"}',
        '{"real": "-Infinity", "exact": "1.5e3"}',
        '{"yes": true, "raw": "_-8=", "choice": "B"}',
        '{"raw": "/+8", "choice": 7}',
        '{"raw": "", "choice": null, "many": null, "byNumber": null, "inner": null}',
        '{"byNumber": {"-1": {}, "2": {"text": ""}}, "byYes": {"true": "x"}}',
        '{"by_number": {}, "left": 1, "right": null}',
        '{"named": 1}',
        '{"with_name": 1}',
        '{"inner": {"inner": {"left": 1}}, "right": {"left": 1}}',
    ]
    for text in rows:
        with subtests.test(text=text):
            PROTO3.validate(text.encode(), Encoding.JSON)


def test_json_that_does_not_fit_is_told_where(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("[]", "found an array of 0, expected an object"),
        ("null", "found null"),
        ('{"other": 1}', "at other: the schema has no such field"),
        ('{"[x.y]": 1}', "the schema has no such field"),
        ('{"text": 1}', "at text: found the number 1, expected a string"),
        ('{"text": "\\udc00"}', "expected a string"),
        ('{"small": 2147483648}', "expected an integer from -2147483648 to 2147483647"),
        ('{"small": 1.5}', "found the number 1.5, expected an integer"),
        ('{"small": true}', "found true, expected an integer"),
        ('{"small": ""}', "expected an integer"),
        ('{"small": " 1"}', "expected an integer"),
        ('{"small": "1_0"}', "expected an integer"),
        ('{"large": -1}', "expected an integer from 0"),
        ('{"large": 1e300}', "expected an integer from 0"),
        ('{"large": 1e999}', "expected an integer"),
        ('{"real": 3.5e38}', "expected a float"),
        ('{"exact": 1e999}', "expected a double"),
        ('{"exact": NaN}', "NaN is no number of JSON"),
        ('{"exact": "nan"}', "expected a double"),
        ('{"exact": "1e999"}', "expected a double"),
        ('{"exact": true}', "expected a double"),
        ('{"exact": {}}', "expected a double"),
        ('{"yes": "true"}', "expected true or false"),
        ('{"raw": "a"}', "expected bytes in base64"),
        ('{"raw": "a b="}', "expected bytes in base64"),
        ('{"choice": "C"}', "expected a name or number of the enum E"),
        ('{"choice": 2147483648}', "expected a name or number"),
        ('{"choice": true}', "expected a name or number"),
        ('{"many": 1}', "expected an array"),
        ('{"many": [1, null]}', "at many[1]: found null"),
        ('{"byNumber": []}', "expected an object of a map"),
        ('{"byNumber": {"x": {}}}', "at byNumber.x: found the string 'x', expected an integer"),
        ('{"byNumber": {"1": null}}', "at byNumber.1: found null"),
        ('{"byYes": {"TRUE": ""}}', "expected 'true' or 'false'"),
        ('{"left": 1, "right": {}}', "at right: another field of the oneof 'either' is set too"),
        ('{"named": 1, "with_name": 1}', "the field is there twice"),
        ('{"text": "", "text": ""}', "the member 'text' is there twice"),
        ('{"inner": {"many": [0, {}]}}', "at inner.many[1]: found an object of 0"),
        ('{"inner":' * 101 + "{}" + "}" * 101, "nested more than 100 deep"),
        ('{"inner":' * 90_000, "nested too deeply"),
    ]
    for text, told in rows:
        with subtests.test(text=text, told=told):
            with pytest.raises(InvalidArgument) as caught:
                PROTO3.validate(text.encode(), Encoding.JSON)
            assert told in str(caught.value)


def test_proto2_asks_for_required_fields_and_known_values() -> None:
    PROTO2.validate(b'{"must": 1, "choice": 1, "inner": {"must": 2}}', Encoding.JSON)
    PROTO2.validate(b"\x08\x01\x1a\x02\x08\x02", Encoding.BINARY)
    PROTO2.validate(b"\x08\x01\x22\x01\xff", Encoding.BINARY)  # text of proto2 is any bytes on the wire
    for text, told in [
        (b"{}", "at must: the required field is missing"),
        (b'{"must": null}', "at must: the required field is missing"),
        (b'{"must": 1, "inner": {}}', "at inner.must: the required field"),
        (b'{"must": 1, "choice": 2}', "at choice: found the number 2"),
    ]:
        with pytest.raises(InvalidArgument, match=told):
            PROTO2.validate(text, Encoding.JSON)
    for data, told in [(b"", "at must: the required field"), (b"\x08\x01\x1a\x00", "at inner.must: the required field")]:
        with pytest.raises(InvalidArgument, match=told):
            PROTO2.validate(data, Encoding.BINARY)


def test_bytes_that_fit_are_taken(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [
        b"",
        b"\x0a\x02hi\x10\x07",
        b"\x10\x07\x10\x08",  # the last of two counts
        b"\x4a\x02\x01\x02\x48\x03",  # packed and not packed
        b"\x52\x04\x08\x01\x12\x00",
        b"\x72\x02\x10\x01\x72\x02\x10\x02",  # two parts of one message
        b"\x60\x01\x6a\x00",  # both of a oneof: the last counts
        b"\xf8\x3f\x01",  # a field number the schema does not know
        b"\x0b\x10\x01\x72\x01\x01\x0c",  # a group that the schema does not know, with what would not fit outside of it
    ]
    for data in rows:
        with subtests.test(data=data):
            PROTO3.validate(data, Encoding.BINARY)


def test_bytes_that_do_not_fit_are_told_where(subtests: pytest.Subtests) -> None:
    rows: list[tuple[bytes, str]] = [
        (b"\x0a\x05hi", "the field number 1 at byte 0 needs 3 bytes more than there are"),
        (b"\x0a\x01\xff", "at text: byte 2 is not valid UTF-8"),
        (b"\x72\x03\x0a\x01\xff", "at inner.text: byte 4 is not valid UTF-8"),
        (b"\x52\x05\x12\x03\x0a\x01\xff", "at by_number.value.text"),
        (b"\x10", "the message ends inside an integer"),
        (b"\x10" + b"\xff" * 11, "more than 10 bytes"),
        (b"\x00\x01", "found the field number 0"),
        (b"\x0f", "found the wire type 7 at byte 0"),
        (b"\x25\x00", "the field number 4 at byte 0 needs 3 bytes more"),
        (b"\x0c", "Error parsing message"),
        (b"\x0b", "Error parsing message"),
        (b"\x0b" * 100_000, "groups are nested more than 100 deep"),
        (b"\xff" * 100, "more than 10 bytes"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "needs 18446744073709551615 bytes more"),
    ]
    for data, told in rows:
        with subtests.test(data=data, told=told):
            with pytest.raises(InvalidArgument) as caught:
                PROTO3.validate(data, Encoding.BINARY)
            assert told in str(caught.value)


def test_messages_may_be_100_deep_and_no_deeper() -> None:
    def nested(depth: int) -> bytes:
        data = b""
        for _ in range(depth):
            size = len(data)
            data = b"\x72" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + data
        return data

    PROTO3.validate(nested(100), Encoding.BINARY)
    with pytest.raises(InvalidArgument, match="nested more than 100 deep"):
        PROTO3.validate(nested(101), Encoding.BINARY)
