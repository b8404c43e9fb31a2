"""The page of the hub's protocol has every message with its fields, types and defaults, and both dialects, as they are."""

import ast
import itertools
import json
import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, get_args

import msgspec
import pytest

from penstock.hub.core import messages as m
from penstock.hub.core.close_codes import CLOSES
from penstock.hub.core.connection import ABILITIES
from penstock.hub.core.dialects import ORIGINAL, SPECIFIED, Dialect
from penstock.hub.core.messages import Message
from penstock.hub.core.refusal import Code
from penstock.hub.server.asyncapi import EXAMPLES, REASONS, REPLIES_TO, asyncapi
from tests.docs.pages import ROOT, blocks, table_rows

PAGE = (ROOT / "docs" / "hub-protocol.md").read_text(encoding="utf-8")
ROWS = [*table_rows(PAGE)]
SCHEMAS = asyncapi("1", "http://localhost")["components"]["schemas"]
NAMES: dict[type[msgspec.Struct], str] = {kind: name for name, kind in m.COMMANDS.items()}
NAMES.update((kind, name) for kind, name in m.REPLIES.items())
PARTS: dict[type[msgspec.Struct], str] = {m.Position: "position", m.ActorFound: "actor", m.TopicCount: "topic and count"}
TYPES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "object": "object"}
REFUSED_IN = ("hub",)

QUESTIONS: dict[type[m.Reply], m.Command] = {m.TokenRefreshed: m.RefreshToken("…"), m.Disconnecting: m.Disconnect()}
"""What the hub was asked, where a dialect's reply depends on it."""


def heading(kind: type[msgspec.Struct]) -> str:
    return f"`{NAMES[kind]}` (`{kind.__name__}`)" if kind in NAMES else f"{PARTS[kind]} (`{kind.__name__}`)"


def fields(kind: type[msgspec.Struct]) -> list[list[str]]:
    """Name, type, and what counts when it is missing, of each field."""
    schema = SCHEMAS[kind.__name__]
    return [
        [f"`{name}`", type_of(inner), missing(inner, is_required=name in schema.get("required", ()), kind=kind)]
        for name, inner in schema["properties"].items()
    ]


def type_of(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return {"Topic": "topic", "TopicPattern": "pattern", "Address": "address"}.get(name) or next(
            word for kind, word in PARTS.items() if kind.__name__ == name
        )
    if "anyOf" in schema:
        return " or ".join("null" if one == {"type": "null"} else type_of(one) for one in schema["anyOf"])
    if "enum" in schema:
        return "one of the codes" if len(schema["enum"]) > 3 else ", ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("type") == "array":
        most = f"{schema['maxItems']:,} at most" if "maxItems" in schema else ""
        return f"list of {type_of(schema['items'])}{most and f', {most}'}"
    if schema.get("maximum", 1 << 53) < 1 << 53:
        return f"{TYPES[schema['type']]}, {schema['minimum']:,} to {schema['maximum']:,}"
    return TYPES[schema["type"]] if "type" in schema else "any JSON"


def missing(schema: dict[str, Any], *, is_required: bool, kind: type[msgspec.Struct]) -> str:
    if is_required:
        return "required" if issubclass(kind, m.Command) else ""
    return f"`{json.dumps(schema['default'])}`" if "default" in schema else "may be missing"


def in_dialect(dialect: Dialect, kind: type[m.Reply], command: m.Command | None = None) -> str:
    """How a dialect says something: its type, and what is in the payload."""
    reply = msgspec.convert(EXAMPLES[kind], kind)
    asked = m.Envelope("hub:asked", message_id="1")
    text = dialect.write(reply, "@(a/b)", request=asked, command=command or QUESTIONS.get(kind), now=1_000, make_id=str)
    if not text:
        return "no reply"
    frame = msgspec.json.decode(text)
    return f"`{frame['type']}`: {shape(frame['payload'])}"


def shape(payload: dict[str, Any]) -> str:
    """The keys of an object, with those inside it."""
    return ", ".join(
        f"`{key}` ({shape(inner)})"
        if isinstance(inner := value[0] if isinstance(value, list) else value, dict) and inner
        else f"`{key}`"
        for key, value in payload.items()
    )


def differences() -> Iterator[list[str]]:
    """The replies that the dialects do not say alike."""
    found: list[tuple[type[m.Reply], m.Command | None]] = [(kind, None) for kind in m.REPLIES]
    found += [(m.DiscoveryResult, m.ListActors())]
    for kind, command in found:
        specified, original = (in_dialect(dialect, kind, command) for dialect in (SPECIFIED, ORIGINAL))
        if specified != original:
            yield [specified, original]


def reasons_in_code() -> set[str]:
    """Every reason that the code gives to a Refusal, or to a function that makes one."""
    folders = [ROOT / "src" / "penstock" / folder for folder in REFUSED_IN]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for folder in folders for path in folder.rglob("*.py")]
    public = {name: place for tree in trees for name, place in makers(tree).items() if not name.startswith("_")}
    return {text for tree in trees for text in reasons_in(tree, public | makers(tree))}


def reasons_in(tree: ast.Module, makers: dict[str, int]) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="Refusal"), args=[ast.Constant(value=int()), *_]):
                continue  # that of a request over HTTP
            case ast.Call(func=ast.Name(id=name)) if name == "Refusal" or name in makers:
                yield from (text for given in node.keywords if given.arg == "reason" for text in texts(given.value))
                yield from texts(node.args[makers[name]]) if name in makers and len(node.args) > makers[name] else ()
            case ast.Assign(targets=[ast.Name(id="reason")]):
                yield from texts(node.value)
            case ast.Assign(targets=[ast.Tuple(elts=[_, ast.Name(id="reason")])], value=ast.Tuple(elts=[_, value])):
                yield from texts(value)


def makers(tree: ast.Module) -> dict[str, int]:
    """The functions that make a refusal of a reason, and where they take it."""
    found = {node.name: order(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return {name: place for name, place in found.items() if place is not None}


def order(function: ast.FunctionDef) -> int | None:
    """Where a function that returns a refusal takes its reason."""
    if not isinstance(function.returns, ast.Name) or function.returns.id != "Refusal":
        return None
    names = [argument.arg for argument in function.args.args]
    return names.index("reason") if "reason" in names else None


def texts(value: ast.expr) -> Iterator[str]:
    """The constants that an expression may be: itself, or either side of a condition."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.IfExp):
        yield from texts(value.body)
        yield from texts(value.orelse)


def test_every_message_has_its_fields_with_types_and_defaults(subtests: pytest.Subtests) -> None:
    for kind in (*NAMES, *PARTS):
        with subtests.test(kind=kind.__name__):
            wanted = fields(kind)
            if not wanted:
                assert f"{heading(kind)} has no fields" in PAGE
                continue
            start = next(index for index, row in enumerate(ROWS) if row[0] == heading(kind))
            rows = [*takewhile(lambda row: row[0].startswith("`") and "(`" not in row[0] and len(row) == 4, ROWS[start + 1 :])]

            assert [row[:3] for row in rows] == wanted
            assert [row[0] for row in rows if not row[3]] == [], "each has a meaning"


def test_no_message_is_made_up() -> None:
    named = set(re.findall(r"`(hub:\w+)`", PAGE))
    of_original = {frame for row in differences() for frame in re.findall(r"`(hub:\w+)`", row[1])}
    assert named == {*m.COMMANDS, *m.REPLIES.values(), *of_original}


def test_every_request_is_shown_with_its_answer() -> None:
    shown = {row[0].strip("`"): row[1] for row in reversed(ROWS) if len(row) == 3}  # the first table counts
    answers = {name: " or ".join(dict.fromkeys(f"`{m.REPLIES[kind]}`" for kind in kinds)) for name, kinds in REPLIES_TO.items()}
    assert {name: shown.get(name) for name in answers} == answers


def test_both_dialects_are_shown_side_by_side() -> None:
    assert [row for row in differences() if row not in ROWS] == []


def test_a_forwarded_message_is_shown_as_it_is(subtests: pytest.Subtests) -> None:
    shown = [
        msgspec.json.decode(block.text) for block in blocks(PAGE) if block.language == "json" and '"metadata": {' in block.text
    ]
    dialects: tuple[Dialect, ...] = (SPECIFIED, ORIGINAL)
    for dialect, topic in itertools.product(dialects, ("orders/eu", None)):
        with subtests.test(dialect=type(dialect).__name__, topic=topic):
            message = Message(
                type="order:placed",
                sender="@(agent/billing)",
                data=b'{"id": 1}',
                message_id="5b3d6c1e-2f0a-4a7e-8f57-0c8f7f1f0c11",
                published_at=1_767_266_435_616_000,
                topic=topic,
                position=None if topic is None else m.Position("6f1d2c9e", 41),
            )
            head, tail = dialect.parts(message, lambda: "0b7e6a52-5c1c-4f4e-9d0a-6f2f6f3f8a11")
            assert msgspec.json.decode(head + b'"@(browser/client-ui)"' + tail) in shown


def test_every_code_of_an_error_has_a_row() -> None:
    codes = [row[0].strip("`") for row in table_rows(PAGE.partition("\n| code | when |\n")[2].partition("\n### ")[0])]
    assert codes == [*get_args(Code)]


def test_every_reason_is_one_that_the_code_gives() -> None:
    assert reasons_in_code() == set(REASONS)


def test_every_reason_has_a_row() -> None:
    section = PAGE.partition("\n### Reasons\n")[2].partition("\n## ")[0]
    assert {row[0].strip("`"): row[1] for row in [*table_rows(section)][1:]} == REASONS


def test_every_way_to_end_has_a_row() -> None:
    rows = {(row[0], row[1]): row[2:] for row in ROWS if len(row) == 4 and row[0].isdigit()}
    assert rows == {
        (str(close.code), f"`{close.reason}`"): [close.meaning, "yes" if close.may_reconnect else "no"] for close in CLOSES
    }


def test_every_ability_is_named() -> None:
    assert [ability for ability in ABILITIES if f"`{ability}`" not in PAGE] == []
