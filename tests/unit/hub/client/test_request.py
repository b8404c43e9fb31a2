"""What a hub says when it refuses becomes the error that fits."""

import pytest

from penstock.errors import (
    ActorNotFound,
    FailedPrecondition,
    InvalidArgument,
    PenstockError,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from penstock.hub.client.request import SlowDown, error_of
from penstock.hub.core import messages as wire

PUBLISH, SUBSCRIBE, ASK = wire.Publish("orders", "x"), wire.Subscribe("orders/#"), wire.TopicInfo("orders")


def test_a_refusal_becomes_an_error(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, dict[str, object], wire.Command, type[PenstockError], str]] = [
        ("unauthorized", {}, wire.Connect(), Unauthenticated, "no good"),
        ("invalid_token", {}, wire.RefreshToken("x"), Unauthenticated, "no good"),
        ("unauthorized", {}, PUBLISH, PermissionDenied, "may not publish to orders"),
        ("unauthorized", {}, SUBSCRIBE, PermissionDenied, "may not subscribe to orders/#"),
        ("unauthorized", {}, wire.Register("@(a/b)", ("x",)), PermissionDenied, "may not register as @(a/b)"),
        ("unauthorized", {}, wire.Broadcast("x"), PermissionDenied, "may not broadcast to everybody"),
        ("unauthorized", {"reason": "registration_expired"}, PUBLISH, FailedPrecondition, "no good"),
        ("unauthorized", {"reason": "expired_token"}, PUBLISH, Unauthenticated, "no good"),
        ("unauthorized", {"reason": "expired_token"}, ASK, Unauthenticated, "no good"),
        ("unauthorized", {"reason": "keys_unavailable", "retryable": True}, wire.Connect(), Unavailable, "no good"),
        ("invalid_token", {"reason": "keys_unavailable", "retryable": True}, wire.RefreshToken("x"), Unavailable, "no good"),
        ("unauthorized", {}, ASK, FailedPrecondition, "no good"),
        ("rate_limited", {"retryAfter": 0.25}, PUBLISH, SlowDown, "0.250 s"),
        ("rate_limited", {"retryAfter": "soon"}, PUBLISH, SlowDown, "1.000 s"),
        ("rate_limited", {"retryAfter": -3}, PUBLISH, SlowDown, "0.000 s"),
        ("rate_limited", {}, wire.Register("@(a/b)", ("x",)), ResourceExhausted, "no good"),
        ("BROADCAST_LIMIT_EXCEEDED", {}, wire.Broadcast("x"), ResourceExhausted, "no good"),
        ("unknown_actor", {}, wire.Send("@(a/b)", "x"), ActorNotFound, "@(a/b)"),
        ("unknown_actor", {}, ASK, FailedPrecondition, "no good"),
        ("message_expired", {}, PUBLISH, FailedPrecondition, "no good"),
        ("version_mismatch", {}, wire.Connect(), FailedPrecondition, "no good"),
        ("timeout", {}, PUBLISH, Unavailable, "no good"),
        ("internal_error", {"retryable": True}, PUBLISH, Unavailable, "no good"),
        ("internal_error", {"retryable": False}, PUBLISH, InvalidArgument, "the hub refuses: no good"),
        ("message_too_large", {}, PUBLISH, InvalidArgument, "the hub refuses: no good"),
        ("something new", {}, PUBLISH, InvalidArgument, "the hub refuses: no good"),
    ]
    for code, details, command, kind, text in rows:
        with subtests.test(code=code, details=details):
            error = error_of(wire.Error(code, "no good", "do better", details), command)

            assert type(error) is kind
            assert text in str(error)


def test_what_to_do_is_what_the_hub_says_and_not_what_other_servers_advise(subtests: pytest.Subtests) -> None:
    rows: list[wire.Command] = [PUBLISH, SUBSCRIBE, wire.Connect(), ASK]
    for command in rows:
        with subtests.test(command=command):
            assert error_of(wire.Error("unauthorized", "no good", "do better", {}), command).hint == "do better"


def test_who_is_too_fast_learns_how_far_apart_requests_should_be(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, float]] = [(200, 0.005), (None, 0.5), (0, 0.5), ("many", 0.5)]
    for limit, gap in rows:
        with subtests.test(limit=limit, gap=gap):
            error = error_of(wire.Error("rate_limited", "", "", {"retryAfter": 0.5, "limit": limit}), PUBLISH)

            assert isinstance(error, SlowDown)
            assert error.gap == gap
