"""What a replay is: its speed, its range, its name."""

import argparse
from dataclasses import replace
from typing import Any

import pytest

from penstock.cli.pipeline_replay import past, replay_of, tell
from penstock.durations import SECOND
from penstock.errors import InvalidArgument
from penstock.pipeline.core.replay import Replay, ReplayExtent, duration, speed_of


def test_a_speed_is_a_factor_or_none_at_all(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, float | None]] = [
        ("full", None),
        ("original", 1.0),
        ("1x", 1.0),
        ("10x", 10.0),
        ("0.5x", 0.5),
        ("1000000x", 1_000_000.0),
        ("0.000001x", 1e-6),
    ]
    for text, speed in cases:
        with subtests.test(text=text, speed=speed):
            assert speed_of(text) == speed


def test_another_speed_is_refused_with_what_it_may_be(subtests: pytest.Subtests) -> None:
    cases: list[str] = ["", "x", "fast", "FULL", "10", "-1x", "0x", "0.0x", "1000001x", "1e3x", "10 x", "nanx", "infx", "٣x"]
    for text in cases:
        with subtests.test(text=text), pytest.raises(InvalidArgument, match="full, original, or a factor such as 10x"):
            speed_of(text)


def test_a_replay_lasts_as_long_as_the_original_divided_by_its_speed() -> None:
    assert duration(0, 3_600 * SECOND, 1.0) == 3_600 * SECOND
    assert duration(5 * SECOND, 65 * SECOND, 10.0) == 6 * SECOND
    assert duration(0, SECOND, 0.5) == 2 * SECOND
    assert duration(0, SECOND, None) == 0


def test_nothing_lasts_no_time() -> None:
    assert ReplayExtent(0, 0).duration(1.0) == 0
    assert ReplayExtent(2, 10, 0, 1, SECOND, 3 * SECOND).duration(2.0) == SECOND


def test_an_empty_range_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"from_offset": 5, "to_offset": 5}, "from_offset is not before to_offset"),
        ({"from_offset": 6, "to_offset": 5}, "from_offset is not before to_offset"),
        ({"since": 2, "until": 1}, "since is not before until"),
        ({"where": " "}, "the condition is empty"),
    ]
    for bounds, said in cases:
        with subtests.test(bounds=bounds, said=said), pytest.raises(InvalidArgument, match=said):
            Replay("orders", "copy", "r1", **bounds)


def test_a_range_of_one_and_one_that_is_open_are_fine() -> None:
    assert Replay("orders", "copy", "r1", from_offset=5, to_offset=6).to_offset == 6
    assert Replay("orders", "copy", "r1", from_offset=0, since=0).storage == "auto"


def test_the_name_of_a_replay_is_a_plain_word(subtests: pytest.Subtests) -> None:
    cases: list[str] = ["", "a/b", "a b", "-a", ".a", "é", "a\n", "x" * 101]
    for replay_id in cases:
        with subtests.test(replay_id=replay_id), pytest.raises(InvalidArgument, match="the replay id"):
            Replay("orders", "copy", replay_id)


def test_other_arguments_are_named(subtests: pytest.Subtests) -> None:
    kept = Replay("orders", "copy", "r1", since=SECOND, until=9 * SECOND, ago={"since": "2h"}, speed=1.0)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"to": "other"}, "to is 'other' and was 'copy'"),
        ({"stream": "x", "speed": None}, "stream is 'x' and was 'orders', speed is 'full' and was '1x'"),
        ({"where": "key = 'a'"}, "where is \"key = 'a'\" and was 'missing'"),
        ({"until": None}, "until is 'missing' and was '1970-01-01T00:00:09+00:00'"),
        ({"ago": {"since": "3h"}}, "since is '3h' and was '2h'"),
        ({"from_offset": 0}, "from_offset is '0' and was 'missing'"),
    ]
    for changes, said in cases:
        with subtests.test(changes=changes), pytest.raises(InvalidArgument) as caught:
            replace(kept, **changes).check_arguments(kept.arguments())
        assert str(caught.value) == f"the replay id 'r1' was used before with other arguments: {said}"
    for changes in ({}, {"since": 5 * SECOND}, {"storage": "log"}):  # two hours before another now; the same rows from elsewhere
        replace(kept, **changes).check_arguments(kept.arguments())


def test_the_command_keeps_a_time_before_now_as_it_was_written() -> None:
    flags = {
        "to": "b",
        "from_offset": None,
        "to_offset": None,
        "where": None,
        "speed": "full",
        "storage": "log",
        "replay_id": "r",
    }
    given = argparse.Namespace(
        stream="a", dry_run=False, lake="lake", since=past("2h"), until=past("2026-01-31T12:00:00Z"), **flags
    )
    replay = replay_of(given, 1_769_860_800 * SECOND)

    assert replay.since == (1_769_860_800 - 7_200) * SECOND
    assert replay.arguments()["since"] == "2h"
    assert replay.arguments()["until"] == "2026-01-31T12:00:00+00:00"


def test_an_id_that_was_used_before_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    given, replay = argparse.Namespace(json=False, dry_run=False), Replay("orders", "copy", "r1")
    tell(given, replay, ReplayExtent(2, 10, 0, 1, SECOND, 3 * SECOND, is_repeat=True))

    assert capsys.readouterr().out == "nothing was added: a replay with the id r1 was published before\n"
