"""Calls that are wrong: what they are told, and that a long word costs no more than a short one."""

import json
import time
from collections.abc import Callable
from operator import itemgetter

import msgspec
import pytest

from penstock.errors import InvalidArgument, PenstockError
from penstock.http.decoding import explain
from penstock.queue_api import calls
from penstock.queue_api.binary_commands import Arguments, Value, as_flag, as_integer, as_json, as_number, as_text
from penstock.queue_api.socket_server import Refused
from penstock.queue_api.synap_rpc import RpcCodec
from penstock.queue_api.websocket import Settle

MEGABYTE = 1_000_000
SOON = 0.2
"""Seconds of the loop's own time: twenty times what the slowest refusal takes."""
TRIES = 5
"""Of which the quickest counts: the others may have met a busy machine."""


def quickest(ask: Callable[[], object], error: type[PenstockError]) -> tuple[float, PenstockError]:
    """How long it takes at least to be refused, and how."""

    def refused_once() -> tuple[float, PenstockError]:
        started = time.thread_time()
        with pytest.raises(error) as caught:
            ask()
        return time.thread_time() - started, caught.value

    return min((refused_once() for _ in range(TRIES)), key=itemgetter(0))


def refused(command: object, payload: object) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        calls.decode(json.dumps({"command": command, "payload": payload}).encode())
    return caught.value


def test_a_command_without_fields_takes_null_for_its_payload() -> None:
    for body in ('{"command":"queue.list","payload":null}', '{"command":"queue.list"}', '{"command":"queue.list","payload":{}}'):
        assert calls.CALLS[type(calls.decode(body.encode()))].name == "queue.list"


def test_the_error_names_the_place_and_the_nearest_name(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, object, str, str | None]] = [
        ("queue.publsh", {}, "unknown command 'queue.publsh'", "did you mean 'queue.publish'?"),
        ("queue.stats", {}, "queue is missing", None),
        ("queue.stats", {"queue": "q", "queu": 1}, "queu is not a field of this command", "did you mean 'queue'?"),
        ("queue.stats", {"queue": 1}, "queue: expected `str`, got `int`", None),
        ("queue.publish", {"queue": "q", "message": 1, "headers": {"": 1}}, "headers[...]: expected `str`, got `int`", None),
        (
            "queue.publish_batch",
            {"queue": "q", "messages": [{"message": 1, "priorty": 1}]},
            "messages[0].priorty is not a field of this command",
            "did you mean 'priority'?",
        ),
    ]
    for command, payload, message, hint in rows:
        with subtests.test(command=command, payload=payload):
            error = refused(command, payload)

            assert (error.message, error.hint) == (message, hint)


def settle(word: str) -> None:
    try:
        msgspec.convert({"command": word, "message_id": "m"}, Settle)
    except msgspec.ValidationError as error:
        raise explain(error, Settle) from None


def over_rpc(name: str) -> None:
    body = msgspec.msgpack.encode([1, "QLIST", [{name: 1}]])
    codec = RpcCodec(2 * len(body))
    codec.feed(len(body).to_bytes(4, "little") + body)
    found = codec.take()
    assert isinstance(found, Refused)
    raise InvalidArgument(found.problem)


def call(command: str, payload: object) -> Callable[[], object]:
    body = json.dumps({"command": command, "payload": payload}).encode()
    return lambda: calls.decode(body)


LONG = {
    "plain": "x" * MEGABYTE,
    "near": "queue." * (MEGABYTE // 6),
    "place": " - at `$." * (MEGABYTE // 9),
    "ticks": "`" * MEGABYTE,
}


def test_a_word_of_a_megabyte_is_refused_at_once_and_in_a_line(subtests: pytest.Subtests) -> None:
    asks: list[Callable[[str], Callable[[], object]]] = [
        lambda word: call(word, {}),
        lambda word: call("queue.stats", {"queue": "q", word: 1}),
        lambda word: call("queue.nack", {"queue": "q", "message_id": "m", "requeue": word}),
        lambda word: call("queue.publish_batch", {"queue": "q", "messages": [{word: 1}]}),
        lambda word: call("queue.publish", {"queue": "q", "message": 1, "headers": {word: 1}}),
        lambda word: lambda: settle(word),
        lambda word: lambda: over_rpc(word),
    ]
    for ask in asks:
        for title, word in LONG.items():
            with subtests.test(title, ask=ask):
                took, error = quickest(ask(word), PenstockError)

                assert took < SOON
                assert len(error.message) < 500
                assert len(error.hint or "") < 1_000


LARGE = b"\x01" * 15_000_000
NOT_UTF8 = b"\xff" + LARGE


@pytest.mark.parametrize("value", [LARGE, LARGE.decode()], ids=["bytes", "text"])
@pytest.mark.parametrize(
    "read",
    [
        lambda value: as_flag(value, "REQUEUE"),
        lambda value: as_integer(value, "PRIORITY"),
        lambda value: as_number(value, "TTL"),
        lambda value: as_json(value, "payload"),
        lambda _: as_text(NOT_UTF8, "queue"),
        lambda value: Arguments([value, value], "usage").options(("PRIORITY",), ("TTL",)),
    ],
    ids=["flag", "integer", "number", "json", "text", "option"],
)
def test_an_argument_as_large_as_a_request_may_be_is_refused_at_once(value: Value, read: Callable[[Value], object]) -> None:
    took, error = quickest(lambda: read(value), InvalidArgument)

    assert took < SOON
    assert len(error.message) < 500
