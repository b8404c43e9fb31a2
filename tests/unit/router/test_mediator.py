"""Specification 001, "HTTP Mediator": breaker, retry loop, request format; decisions 18, 21, 29."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from penstock.durations import SECOND
from penstock.http.client.transport import Answer, Failure, FailureKind
from penstock.router.core.circuit import OPEN_FOR, State
from penstock.router.core.message import RoutedMessage
from penstock.router.core.outcome import Disposition, Metric, Outcome, Result, Severity
from penstock.router.mediator import GLOBAL, IDLE_BREAKER, KEPT_TOKENS, KEPT_URLS, Mediator
from penstock.router.options import RouterOptions
from penstock.testing import ManualClock
from tests.unit.router.doubles import OK, TARGET, Request, ScriptedTransport, item, turns, until
from tests.unit.router.worlds import open_calls, run

DOWN = Answer(503)
REFUSED = Failure(FailureKind.UNREACHABLE)


class Desk:
    """A mediator, and what came of what it was given."""

    def __init__(self, script: Callable[[Request], Answer | Failure | None] | None = None, **options: object) -> None:
        self.clock = ManualClock()
        self.transport = ScriptedTransport(script)
        self.mediator = Mediator(self.transport, RouterOptions(**{"retry_pause": 0.0, **options}), self.clock)  # type: ignore[arg-type]  # as given
        self.outcomes: list[tuple[str, int, Outcome]] = []
        self.changes: list[tuple[str, State]] = []
        self.mediator.changed = lambda target, breaker: self.changes.append((target, breaker.state))

    def deliver(self, given: RoutedMessage | None = None, **pointer: object) -> Outcome | None:
        made = given or item("m")
        if pointer:
            made.pointer = msgspec.structs.replace(made.pointer, **pointer)
        return self.mediator.deliver(made, self.done, self.clock.now())

    def done(self, given: RoutedMessage, calls: int, outcome: Outcome, now: int) -> None:
        assert now == self.clock.now()
        assert given.delivery is None
        self.outcomes.append((given.pointer.message_id, calls, outcome))

    async def outcome(self, given: RoutedMessage | None = None, **pointer: object) -> tuple[int, Outcome]:
        before = len(self.outcomes)
        decided = self.deliver(given, **pointer)
        if decided is not None:
            return 0, decided
        await until(lambda: len(self.outcomes) > before)
        return self.outcomes[-1][1:]

    async def open(self, target: str = TARGET) -> None:
        """Open the breaker of a target."""
        self.transport.script = lambda _request: REFUSED
        while self.mediator.breaker(target).state is State.CLOSED:
            await self.outcome(target=target)


# ── retry loop ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("found", "calls"),
    [
        (OK, 1),
        (Answer(400), 1),
        (Answer(501), 1),
        (Answer(429), 1),  # decision 21
        (Answer(200, b'{"ack":false}'), 1),
        (Answer(500), 3),
        (Answer(503), 3),
        (Failure(FailureKind.TIMEOUT), 3),
        (Failure(FailureKind.UNREACHABLE), 3),
        (Failure(FailureKind.CONNECT_TIMEOUT), 3),
        (Failure(FailureKind.UNKNOWN), 3),
        (Failure(FailureKind.NOT_ALLOWED), 1),
        (Failure(FailureKind.MALFORMED), 1),
    ],
    ids=str,
)
def test_retry_loop_three_calls_where_that_may_help_one_where_not(found: Answer | Failure, calls: int) -> None:
    async def test() -> None:
        desk = Desk(lambda _request: found)
        assert (await desk.outcome())[0] == calls
        assert len(desk.transport.requests) == calls

    run(test)


def test_retry_loop_a_call_that_succeeds_ends_it() -> None:
    async def test() -> None:
        answers = [DOWN, OK]
        desk = Desk(lambda _request: answers.pop(0))

        calls, outcome = await desk.outcome()

        assert (calls, outcome.result) == (2, Result.SUCCESS)

    run(test)


def test_retry_loop_an_attempt_comes_to_what_its_last_call_came_to() -> None:
    async def test() -> None:
        answers: list[Answer | Failure] = [DOWN, REFUSED, Answer(404)]
        desk = Desk(lambda _request: answers.pop(0))

        assert (await desk.outcome())[1].status == 404

    run(test)


def test_retry_loop_backoff_is_one_second_then_two() -> None:
    async def test() -> None:
        desk = Desk(lambda _request: DOWN, retry_pause=0.01)
        loop = asyncio.get_running_loop()
        began = loop.time()

        await desk.outcome()

        assert RouterOptions().retry_pause == 1.0
        assert loop.time() - began >= 0.03  # 0.01 + 0.02; the third pause of the specification would come after the last call

    run(test)


def test_retry_loop_ends_when_the_router_stops() -> None:
    async def test() -> None:
        desk = Desk(lambda _request: DOWN)
        desk.mediator.is_stopping = True

        assert (await desk.outcome())[0] == 1

    run(test)


# ── circuit breaker ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_circuit_breaker_opens_and_calls_fail_at_once_without_a_call() -> None:
    async def test() -> None:
        desk = Desk()
        await desk.open()
        made = len(desk.transport.requests)

        outcome = desk.deliver()

        assert outcome is not None
        assert (outcome.result, outcome.disposition, outcome.effective_delay) == (Result.ERROR_CONNECTION, Disposition.AGAIN, 5)
        assert len(desk.transport.requests) == made == 10
        assert desk.changes == [(TARGET, State.OPEN)]

    run(test)


def test_circuit_breaker_that_opens_in_the_middle_ends_the_retry_loop() -> None:
    async def test() -> None:
        desk = Desk(lambda _request: REFUSED)
        for _ in range(3):
            assert (await desk.outcome())[0] == 3

        calls, outcome = await desk.outcome()

        # What its call came to, and when the breaker may let the next one through.
        assert (calls, outcome.error, outcome.metric, outcome.effective_delay) == (1, "unreachable", Metric.FAILED, 5)

    run(test)


def test_circuit_breaker_recovers_with_single_probes() -> None:
    async def test() -> None:
        desk = Desk()
        await desk.open()
        desk.clock.advance(OPEN_FOR / SECOND)
        desk.transport.script = open_calls

        for probe in range(3):
            assert desk.deliver(item(f"probe-{probe}")) is None
            rejected = desk.deliver(item("other"))
            assert rejected is not None
            assert rejected.effective_delay == 5
            desk.transport.open[0].answer()
        assert desk.mediator.breaker(TARGET).state is State.CLOSED
        assert desk.deliver(item("a")) is None
        assert desk.deliver(item("b")) is None
        assert desk.changes[-1] == (TARGET, State.CLOSED)

    run(test)


def test_circuit_breaker_a_probe_that_fails_opens_it_again() -> None:
    async def test() -> None:
        desk = Desk()
        await desk.open()
        desk.clock.advance(5)

        calls, outcome = await desk.outcome()

        assert (calls, outcome.result) == (1, Result.ERROR_CONNECTION)  # its second call is not let through
        assert desk.mediator.breaker(TARGET).state is State.OPEN

    run(test)


def test_circuit_breaker_a_probe_that_is_cut_off_lets_the_next_one_try() -> None:
    async def test() -> None:
        desk = Desk()
        await desk.open()
        desk.clock.advance(5)
        desk.transport.script = open_calls
        probe = item("probe")
        desk.deliver(probe)

        probe.delivery.cancel()

        assert desk.transport.cancelled == ["probe"]
        assert desk.deliver(item("next")) is None

    run(test)


def test_decision_18_one_breaker_for_each_target_host_fed_by_outcomes() -> None:
    async def test() -> None:
        desk = Desk()
        await desk.open("https://dead.example/a")

        assert desk.deliver(target="https://DEAD.example/other?x=1") is not None
        assert desk.deliver(target="https://dead.example:444/") is None
        assert desk.deliver(target="http://dead.example/") is None
        assert desk.deliver(target="https://user:secret@live.example/") is None
        assert set(desk.mediator.breakers) == {
            "https://dead.example",
            "https://dead.example:444",
            "http://dead.example",
            "https://live.example",
        }

    run(test)


def test_decision_18_scope_global_gives_the_single_one() -> None:
    async def test() -> None:
        desk = Desk(breaker_scope="global")
        await desk.open("https://dead.example/a")

        assert desk.deliver(target="https://live.example/") is not None
        assert set(desk.mediator.breakers) == {GLOBAL} == {"http-mediator"}

    run(test)


def test_decision_18_scope_endpoint_one_bad_path_does_not_stop_the_others_of_its_host() -> None:
    async def test() -> None:
        desk = Desk(breaker_scope="endpoint")
        await desk.open("https://shared.example/tenant-1?key=secret")
        desk.transport.script = lambda _request: OK

        assert (await desk.outcome(target="https://shared.example/tenant-2"))[0] == 1
        assert (await desk.outcome(target="https://SHARED.example/tenant-1?key=other"))[0] == 0
        assert (await desk.outcome(target="https://shared.example/Tenant-1"))[0] == 1  # paths have upper and lower case

        assert [*desk.mediator.breakers] == [
            "https://shared.example/tenant-1",
            "https://shared.example/tenant-2",
            "https://shared.example/Tenant-1",
        ]

    run(test)


def test_decision_18_a_4xx_counts_as_the_target_being_up() -> None:
    async def test() -> None:
        desk = Desk(lambda _request: Answer(404))
        for _ in range(30):
            assert (await desk.outcome())[1].warning is Severity.ERROR

        assert desk.mediator.breaker(TARGET).state is State.CLOSED
        assert desk.mediator.breaker(TARGET).succeeded == 30

    run(test)


@pytest.mark.parametrize("found", [Answer(429), Answer(200, b'{"ack":false}')], ids=["429", "deferred"])
def test_circuit_breaker_429_and_deferrals_count_neither_way(found: Answer) -> None:
    async def test() -> None:
        desk = Desk(lambda _request: found)
        for _ in range(30):
            await desk.outcome()

        breaker = desk.mediator.breaker(TARGET)
        assert (breaker.state, breaker.succeeded, breaker.failed) == (State.CLOSED, 0, 0)

    run(test)


def test_circuit_breaker_a_target_that_is_no_url_has_one_too() -> None:
    async def test() -> None:
        desk = Desk()
        assert desk.mediator.breaker_name("http://[broken") == "malformed"

    run(test)


def test_circuit_breaker_those_that_nobody_asked_for_an_hour_are_forgotten() -> None:
    async def test() -> None:
        desk = Desk()
        await desk.outcome(target="https://old.example/")
        desk.clock.advance(IDLE_BREAKER / SECOND)
        await desk.outcome(target="https://new.example/")
        desk.clock.advance(1)

        desk.mediator.forget_idle(desk.clock.now())
        desk.mediator.forget_idle(desk.clock.now())

        assert set(desk.mediator.breakers) == {"https://new.example"}
        assert desk.mediator.breaker("https://old.example/").state is State.CLOSED

    run(test)


def test_circuit_breaker_many_targets_do_not_fill_the_memory() -> None:
    async def test() -> None:
        desk = Desk()
        for number in range(KEPT_URLS + 1):
            desk.mediator.breaker(f"https://one.example/{number}")

        assert len(desk.mediator._by_url) == 1
        assert len(desk.mediator.breakers) == 1
        assert desk.mediator.breaker("https://one.example/0") is desk.mediator.breaker("https://one.example/1")

    run(test)


# ── request format ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_request_format_the_thin_body_bearer_token_and_timeout() -> None:
    async def test() -> None:
        desk = Desk()
        await desk.outcome(auth_token="token")

        (request,) = desk.transport.requests
        assert request.url == TARGET
        assert request.body == b'{"messageId":"m"}'
        assert request.headers == b"Authorization: Bearer token\r\n"
        assert request.timeout == 900

    run(test)


def test_request_format_without_a_token_there_is_no_header() -> None:
    async def test() -> None:
        desk = Desk(request_timeout=7)
        await desk.outcome()

        assert (desk.transport.requests[0].headers, desk.transport.requests[0].timeout) == (b"", 7)

    run(test)


@pytest.mark.parametrize(
    ("payload", "written"), [(b'{"a":1}', b'{"a":1}'), (b"", b"null"), (b"[1, 2]", b"[1, 2]")], ids=["object", "none", "list"]
)
def test_decision_29_payload_full_sends_the_message(payload: bytes, written: bytes) -> None:
    async def test() -> None:
        desk = Desk(payload="full")
        await desk.outcome(payload=msgspec.Raw(payload), group="g")

        sent = desk.transport.requests[0].body
        assert sent == b'{"messageId":"m","messageGroupId":"g","payload":' + written + b"}"

    run(test)


def test_decision_29_signatures_are_made_when_there_are_secrets() -> None:
    async def test() -> None:
        desk = Desk(signing_secret="whsec_c2VjcmV0")
        await desk.outcome(auth_token="t", signing_secret="own")
        lines = desk.transport.requests[0].headers.decode().split("\r\n")
        assert [line.partition(":")[0] for line in lines] == [
            "Authorization",
            "X-FLOWCATALYST-SIGNATURE",
            "X-FLOWCATALYST-TIMESTAMP",
            "webhook-id",
            "webhook-timestamp",
            "webhook-signature",
            "",
        ]
        await desk.outcome(signing_secret="")
        assert desk.transport.requests[1].headers.startswith(b"webhook-id: m\r\n")

    run(test)


def test_decision_29_a_message_may_bring_the_secret_along() -> None:
    async def test() -> None:
        desk = Desk()
        await desk.outcome(signing_secret="own")

        assert desk.transport.requests[0].headers.startswith(b"X-FLOWCATALYST-SIGNATURE: ")

    run(test)


@pytest.mark.parametrize(
    "pointer",
    [
        {"auth_token": "a\r\nX-Evil: 1"},
        {"auth_token": "tokén"},
        {"message_id": "m\r\nX-Evil: 1", "signing_secret": "own-secret"},
        {"message_id": "mé", "signing_secret": "own-secret"},
    ],
)
def test_request_format_what_would_break_out_of_a_header_is_undeliverable(pointer: dict[str, str]) -> None:
    async def test() -> None:
        desk = Desk()

        outcome = desk.deliver(None, **pointer)

        assert outcome is not None
        assert (outcome.disposition, outcome.warning) == (Disposition.UNDELIVERABLE, Severity.ERROR)
        assert not desk.transport.requests
        assert not any(value in outcome.error for value in pointer.values())

    run(test)


def test_request_format_an_odd_id_is_no_trouble_without_a_signature() -> None:
    async def test() -> None:
        desk = Desk()
        await desk.outcome(message_id="é\r\n")

        assert msgspec.json.decode(desk.transport.requests[0].body) == {"messageId": "é\r\n"}

    run(test)


def test_request_format_tokens_are_remembered_but_not_without_limit() -> None:
    async def test() -> None:
        desk = Desk()
        for number in range(KEPT_TOKENS + 1):
            await desk.outcome(auth_token=f"t{number}")

        assert len(desk.mediator._tokens) <= KEPT_TOKENS
        assert desk.transport.requests[-1].headers == b"Authorization: Bearer t1000\r\n"

    run(test)


def test_mediation_type_other_than_http_is_undeliverable_without_a_call() -> None:
    async def test() -> None:
        desk = Desk()

        outcome = desk.deliver(mediation_type="KAFKA")

        assert outcome is not None
        assert (outcome.result, outcome.error) == (Result.ERROR_CONFIG, "the mediation type 'KAFKA' is not HTTP")
        assert not desk.transport.requests

    run(test)


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_delivery_that_is_cut_off_is_not_heard_of_again(is_paused: bool) -> None:
    async def test() -> None:
        desk = Desk((lambda _request: DOWN) if is_paused else open_calls, retry_pause=0.05 if is_paused else 1)
        given = item("m")
        desk.deliver(given)
        await turns(3)

        given.delivery.cancel()
        for request in [*desk.transport.open]:
            request.answer()
        await asyncio.sleep(0.06)

        assert (desk.outcomes, given.delivery) == ([], None)
        assert len(desk.transport.requests) == 1

    run(test)
