"""What every error promises: a place in the drawn tree, a code, words that fit on a line, and a life after pickle."""

from __future__ import annotations

import pytest

from penstock import errors
from penstock.errors import PenstockError
from tests.unit.hostile import Unshowable, check_copies, deep

CLASSES: dict[str, type[PenstockError]] = {
    name: thing for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, PenstockError)
}

# The codes of specification 000 (they are gRPC's), each on the highest class that has it.
CODES = {
    "PenstockError": 2,
    "InvalidArgument": 3,
    "NotFound": 5,
    "AlreadyExists": 6,
    "ResourceExhausted": 8,
    "FailedPrecondition": 9,
    "OutOfRange": 11,
    "Unavailable": 14,
    "DataLoss": 15,
    "PermissionDenied": 7,
    "Aborted": 10,
    "Unimplemented": 12,
    "Unauthenticated": 16,
}

EXAMPLES: dict[str, PenstockError] = {
    "PenstockError": PenstockError("something", hint="do something"),
    "InvalidArgument": errors.InvalidArgument.of("count", 0, "an integer, 1 or more", hint="count from 1"),
    "InvalidAckId": errors.InvalidAckId("nonsense"),
    "DeadLetterCycle": errors.DeadLetterCycle(["orders", "failed", "orders"]),
    "InvalidFilter": errors.InvalidFilter("attributes.k == 1", 13, "found `==`, expected `=` or `!=`"),
    "InvalidPriority": errors.InvalidPriority(10),
    "TransformFailed": errors.TransformFailed("redact", "threw: TypeError"),
    "NotFound": errors.NotFound("it"),
    "TopicNotFound": errors.TopicNotFound("orders"),
    "SubscriptionNotFound": errors.SubscriptionNotFound("billing"),
    "SnapshotNotFound": errors.SnapshotNotFound("mark"),
    "QueueNotFound": errors.QueueNotFound("tasks"),
    "MessageNotFound": errors.MessageNotFound("0123"),
    "ConsumerNotFound": errors.ConsumerNotFound("w1"),
    "SchemaNotFound": errors.SchemaNotFound("projects/p/schemas/s"),
    "TokenNotFound": errors.TokenNotFound("abcd"),
    "CursorNotFound": errors.CursorNotFound("archive"),
    "PartNotFound": errors.PartNotFound("0-1 of write w"),
    "ActorNotFound": errors.ActorNotFound("@(browser/ui)"),
    "AlreadyExists": errors.AlreadyExists("Topic", "orders"),
    "ResourceExhausted": errors.ResourceExhausted("no more numbers"),
    "SubscriptionFull": errors.SubscriptionFull("billing", "orders"),
    "QueueFull": errors.QueueFull("tasks"),
    "PermissionDenied": errors.PermissionDenied("publish", "topic orders"),
    "RateLimited": errors.RateLimited(0.25),
    "Unimplemented": errors.Unimplemented("no command 'queue.dance'"),
    "Unauthenticated": errors.Unauthenticated("the token has expired"),
    "FailedPrecondition": errors.FailedPrecondition("not now"),
    "AckDeadlineExceeded": errors.AckDeadlineExceeded("0123"),
    "AckIdsRefused": errors.AckIdsRefused({"00": "PERMANENT_FAILURE_INVALID_ACK_ID"}),
    "BrokerClosed": errors.BrokerClosed(),
    "DataDirectoryInUse": errors.DataDirectoryInUse("data", "process 7"),
    "LogInUse": errors.LogInUse("postgresql://host/penstock", "node 'a'"),
    "UnsupportedFormat": errors.UnsupportedFormat("data", 2, 1),
    "StreamReplaced": errors.StreamReplaced("orders", 7, 3),
    "ArrowUnavailable": errors.ArrowUnavailable("No module named 'pyarrow'"),
    "OpenedBeforeFork": errors.OpenedBeforeFork("this broker", 7),
    "Aborted": errors.Aborted("changed meanwhile"),
    "OutOfRange": errors.OutOfRange("orders", 9, 0, 5),
    "Unavailable": errors.Unavailable("not now"),
    "PublishingPaused": errors.PublishingPaused("key"),
    "ServerUnreachable": errors.ServerUnreachable("http://localhost:8085", "connection refused"),
    "JournalUnavailable": errors.JournalUnavailable("data", "disk full"),
    "LogLost": errors.LogLost("postgresql://host/penstock", "its epoch is over"),
    "JournalUncertain": errors.JournalUncertain("postgresql://host/penstock", "the connection was lost"),
    "DataLoss": errors.DataLoss("gone"),
    "CorruptLog": errors.CorruptLog("data", "events 3 to 7", "the checksum does not fit"),
}


def test_every_error_is_in_the_tree_at_the_top_of_the_module_under_its_parent() -> None:
    drawn: dict[str, str] = {}
    depths: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = [word for word in line.replace("·", " ").replace("(", " ").split() if word in CLASSES]
        if found:
            column = line.index(found[0])
            depths = [(depth, name) for depth, name in depths if depth < column]
            drawn |= dict.fromkeys(found, depths[-1][1] if depths else "")
            depths.append((column, found[0]))

    real = {name: kind.__bases__[0].__name__ if kind is not PenstockError else "" for name, kind in CLASSES.items()}
    assert drawn == real


def test_every_error_of_the_tree_has_an_example_here() -> None:
    assert EXAMPLES.keys() == CLASSES.keys()


def test_an_error_has_the_code_of_its_family_and_a_reason_of_its_own(subtests: pytest.Subtests) -> None:
    for name, error in EXAMPLES.items():
        with subtests.test(name):
            family = next(parent.__name__ for parent in type(error).__mro__ if parent.__name__ in CODES)

            assert error.code == CODES[family]
            assert [kind.__name__ for kind in CLASSES.values() if kind.reason == error.reason] == [name]
            assert error.transient == isinstance(error, errors.Aborted | errors.ResourceExhausted | errors.Unavailable)
            assert type(error).__doc__


def test_an_error_survives_pickle_and_copy_with_its_text_and_its_hint(subtests: pytest.Subtests) -> None:
    for name, error in EXAMPLES.items():
        with subtests.test(name):
            check_copies(error)


def test_a_hint_is_shown_once_under_the_traceback(subtests: pytest.Subtests) -> None:
    for name, error in EXAMPLES.items():
        with subtests.test(name):
            assert getattr(error, "__notes__", []) == ([error.hint] if error.hint else [])


def test_an_error_shows_a_line_of_any_value_and_can_still_be_pickled(subtests: pytest.Subtests) -> None:
    rows: list[object] = [
        "x" * 10_000,
        b"x" * 10_000,
        list(range(10_000)),
        10**5_000,
        deep(100_000),
        Unshowable(),
        lambda: 0,
        object(),
    ]
    for value in rows:
        with subtests.test(value=value):
            for error in (
                errors.InvalidArgument.of("count", value, "an integer"),
                errors.InvalidPriority(value),
                errors.InvalidAckId(value),
                errors.TopicNotFound(value),
            ):
                assert len(str(error)) < 200
                assert len(str(error).splitlines()) == 1
                check_copies(error)


def test_the_advice_about_a_connection_fits_how_it_failed(subtests: pytest.Subtests) -> None:
    for address, problem, advice in (
        ("http://h:1", "connection refused", "penstock serve"),
        ("https://h:1", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate", "SSL_CERT_FILE"),
        ("https://h:1", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired", "renew"),
        ("https://h:1", "[SSL: CERTIFICATE_VERIFY_FAILED] Hostname mismatch, certificate is not valid for 'h'", "host name that"),
        ("https://h:1", "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", "http:// instead of https://"),
        ("wss://h:1/ws", "[SSL: TLSV1_ALERT_PROTOCOL_VERSION] tlsv1 alert protocol version", "openssl s_client"),
        ("http://h:1", "not a Penstock server: it does not speak HTTP", "https://"),
        ("ws://h:1/ws", "server disconnected", "https://"),
        (
            "penstocks://h:1",
            "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)",
            "penstock:// instead of penstocks://",
        ),
        ("penstock://h:1", "the server closed the connection", "penstocks://"),
        ("penstock://h:1", "the server there does not speak Penstock's native protocol", "native port"),
    ):
        with subtests.test(problem):
            error = errors.ServerUnreachable(address, problem)
            assert advice in (error.hint or "")
            check_copies(error)
