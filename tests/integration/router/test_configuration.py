"""The configuration from real HTTP endpoints and files: tries, partial failures, the cache, and following what changes.

Tests whose names begin with `test_spec_001_retry_logic` are rows of "Configuration Sync" of specification 001.
"""

import asyncio
import logging
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from penstock.errors import InvalidArgument, PenstockError, Unavailable
from penstock.router.configuration import BODY_LIMIT, ConfigFile, Configuration, ConfigUrl, find_places, places_of_urls
from penstock.router.core.config import PoolConfig, QueueConfig, RouterConfig, to_json
from penstock.router.core.outcome import Severity
from tests.integration.router.config_server import ConfigServer, config_server, ok, status

A = RouterConfig((QueueConfig("one", "nats://me:hunter2@host/S/1"),), (PoolConfig("A", 2),))
B = RouterConfig((QueueConfig("two", "nats://host/S/2"),), (PoolConfig("A", 9), PoolConfig("B", 3)))
BOTH = RouterConfig((*A.queues, *B.queues), (A.pools[0], B.pools[1]))
DOWN = status("503 Service Unavailable")
WARN, CRITICAL = Severity.WARN, Severity.CRITICAL


class Told:
    """The warnings and the pauses, none of which takes time."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, Severity, str]] = []
        self.pauses: list[float] = []
        self.on_pause: Callable[[], None] = lambda: None

    def warn(self, category: str, severity: Severity, message: str) -> None:
        self.warnings.append((category, severity, message))

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.on_pause()
        await asyncio.sleep(0)

    @property
    def kinds(self) -> list[tuple[str, Severity]]:
        return [(category, severity) for category, severity, _ in self.warnings]

    def configuration(self, *servers: ConfigServer, cache: Path | None = None) -> Configuration:
        places = places_of_urls(",".join(server.url for server in servers))
        return Configuration(places, warn=self.warn, cache=cache, sleep=self.sleep)


def run(test: Callable[[Told], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test(Told())

    asyncio.run(bounded())


def test_spec_001_retry_logic_12_attempts_5_seconds_apart() -> None:
    async def test(told: Told) -> None:
        async with config_server(*[DOWN] * 11, ok(to_json(A))) as server:
            assert await told.configuration(server).first() == A
            assert len(server.requests) == 12
            assert told.pauses == [5.0] * 11
            assert told.warnings == []

    run(test)


def test_spec_001_retry_logic_each_failure_is_logged_with_its_number(caplog: pytest.LogCaptureFixture) -> None:
    async def test(told: Told) -> None:
        async with config_server(DOWN, DOWN, ok(to_json(A))) as server:
            with caplog.at_level(logging.WARNING, "penstock.router"):
                await told.configuration(server).first()

    run(test)

    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert ["try 1 of 12" in caplog.messages[0], "try 2 of 12" in caplog.messages[1]] == [True, True]
    assert "status 503" in caplog.text


def test_spec_001_retry_logic_initial_failure_is_critical_and_ends_the_router() -> None:
    async def test(told: Told) -> None:
        async with config_server(DOWN) as server:
            with pytest.raises(Unavailable, match="status 503"):
                await told.configuration(server).first()
            assert len(server.requests) == 12
            assert told.kinds == [("CONFIG_SYNC_FAILED", CRITICAL)]

    run(test)


def test_spec_001_retry_logic_subsequent_failure_warns_and_keeps_the_configuration() -> None:
    async def test(told: Told) -> None:
        async with config_server(ok(to_json(A)), DOWN) as server:
            configuration = told.configuration(server)
            await configuration.first()

            assert await configuration.again() is None
            assert configuration.current == A
            assert "status 503" in configuration.trouble
            assert len(server.requests) == 13
            assert told.kinds == [("CONFIG_SYNC_FAILED", WARN)]

    run(test)


def test_a_streak_of_failures_is_warned_of_once_and_a_new_streak_again() -> None:
    async def test(told: Told) -> None:
        async with config_server(ok(to_json(A)), DOWN, DOWN, DOWN, ok(to_json(B)), DOWN) as server:
            configuration = told.configuration(server)
            await configuration.first()

            assert [await configuration.again(tries=1) for _ in range(3)] == [None] * 3
            assert told.kinds == [("CONFIG_SYNC_FAILED", WARN)]
            assert await configuration.again(tries=1) == B
            assert configuration.trouble == ""
            await configuration.again(tries=1)
            assert told.kinds == [("CONFIG_SYNC_FAILED", WARN)] * 2

    run(test)


def test_nothing_is_returned_when_only_the_order_or_the_spelling_changed() -> None:
    async def test(told: Told) -> None:
        spelled = {"processing_pools": [{"code": "B", "concurrency": 3}, {"code": "A", "concurrency": 9}], "extra": 1}
        queues = {"queues": [{"uri": "nats://host/S/2", "name": "two"}]}
        async with config_server(ok(to_json(B)), ok({**queues, **spelled})) as server:
            configuration = told.configuration(server)
            await configuration.first()

            assert await configuration.again() is None

    run(test)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (status("302 Found", "Location: http://127.0.0.1:1/"), "status 302"),
        (status("304 Not Modified"), "status 304"),
        (status("404 Not Found", body=to_json(A)), "status 404"),
        (status("500 Internal Server Error"), "status 500"),
        (ok(b"<html>it works</html>"), "not JSON"),
        (ok(b""), "not JSON"),
        (ok(b"{}"), "neither queues nor processingPools"),
        (ok({"queues": [{"uri": "nats://me:hunter2@h\n"}]}), "queues[0].uri"),
        (ok({"processingPools": [{"code": "A", "concurrency": -1}]}), "processingPools[0].concurrency is -1"),
        (status("200 OK", "Content-Encoding: gzip", body=b"\x1f\x8b\x08\x00"), "not JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (BODY_LIMIT + 1), "larger than 10 MB"),
        (b"", "cannot be reached"),
        (b"SSH-2.0-OpenSSH\r\n", "cannot be reached"),
    ],
)
def test_an_answer_that_cannot_be_used_is_a_failure_that_says_why(answer: bytes, words: str) -> None:
    async def test(told: Told) -> None:
        async with config_server(answer) as server:
            with pytest.raises(PenstockError) as refused:
                await ConfigUrl(server.url).fetch()
            assert words in str(refused.value)
            assert "hunter2" not in str(refused.value)

    run(test)


def test_an_endpoint_that_never_answers_or_is_not_there_is_a_failure() -> None:
    async def test(told: Told) -> None:
        async with config_server(None) as server:
            with pytest.raises(Unavailable, match=r"did not answer within 0.1 s"):
                await ConfigUrl(server.url, timeout=0.1).fetch()
        with pytest.raises(Unavailable, match=r"cannot be reached: .*refused|Connect call failed"):
            await ConfigUrl(server.url).fetch()

    run(test)


def test_the_token_is_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def test(told: Told) -> None:
        async with config_server(DOWN, ok(to_json(A)), DOWN) as server:
            environment = {"MESSAGE_ROUTER_CONFIG_URL": server.url, "MESSAGE_ROUTER_CONFIG_TOKEN": "s3cret"}
            places = find_places(file=None, urls=None, environment=environment)
            configuration = Configuration(places, warn=told.warn, sleep=told.sleep)
            await configuration.first()
            await configuration.again()

            assert "authorization: bearer s3cret\r\n" in server.requests[0].lower()
            assert server.requests[0].startswith("GET /api/config HTTP/1.1\r\n")
            assert "s3cret" not in repr(told.warnings) + caplog.text + repr(configuration.trouble)

    with caplog.at_level(logging.DEBUG, "penstock"):
        run(test)


def test_a_password_in_the_address_is_sent_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def test(told: Told) -> None:
        async with config_server(DOWN) as server:
            url = server.url.replace("//", "//me:s3cret@")
            with pytest.raises(Unavailable) as refused:
                await Configuration(places_of_urls(url), warn=told.warn, sleep=told.sleep).first()

            assert "authorization: basic bwu6cznjcmv0" in server.requests[0].lower()
            assert "http://***@127.0.0.1" in str(refused.value)
            assert "s3cret" not in str(refused.value) + repr(told.warnings) + caplog.text

    with caplog.at_level(logging.DEBUG, "penstock"):
        run(test)


def test_several_addresses_are_merged_and_the_first_counts() -> None:
    async def test(told: Told) -> None:
        async with config_server(ok(to_json(A))) as one, config_server(DOWN, ok(to_json(B))) as two:
            assert await told.configuration(one, two).first() == BOTH
            assert told.warnings == []

    run(test)


def test_one_address_of_several_may_fail_and_is_asked_every_5_seconds_until_it_answers() -> None:
    async def test(told: Told) -> None:
        async with config_server(ok(to_json(A))) as one, config_server(*[DOWN] * 14, ok(to_json(B))) as two:
            configuration = told.configuration(one, two)
            assert await configuration.first() == A
            assert told.kinds == [("CONFIG_SYNC_FAILED", WARN)]
            assert "the router starts without it" in told.warnings[0][2]
            told.pauses.clear()

            following = configuration.follow(300)
            assert await anext(following) == BOTH
            assert told.pauses == [5.0] * 3
            assert len(one.requests) == 1, "the one that answered is not asked again for the sake of the other"
            assert told.kinds == [("CONFIG_SYNC_FAILED", WARN)]

            one.answers = [ok(to_json(RouterConfig(A.queues)))]
            assert (await anext(following)).pools == B.pools
            assert told.pauses == [5.0] * 3 + [285.0]

    run(test)


def test_an_address_that_fails_later_keeps_counting_with_what_it_last_said() -> None:
    async def test(told: Told) -> None:
        async with config_server(ok(to_json(A))) as one, config_server(ok(to_json(B)), DOWN) as two:
            configuration = told.configuration(one, two)
            assert await configuration.first() == BOTH
            assert await configuration.again() is None
            assert configuration.current == BOTH
            assert [severity for _, severity in told.kinds] == [WARN]

    run(test)


def test_the_periodic_tick_is_skipped_while_the_start_still_tries() -> None:
    async def test(told: Told) -> None:
        async with config_server(DOWN, ok(to_json(A))) as server:
            configuration = told.configuration(server)
            ticks: list[asyncio.Task[RouterConfig | None]] = []
            told.on_pause = lambda: ticks.append(asyncio.create_task(configuration.again()))

            assert await configuration.first() == A
            assert [await tick for tick in ticks] == [None]
            assert len(server.requests) == 2

    run(test)


def test_spec_001_sync_lock_two_that_ask_at_once_ask_one_after_the_other() -> None:
    async def test(told: Told) -> None:
        async with config_server(ok(to_json(A)), ok(to_json(B))) as server:
            configuration = told.configuration(server)
            await configuration.first()

            found = await asyncio.gather(configuration.again(), configuration.again())
            assert found[0] == B
            assert found[1] is None

    run(test)


def test_a_reload_does_not_wait_for_a_sync_that_tries_again_and_again() -> None:
    async def test(told: Told) -> None:
        async with config_server(ok(to_json(A)), DOWN, ok(to_json(B))) as server:
            configuration = told.configuration(server)
            await configuration.first()
            paused, go_on = asyncio.Event(), asyncio.Event()

            async def sleep(_seconds: float) -> None:
                paused.set()
                await go_on.wait()

            configuration._sleep = sleep
            sync = asyncio.create_task(configuration.again())
            await paused.wait()

            assert await configuration.again(tries=1) == B
            go_on.set()
            assert await sync is None  # what it found is in force already
            assert told.warnings == []

    run(test)


def test_decision_27_without_an_answer_the_router_starts_from_what_was_cached(tmp_path: Path) -> None:
    cache = tmp_path / "deep" / "router.json"

    async def test(told: Told) -> None:
        async with config_server(ok(to_json(A))) as server:
            await told.configuration(server, cache=cache).first()
            assert stat.S_IMODE(cache.stat().st_mode) == 0o600
            assert [path.name for path in cache.parent.iterdir()] == ["router.json"]
            assert msgspec.json.decode(cache.read_bytes())["version"] == 1
            server.answers = [DOWN]

            later = told.configuration(server, cache=cache)
            assert await later.first() == A
            assert told.pauses == [], "it starts at once, and asks again meanwhile"
            assert told.kinds == [("CONFIG_SYNC_FAILED", CRITICAL)]
            assert "last known content" in told.warnings[0][2]
            assert later.trouble

            server.answers = [DOWN, DOWN, ok(to_json(B))]
            told.pauses.clear()
            assert await anext(later.follow(300)) == B
            assert told.pauses == [5.0] * 3
            assert later.trouble == ""
            assert len(told.warnings) == 1

    run(test)


def test_decision_27_an_address_that_accepts_and_does_not_answer_does_not_hold_up_what_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "router.json"
    monkeypatch.setattr("penstock.router.configuration.CACHED_WAIT", 0.05)

    async def test(told: Told) -> None:
        async with config_server(ok(to_json(A))) as server:
            await told.configuration(server, cache=cache).first()
            server.answers = [None]
            later = told.configuration(server, cache=cache)

            async with asyncio.timeout(5):  # the whole time limit of a fetch is twice as long
                assert await later.first() == A
            assert "did not answer within 0.05 s" in later.trouble
            server.answers = [ok(to_json(B))]
            assert await anext(later.follow(300)) == B

    run(test)


def test_who_becomes_primary_again_does_not_wait_for_an_endpoint_that_is_down() -> None:
    async def test(told: Told) -> None:
        async with config_server(ok(to_json(A)), DOWN) as server:
            configuration = told.configuration(server)
            await configuration.first()

            assert await configuration.first() == A
            assert told.pauses == []
            assert told.kinds == [("CONFIG_SYNC_FAILED", CRITICAL)]

    run(test)


def test_keys_that_mean_nothing_are_told_to_who_asks(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[[processingPools]]\ncode = 'A'\nconcurency = 3")
    found: list[str] = []

    async def test(told: Told) -> None:
        await ConfigFile(path).fetch(found)
        async with config_server(ok({"queues": [], "pools": []})) as server:
            await ConfigUrl(server.url).fetch(found)

    run(test)

    assert found == ["processingPools[0].concurency", "pools"]


def test_what_was_cached_of_one_address_fills_in_for_that_one_alone(tmp_path: Path) -> None:
    cache = tmp_path / "router.json"

    async def test(told: Told) -> None:
        async with config_server(ok(to_json(A))) as one, config_server(ok(to_json(B))) as two, config_server(DOWN) as three:
            await told.configuration(one, two, cache=cache).first()
            two.answers = [DOWN]

            assert await told.configuration(one, two, cache=cache).first() == BOTH
            assert told.kinds == [("CONFIG_SYNC_FAILED", WARN)]
            with pytest.raises(Unavailable):
                await told.configuration(three, cache=cache).first()

    run(test)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"version": 2, "places": {}}', b'{"version": 1, "places": {"a": 1}}'])
def test_a_cache_that_cannot_be_used_is_as_none(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = tmp_path / "router.json"
    cache.write_bytes(content)

    async def test(told: Told) -> None:
        async with config_server(DOWN) as server:
            with pytest.raises(Unavailable):
                await told.configuration(server, cache=cache).first()
            server.answers = [ok(to_json(A))]
            assert await told.configuration(server, cache=cache).first() == A

    run(test)

    assert "cannot be used" in caplog.text


def test_a_cache_that_cannot_be_written_is_warned_of_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def test(told: Told) -> None:
        async with config_server(ok(to_json(A))) as server:
            configuration = told.configuration(server, cache=tmp_path / "file" / "router.json")
            assert await configuration.first() == A
            await configuration.again()
            assert told.kinds == [("CONFIG_SYNC_FAILED", WARN)]
            assert "cannot be cached" in told.warnings[0][2]

    run(test)


TOML = """
[[queues]]
queueUri = "nats://host/S/2"
queueName = "two"

[[processingPools]]
code = "A"
concurrency = 9

[[processingPools]]
code = "B"
concurrency = 3
"""


@pytest.mark.parametrize(
    ("name", "content"), [("c.toml", TOML), ("c.json", to_json(B).decode()), ("config", to_json(B).decode())]
)
def test_a_file_is_read_and_its_changes_are_followed(name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)

    async def test(told: Told) -> None:
        configuration = Configuration([ConfigFile(path)], warn=told.warn, sleep=told.sleep)
        assert await configuration.first() == B
        assert await configuration.again() is None
        path.write_text(content.replace("two", "deux"))
        changed = await anext(configuration.follow(300))
        assert changed.queues == (QueueConfig("deux", "nats://host/S/2"),)
        assert told.pauses == [300]

    run(test)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.json", None, "cannot be read: No such file"),
        ("c.json", b"{", "not JSON"),
        ("c.toml", b"a = ", "not TOML: Invalid value"),
        ("c.toml", b"a = '\xff'", "not TOML: UnicodeDecodeError"),
        ("c.toml", b"[[processingPools]]\ncode = 1", "processingPools[0].code is 1"),
        ("c.json", b" " * (BODY_LIMIT + 1), "larger than 10 MB"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_at_once(name: str, content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    async def test(told: Told) -> None:
        with pytest.raises(Unavailable) as refused:
            await Configuration([ConfigFile(path)], warn=told.warn, sleep=told.sleep).first()
        assert words in str(refused.value)
        assert str(path) in str(refused.value)
        assert told.pauses == []

    run(test)


@pytest.mark.parametrize(
    ("file", "urls", "environment", "words"),
    [
        ("a.yaml", None, {}, "expected a file of JSON or TOML"),
        ("a.json", "http://h/c", {}, "both given"),
        (None, "ftp://h/c", {}, "expected a URL"),
        (None, "http:///c", {}, "expected a URL"),
        (None, "http://h:99999/c", {}, "expected a URL"),
        (None, "http://h/c\n", {"x": "y"}, None),
        (None, "http://h/a b\x00", {}, "expected a URL"),
        (None, " , ,", {}, "expected one URL, or several"),
        (None, "http://me:s3cret@h/c", {"MESSAGE_ROUTER_CONFIG_TOKEN": "s3cret"}, "expected no user beside a token"),
        (None, "http://h/c", {"MESSAGE_ROUTER_CONFIG_TOKEN": "s3cret\r\nX: 1"}, "no header may have"),
    ],
)
def test_a_place_that_cannot_be_is_refused(
    file: str | None, urls: str | None, environment: dict[str, str], words: str | None
) -> None:
    if words is None:
        assert len(find_places(file=None, urls=urls, environment=environment)) == 1
        return
    with pytest.raises(InvalidArgument) as refused:
        find_places(file=Path(file) if file else None, urls=urls, environment=environment)
    assert words in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_without_any_place_the_router_says_how_to_give_one() -> None:
    assert find_places(file=None, urls=None, environment={}) == []
    with pytest.raises(InvalidArgument) as refused:
        Configuration([], warn=lambda *_: None)
    assert "MESSAGE_ROUTER_CONFIG_URL" in str(refused.value.hint)


def test_an_address_that_is_named_twice_is_asked_once() -> None:
    assert [place.name for place in places_of_urls("http://a/c, http://b/c,http://a/c,")] == ["http://a/c", "http://b/c"]
