"""What a transform makes of a message, and what it is refused for."""

import pickle
from typing import Any

import pytest

from penstock.errors import InvalidArgument, TransformFailed
from penstock.transforms import Chain, Sandbox, Step, Transform, Transformed, compile_chain, compile_transform
from penstock.values.message import MAX_MESSAGE_BYTES

METADATA = {"message_id": "7", "publish_time": "2026-01-02T03:04:05Z", "ordering_key": "k"}


def made(sandbox: Sandbox, body: str) -> Transform:
    return compile_transform(f"function f(message, metadata) {{ {body} }}", "f", sandbox=sandbox)


def test_a_field_is_redacted(sandbox: Sandbox) -> None:
    redact = "const d = JSON.parse(message.data); delete d.ssn; message.data = JSON.stringify(d)"
    transform = made(sandbox, f"{redact}; message.attributes.r = '1'; return message")
    expected = Transformed(b'{"name":"Ada"}', {"a": "b", "r": "1"})
    assert transform.apply(b'{"name":"Ada","ssn":"1"}', {"a": "b"}, METADATA) == expected


def test_null_drops_the_message(sandbox: Sandbox) -> None:
    transform = made(sandbox, 'return message.attributes.keep === "yes" ? message : null')
    assert transform.apply(b"x", {"keep": "no"}, {}) is None
    assert transform.apply(b"x", {"keep": "yes"}, {}) == Transformed(b"x", {"keep": "yes"})


def test_what_scripts_may_rely_on(sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, bytes]] = [
        (
            "return {data: JSON.stringify(metadata)}",
            b'{"message_id":"7","publish_time":"2026-01-02T03:04:05Z","ordering_key":"k"}',
        ),
        ("metadata.message_id = '8'; return {data: metadata.message_id}", b"7"),
        ("return {data: message.data.toUpperCase()}", "GRÜẞE €😀\0\u2028".replace("ẞ", "SS").encode()),
        ("return {data: [...message.data].length + ''}", b"10"),
        (
            "const {a = 1, ...rest} = {b: 2}; return {data: `${a ?? 0}${rest?.b}${[1, 2].at(-1)}${2n ** 70n}`}",
            b"1221180591620717411303424",
        ),
        ("class E extends Error { constructor() { super('m'); this.name = 'E' } } return {data: String(new E)}", b"E: m"),
        ("const o = {}; o.toString = () => 'own'; o.constructor = 1; return {data: `${o}`}", b"own"),
        ("for (i = 0; i < 3; i++); return {data: `${i}`}", b"3"),
        ("let s = ''; for (let i = 0; i < 20000; i++) s += 'xyz'; return {data: s}", b"xyz" * 20000),
        ("return {data: 'é\\u0000\\\\\"'}", 'é\0\\"'.encode()),
        ("message.attributes = {}; return message", "Grüße €😀\0\u2028".encode()),
    ]
    for body, expected in rows:
        with subtests.test(body=body, expected=expected):
            result = made(sandbox, body).apply("Grüße €😀\0\u2028".encode(), {"a": "b"}, METADATA)
            assert result == Transformed(expected, {})


def test_a_wrong_result_fails_the_message(sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("throw new Error('no ssn')", "threw Error: no ssn (line 1)"),
        ("\n\n null.x", "threw TypeError: .* (line 3)"),
        ("throw null", "threw null"),
        ("throw {toString() { throw 1 }}", "threw something that cannot be shown"),
        ("throw '\\ud800'", "threw \ufffd"),
        ("JSON.parse(message.data)", "threw SyntaxError: "),
        ("", "returned nothing, expected a message, or null to drop it"),
        ("return 'text'", "returned a value of type string"),
        ("return []", "returned data that is a value of type undefined, expected a string"),
        ("return {data: 1}", "returned data that is a value of type number, expected a string"),
        ("return {data: null}", "returned data that is null, expected a string"),
        (
            "return {data: 'x', attributes: 'y'}",
            "returned attributes that are a value of type string, expected an object of strings",
        ),
        ("return {data: 'x', attributes: null}", "returned attributes that are null"),
        ("return {data: 'x', attributes: {n: 1}}", 'returned the attribute "n" with a value of type number, expected a string'),
        ("return {data: 'x', attributes: {'': ''}}", "returned a wrong attribute: .*non-empty"),
        ("return {data: 'x', attributes: {googx: ''}}", "returned a wrong attribute: .*reserved"),
        ("return {data: 'x', attributes: {x: 'y'.repeat(1025)}}", "returned a wrong attribute: .*1025 bytes"),
        ("return {data: '\\ud800'}", "returned text that UTF-8 cannot encode"),
        ("return {data: 'x', attributes: {a: '\\udc00'}}", "returned text that UTF-8 cannot encode"),
        ("return {data: ''}", "returned an empty message"),
        ("return {data: 'x'.repeat(10 * 1024 * 1024 + 1)}", f"returned {MAX_MESSAGE_BYTES + 1} bytes"),
        ("return (async () => message)()", "returned a promise; it must not be async"),
    ]
    for body, problem in rows:
        with subtests.test(body=body, problem=problem):
            with pytest.raises(TransformFailed, match="transform f " + problem.replace("(", r"\(").replace(")", r"\)")) as caught:
                made(sandbox, body).apply(b"x", {}, {})
            assert caught.value.code == 3
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_data_that_is_not_text_fails_the_message(sandbox: Sandbox) -> None:
    with pytest.raises(TransformFailed, match="needs data that is UTF-8 text: byte 1 is not"):
        made(sandbox, "return message").apply(b"x\xff", {}, {})


def test_marks_of_the_broker_pass_but_cannot_be_changed(sandbox: Sandbox) -> None:
    marks = {"googclient_schemaencoding": "JSON", "a": "b"}
    assert made(sandbox, "return message").apply(b"x", marks, {}) == Transformed(b"x", marks)
    with pytest.raises(TransformFailed, match="reserved"):
        made(sandbox, "message.attributes.googclient_schemaencoding = 'BINARY'; return message").apply(b"x", marks, {})


def test_attributes_may_bear_the_names_of_builtins(sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    for attribute in ("__proto__", "constructor", "toJSON", "hasOwnProperty", "length"):
        with subtests.test(attribute=attribute):
            assert made(sandbox, "return message").apply(b"x", {attribute: "v"}, {}) == Transformed(b"x", {attribute: "v"})


def test_code_that_cannot_serve_is_refused(sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    rows: list[tuple[Any, Any, str]] = [
        ("", "f", "code is '', expected JavaScript"),
        (None, "f", "code is None"),
        ("function f(m) {\n\n return m +; }", "f", r"SyntaxError: .* \(line 3\)"),
        ("function f(m) { return m }}", "f", "SyntaxError"),
        ("} function f(m) { return m } {", "f", "SyntaxError"),
        ("function f(m) { return m }); (function(){", "f", "SyntaxError"),
        ("return 1; function f(m) { return m }", "f", "SyntaxError"),
        ("import fs from 'fs'; function f(m) { return m }", "f", "SyntaxError"),
        ("function g(m) { return m }", "f", r"expected a plain function f\(message, metadata\), which is not there"),
        ("var f = 1", "f", "which is not there"),
        ("async function f(m) { return m }", "f", "which is of the kind AsyncFunction"),
        ("function* f(m) { yield m }", "f", "which is of the kind GeneratorFunction"),
        ("\nthrow new Error('early'); function f(m) {}", "f", r"Error: early \(line 2\)"),
        ("'use strict'; Array.prototype.sum = 1; function f(m) {}", "f", "its top level threw TypeError"),
        ("while (true); function f(m) {}", "f", "interrupted"),
        ("function f(m) {}\0", "f", "NUL"),
        ("function f(m) {} // \ud800", "f", "surrogates"),
        ("function f(m) {} //" + "é" * 10240, "f", "code is 20499 bytes long, expected at most 20480"),
        ("function f(m) {}", "", "function_name is ''"),
        ("function f(m) {}", "f()", "function_name is"),
        ("function f(m) {}", "a.b", "function_name is"),
        ("function f(m) {}", "f;f", "function_name is"),
        ("function f(m) {}", "x" * 257, "function_name is"),
        ("function f(m) {}", None, "function_name is None"),
        ("function f(m) {}", "while", "while is a reserved word, which no function can have as its name"),
    ]
    for code, name, problem in rows:
        with subtests.test(code=code, name=name), pytest.raises(InvalidArgument, match=problem):
            compile_transform(code, name, sandbox=sandbox)


def test_code_whose_top_level_does_not_end_is_refused(impatient: Sandbox) -> None:
    with pytest.raises(InvalidArgument, match="running it took longer than 1 s"):
        compile_transform("new Array(2 ** 30).join(); function f(m) {}", "f", sandbox=impatient)


def test_a_function_may_be_written_in_many_ways(sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "const f = (m) => m",
        "let f = function (m) { return m }",
        "'use strict'; function f(m) { return m } // the end",
        "function f(m) { return g(m) }\nfunction g(m) { return m }",
        "f = (m) => m",
        "function f(m) { return m }\n'a' + Symbol.iterator.toString()",
        "function f(m) { return m }\nSymbol()",
        "function f(m) { return m } //".ljust(20480, "x"),
    ]
    for code in rows:
        with subtests.test(code=code):
            assert compile_transform(code, "f", sandbox=sandbox).apply(b"x", {}, {}) == Transformed(b"x", {})


def test_names_may_hold_what_javascript_allows(sandbox: Sandbox) -> None:
    for name in ("$", "_a1", "größe"):
        assert compile_transform(f"function {name}(m) {{ return m }}", name, sandbox=sandbox).function_name == name


def test_a_chain_hands_on_skips_the_disabled_and_ends_at_a_drop(sandbox: Sandbox) -> None:
    def step(letter: str, *, disabled: bool = False) -> Step:
        return Step(f"function f(m) {{ m.data += '{letter}'; return m }}", "f", disabled)

    drop = Step("function f(m) { return m.data.length > 3 ? null : m }", "f")
    boom = Step("function f(m) { throw 1 }", "f")

    chain = compile_chain([step("a"), step("b", disabled=True), step("c")], sandbox=sandbox)
    assert len(chain) == 2
    assert chain.apply(b"-", {"k": "v"}, {}) == Transformed(b"-ac", {"k": "v"})
    assert compile_chain([step("abc"), drop, boom], sandbox=sandbox).apply(b"-", {}, {}) is None
    assert compile_chain([], sandbox=sandbox).apply(b"\xff", {}, {}) == Transformed(b"\xff", {})
    assert Chain([]).apply(b"", {}, {}) == Transformed(b"", {})


def test_a_chain_is_checked_as_a_whole(sandbox: Sandbox) -> None:
    fine = Step("function f(m) { return m }", "f")
    with pytest.raises(InvalidArgument, match="there are 6 transforms, expected at most 5"):
        compile_chain([fine] * 6, sandbox=sandbox)
    with pytest.raises(InvalidArgument, match="SyntaxError"):
        compile_chain([fine, Step("function f(", "f", disabled=True)], sandbox=sandbox)
