"""The page about the native protocol names every frame with its fields in order, every operation, and the limits as they are."""

import contextlib
import inspect
import io
import re

import msgspec
import pytest

from penstock.api import feed
from penstock.errors import PenstockError
from penstock.journal.core.producers import SEQUENCES
from penstock.native import NativeLimits
from penstock.native.connection import CALL_LOAD, MAX_HELLO_BYTES
from penstock.values.message import DEFAULT_PRIORITY, Message
from penstock.values.queue import BYTES, JSON, TEXT, NewMessage
from penstock.wire import frames
from penstock.wire.operations import Operations
from tests.docs.pages import ROOT, blocks

PAGE = (ROOT / "docs/native-protocol.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]
STRUCTS: list[type[msgspec.Struct]] = [
    *(frame for frame in frames.Frame.__subclasses__() if frame.__struct_fields__),
    frames.Nack,
    frames.Delivery,
    frames.Body,
    Message,
    NewMessage,
]
MAPS: list[type[msgspec.Struct]] = [frames.Welcome, frames.Opened, frames.Limits]


def words(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def test_every_frame_is_described_with_its_number_and_its_fields_in_order(subtests: pytest.Subtests) -> None:
    for kind in STRUCTS:
        with subtests.test(kind=kind.__name__):
            assert any(has_fields(row, kind) for row in ROWS), kind.__struct_fields__
    for frame in frames.Frame.__subclasses__():
        with subtests.test(frame=frame.__name__):
            assert f"| {frame.__struct_config__.tag} | `{frame.__name__}` |" in PAGE


def has_fields(row: str, kind: type[msgspec.Struct]) -> bool:
    """Whether a row is about a kind, with all its fields."""
    found = words(row)
    if kind.__name__ not in found:
        return False
    rest = [word for word in found[found.index(kind.__name__) + 1 :] if word in kind.__struct_fields__]
    return list(dict.fromkeys(rest)) == list(kind.__struct_fields__)


def test_every_field_of_a_result_has_a_row(subtests: pytest.Subtests) -> None:
    for kind in MAPS:
        with subtests.test(kind=kind.__name__):
            table = PAGE.partition(f"| `{kind.__name__}` (")[2].partition("\n\n")[0]
            assert [words(line)[0] for line in table.splitlines()[2:]] == list(kind.__struct_fields__)


def test_every_operation_is_named_and_no_other() -> None:
    table = PAGE.partition("| about | operations |")[2].partition("\n\n")[0]
    known = {name for name, value in inspect.getmembers(Operations) if inspect.iscoroutinefunction(value)}
    assert set(words(table)) == {name for name in known if not name.startswith("_")}


def test_the_numbers_on_the_page_are_those_of_the_server() -> None:
    limits = NativeLimits()
    for number, text in {
        MAX_HELLO_BYTES: "{:,} bytes",
        limits.hello_seconds: "within {:g} seconds",
        limits.idle_seconds: "{:g} seconds",
        feed.GRACE_SECONDS: "theirs for {:g} seconds",
        limits.max_running: "{} publishes",
        limits.max_running // CALL_LOAD: "{} operations",
        limits.max_waits: "{} of a connection; more",
        limits.max_streams: "{:,} of a connection",
        frames.MAX_MESSAGES: "| {:,} |",
        frames.MAX_RECEIPTS: "| {:,}, and",
        frames.MAX_VERDICTS: "{:,} nacks",
        SEQUENCES: "last {:,} sequences",
        DEFAULT_PRIORITY: "`priority` ({})",
        frames.VERSION: "Version {}",
    }.items():
        assert text.format(number) in PAGE
    assert limits.max_frame_bytes == 16 * 1024 * 1024
    assert f"{BYTES} bytes, {TEXT} a text, {JSON} JSON" in PAGE


def test_reasons_on_the_page_exist() -> None:
    known, rest = set(), [PenstockError]
    while rest:
        kind = rest.pop()
        known.add(kind.reason)
        rest += kind.__subclasses__()
    named = {"invalid_argument", "unimplemented", "failed_precondition", "unauthenticated", "unavailable", "resource_exhausted"}
    named |= {"subscription_not_found", "queue_not_found", "rate_limited"}
    assert named <= known
    assert all(f"`{reason}`" in PAGE for reason in named)


def test_the_program_on_the_page_does_what_it_shows() -> None:
    shown = io.StringIO()
    [program] = [block for block in blocks(PAGE) if block.language == "python"]
    with contextlib.redirect_stdout(shown):
        exec(compile(program.text, "native-protocol.md", "exec"), {})
    created, published = shown.getvalue().splitlines()
    assert created.startswith("[0, 2, {'name': 'orders', 'created': ")
    assert re.fullmatch(r"\[0, 3, \['[0-9a-f]{30}'\]\]", published)
