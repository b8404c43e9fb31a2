"""What a subscriber may be told: defaults, limits, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.client.options import MAX_BYTES, MAX_MESSAGES, CloseBehavior, SubscriberOptions
from penstock.errors import InvalidArgument
from penstock.values.policy import FlowControl

YEAR = 366 * 86_400


def test_the_defaults_are_those_of_the_specification() -> None:
    options = SubscriberOptions()
    assert (options.max_messages, options.max_bytes) == (MAX_MESSAGES, MAX_BYTES) == (1_000, 104_857_600)
    assert (options.ack_deadline, options.message_ordering, options.max_streams) == (60, False, 5)
    assert options.ordering_window == 1
    assert options.flow_control.allow_excess_messages is False
    assert (options.max_extension, options.close_behavior, options.close_timeout) == (3_600, CloseBehavior.WAIT, None)


def test_a_limit_that_is_given_is_taken_and_the_other_stays() -> None:
    options = SubscriberOptions(flow_control=FlowControl(max_messages=3))
    assert (options.max_messages, options.max_bytes) == (3, MAX_BYTES)
    options = SubscriberOptions(flow_control=FlowControl(max_bytes=3))
    assert (options.max_messages, options.max_bytes) == (MAX_MESSAGES, 3)


def test_a_boundary_is_allowed(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, Any]] = [
        ("ack_deadline", 0.001),
        ("ack_deadline", 600),
        ("ack_deadline", timedelta(milliseconds=1)),
        ("max_streams", 1),
        ("max_streams", 100),
        ("high_water_mark", 0),
        ("high_water_mark", None),
        ("max_extension", 0),
        ("max_extension", YEAR),
        ("close_timeout", 0),
        ("close_timeout", YEAR),
        ("close_timeout", timedelta(days=1)),
        ("close_timeout", None),
        ("close_behavior", "nack"),
        ("close_behavior", CloseBehavior.WAIT),
        ("message_ordering", True),
        ("ordering_window", 1),
        ("ordering_window", 1_000),
    ]
    for name, value in rows:
        with subtests.test(name=name, value=value):
            assert getattr(SubscriberOptions(**{name: value}), name) == value


def test_what_makes_no_sense_is_refused_by_its_name(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, Any]] = [
        ("flow_control", None),
        ("flow_control", 100),
        ("flow_control", {"max_messages": 1}),
        ("ordering_window", 0),
        ("ordering_window", 1_001),
        ("ordering_window", True),
        ("ack_deadline", 0),
        ("ack_deadline", 0.0009),
        ("ack_deadline", 600.001),
        ("ack_deadline", -1),
        ("ack_deadline", "60"),
        ("ack_deadline", None),
        ("ack_deadline", True),
        ("ack_deadline", float("nan")),
        ("message_ordering", 1),
        ("message_ordering", None),
        ("max_streams", 0),
        ("max_streams", 101),
        ("max_streams", 1.5),
        ("max_streams", True),
        ("high_water_mark", -1),
        ("high_water_mark", 1.5),
        ("high_water_mark", True),
        ("max_extension", -1),
        ("max_extension", YEAR + 1),
        ("max_extension", None),
        ("close_timeout", -0.001),
        ("close_timeout", "1s"),
        ("close_behavior", "drop"),
        ("close_behavior", None),
        ("close_behavior", 0),
    ]
    for name, value in rows:
        with subtests.test(name=name, value=value), pytest.raises(InvalidArgument, match=name):
            SubscriberOptions(**{name: value})


def test_options_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        SubscriberOptions().ack_deadline = 1  # type: ignore[misc]  # that is the point
