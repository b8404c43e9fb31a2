"""What a .proto definition may say, and what is told of one that may not."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet

from penstock.errors import InvalidArgument
from penstock.schemas import SchemaKind, compile_schema
from penstock.schemas.proto_parser import FILE_NAME, parse_proto

UNKNOWN_OPTION = "option (x.y).z = { a: 1 b { c: '}' } };"  # protoc wants its declaration, which only an import could give
SOUND = [
    "message M {}",
    "message M { optional string a = 1; required int32 b = 2; repeated bytes c = 3 [packed = false]; }",
    "syntax = 'proto' '3'; message M { int32 x = 01; int32 y = 0x2; int32 z = 010; }",
    "syntax = 'proto3'; package a.b; message M { N n = 1; a.b.M q = 2; .a.b.M.N r = 3; b.M s = 4; message N { M m = 1; } }",
    "syntax = 'proto3'; enum E { A = 0; } message M { E e = 1; optional E f = 2; map<string, E> g = 3; }",
    "syntax = 'proto3'; message M { reserved 1, 3 to 5, 10 to max; reserved 'foo', 'bar'; int32 x = 2; }",
    "syntax = 'proto3'; message M { enum E { option allow_alias = true; A = 0; B = 0; C = -1; D = -2147483648; } E e = 1; }",
    "syntax = 'proto3'; message M { enum E { reserved 2 to max, -5; reserved 'Q'; A = 0; B = 1 [deprecated = true]; } }",
    "syntax = 'proto3'; message M { map<string, M> m = 1; map<int32, bytes> n_o = 2; map<bool, double> o = 3; }",
    "syntax = 'proto3'; message M { oneof o { int32 a = 1; M b = 2; } optional int32 c = 3; optional M d = 4; }",
    "syntax = 'proto3'; message M { optional int32 a = 1; int32 _a = 2; oneof X_a { int32 b = 3; } }",
    "syntax = 'proto3'; message M { message N { message M {} M m = 1; .M n = 2; } }",
    "syntax = 'proto3'; message M { int32 M = 1; M x = 2; message A { int32 B = 1; B b = 2; } message B {} }",
    "syntax = 'proto3'; message M { string message = 1; string enum = 2; string option = 3; string reserved = 4; M map = 5; }",
    "syntax = 'proto3'; message M { string oneof = 6; string optional = 7; M repeated = 8; M extend = 10; M group = 11; }",
    "syntax = 'proto3'; message M { int32 A_b__c = 1; int32 _x = 2; int32 y_2 = 3; int32 z = 536870911 [json_name = 'a b']; }",
    "syntax = 'proto3'; /* a * / ** */ option java_package = 'x'; message M { // b\n option deprecated = true; ; M x = 1; }",
    "message M { extensions 100 to 199, 500 to max; optional E e = 1 [default = B]; enum E { A = 1; B = 2; } }",
    r"""message M { optional string s = 1 [default = "a\"b" 'c']; optional double d = 2 [default = -inf]; }""",
    f"message M {{ oneof o {{ {UNKNOWN_OPTION} int32 a = 1; string b = 2; }} required M m = 3; }}",
]

UNSOUND = [
    ("", "expected 1 to"),
    ("syntax = 'proto3';", "line 1, column 19: there is no message type"),
    ("enum E { A = 0; }", "there is no message type"),
    ("message M {}\n message N {}", "line 2, column 2: a schema has exactly one message type at the top"),
    ("import 'google/protobuf/timestamp.proto'; message M {}", "imports are not supported"),
    ("import public '/etc/passwd'; message M {}", "imports are not supported"),
    ("message M {} service S {}", "services are not supported"),
    ("message M { extensions 1 to 2; } extend M { optional int32 a = 1; }", "extending a type is not supported"),
    ("message M { extend M { optional int32 a = 1; } }", "extending a type is not supported"),
    ("message M { optional group G = 1 {} }", "groups are not supported"),
    ("edition = '2023'; message M {}", "editions are not supported"),
    ("syntax = 'proto4'; message M {}", "found 'proto4', expected 'proto2' or 'proto3'"),
    ("message M { optional Foo x = 1; }", "line 1, column 22: there is no type 'Foo': nothing is declared under that name"),
    ("message M { optional M.x x = 1; }", "there is no type 'M.x': it is a field"),
    ("message M { optional FEntry e = 1; map<string, string> f = 2; }", "there is no type 'FEntry'"),
    ("message M { int32 x = 1; }", "expected optional, required or repeated"),
    ("syntax = 'proto3'; message M { required int32 x = 1; }", "proto3 has no required fields"),
    ("syntax = 'proto3'; message M { int32 x = 1 [default = 1]; }", "proto3 has no defaults"),
    ("syntax = 'proto3'; message M { extensions 1 to 9; }", "proto3 has no extensions"),
    ("syntax = 'proto3'; message M { int32 x = 1 }", "found '}', expected ';'"),
    ("syntax = 'proto3'; message M { int32 x 1; }", "found '1', expected '='"),
    ("syntax = 'proto3'; message M { int32 x = 0; }", "found 0, expected a field number from 1 to 536870911"),
    ("syntax = 'proto3'; message M { int32 x = 536870912; }", "found 536870912"),
    ("syntax = 'proto3'; message M { int32 x = 19999; }", "19000 to 19999"),
    ("syntax = 'proto3'; message M { int32 x = 08; }", "found '08', expected a field number"),
    ("syntax = 'proto3'; message M { int32 x = 1.0; }", "found '1.0'"),
    ("syntax = 'proto3'; message M { int32 x = 1; int32 y = 1; }", "the number 1 is used by 'x' and by 'y'"),
    (
        "syntax = 'proto3'; message M { int32 x = 1; int32 x = 2; }",
        "the name 'M.x' is declared twice (as a field, now as a field)",
    ),
    ("syntax = 'proto3'; message M { int32 a_b = 1; int32 aB = 2; }", "have the same JSON name 'aB'"),
    ("syntax = 'proto3'; message M { int32 a = 1 [json_name = '']; }", "expected a plain name"),
    ("syntax = 'proto3'; message M { reserved 1 to 5; int32 x = 5; }", "the number 5 of 'x' is reserved"),
    ("syntax = 'proto3'; message M { reserved 1 to 5, 3; }", "overlaps another"),
    ("syntax = 'proto3'; message M { reserved 5 to 3; }", "found 3, expected a number from 5"),
    ("syntax = 'proto3'; message M { reserved 'x'; int32 x = 2; }", "the name 'x' is reserved"),
    ("syntax = 'proto3'; message M { reserved x; }", "a name in quotes"),
    ("syntax = 'proto3'; message M { reserved 1 [", "found the end"),
    ("syntax = 'proto3'; message M { enum E { A = 1; } }", "the first value of an enum of proto3 is 0"),
    ("syntax = 'proto3'; message M { enum E { A = 0; B = 0; } }", "the number 0 is used by 'A' and by 'B'"),
    ("syntax = 'proto3'; message M { enum E { A = 0; B = 2147483648; } }", "found 2147483648"),
    ("syntax = 'proto3'; message M { enum E { } }", "the enum 'E' has no values"),
    ("syntax = 'proto3'; message M { enum E { A = 0; } enum F { A = 0; } }", "the name 'M.A' is declared twice"),
    ("message M { enum E { A = 1; } map<string, E> m = 1; }", "is not 0, which values of a map need"),
    ("syntax = 'proto3'; message M { map<double, string> m = 1; }", "found keys of type 'double'"),
    ("syntax = 'proto3'; message M { repeated map<string, M> m = 1; }", "a map is neither"),
    ("syntax = 'proto3'; message M { oneof o { map<string, M> m = 1; } }", "a map is neither"),
    ("syntax = 'proto3'; message M { oneof o { repeated M m = 1; } }", "found 'repeated'"),
    ("syntax = 'proto3'; message M { oneof o { } }", "the oneof 'o' has no fields"),
    ("syntax = 'proto3'; message M { oneof o { int32 a = 1; } oneof o { int32 b = 2; } }", "declared twice"),
    ("syntax = 'proto3'; package x; package y; message M {}", "the package is named once"),
    ("syntax = 'proto3'; message M { option a = { b: 1; ", "this '{' is not closed"),
    ("syntax = 'proto3'; message M { option a = ; }", "expected a value"),
    ("syntax = 'proto3'; message M { int32 a = 1 [b]; }", "expected '='"),
    ("syntax = 'proto3'; message M {", "found the end"),
    ("syntax = 'proto3'; message M {} }", "found '}'"),
    ("syntax = 'proto3'; /* never closed", "expected a name, a number, a string or a sign"),
    ("syntax = 'proto3'; # said\nmessage M {}", "line 1, column 20: found '# said"),
    ("syntax = 'proto3", "expected a name, a number, a string or a sign"),
    ("message M\x00 {}", "expected a name, a number, a string or a sign"),
    (f"message {'M' * 1025} {{}}", "1025 characters"),
    (f"package {'p' * 1025}; message M {{}}", "1025 characters"),
]


def test_a_sound_definition_compiles(subtests: pytest.Subtests) -> None:
    for definition in SOUND:
        with subtests.test(definition=definition):
            assert compile_schema(SchemaKind.PROTOCOL_BUFFER, definition).kind is SchemaKind.PROTOCOL_BUFFER


def test_what_is_wrong_is_told_with_its_place(subtests: pytest.Subtests) -> None:
    for definition, told in UNSOUND:
        with subtests.test(definition=definition, told=told):
            with pytest.raises(InvalidArgument) as caught:
                compile_schema(SchemaKind.PROTOCOL_BUFFER, definition)
            assert told in str(caught.value)


def test_what_the_library_cannot_build_is_refused_in_its_words() -> None:
    fields = "".join(f"string a{number} = {number};" for number in range(1, 6_000))

    with pytest.raises(InvalidArgument, match="Message size exceeded maximum size"):
        compile_schema(SchemaKind.PROTOCOL_BUFFER, f"syntax = 'proto3'; message M {{ {fields} }}")


def test_two_schemas_may_use_one_name() -> None:
    for number in (1, 2):
        compile_schema(SchemaKind.PROTOCOL_BUFFER, f"package same; message Name {{ optional int32 a = {number}; }}")


def test_the_descriptors_are_those_of_protoc(tmp_path: Path) -> None:
    """What we read over, such as options, is left out of the comparison."""
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}", f"--descriptor_set_out={tmp_path}/out", FILE_NAME]
    for definition in SOUND:
        (tmp_path / FILE_NAME).write_text(definition.replace(UNKNOWN_OPTION, ""))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{definition}\n{done.stderr}"
        (theirs,) = FileDescriptorSet.FromString((tmp_path / "out").read_bytes()).file
        assert _comparable(parse_proto(definition)) == _comparable(theirs), definition


def _comparable(file: FileDescriptorProto) -> FileDescriptorProto:
    file.ClearField("options")
    for enum in file.enum_type:
        _clear_enum(enum)
    for message in file.message_type:
        _clear_message(message)
    return file


def _clear_enum(enum: EnumDescriptorProto) -> None:
    for value in enum.value:
        value.ClearField("options")
    enum.ClearField("reserved_range")
    enum.ClearField("reserved_name")


def _clear_message(message: DescriptorProto) -> None:
    for name in ("reserved_range", "reserved_name", "extension_range", *([] if message.options.map_entry else ["options"])):
        message.ClearField(name)
    for field in message.field:
        for name in ("options", "default_value", *([] if field.proto3_optional else ["proto3_optional"])):
            field.ClearField(name)
    for enum in message.enum_type:
        _clear_enum(enum)
    for inner in message.nested_type:
        _clear_message(inner)
