"""Errors become HTTP: every error of the tree has a status, and nothing unknown shows its text."""

import json

import pytest
from aiohttp import web

from penstock import errors
from penstock.http.refusal import GOOGLE_ERRORS, Refusal, refusal_of


def every(kind: type[errors.PenstockError]) -> list[type[errors.PenstockError]]:
    return [kind, *(below for one in kind.__subclasses__() for below in every(one))]


STATUSES = {
    errors.InvalidArgument: (400, "INVALID_ARGUMENT"),
    errors.NotFound: (404, "NOT_FOUND"),
    errors.AlreadyExists: (409, "ALREADY_EXISTS"),
    errors.PermissionDenied: (403, "PERMISSION_DENIED"),
    errors.ResourceExhausted: (429, "RESOURCE_EXHAUSTED"),
    errors.BrokerClosed: (503, "UNAVAILABLE"),
    errors.FailedPrecondition: (400, "FAILED_PRECONDITION"),
    errors.Aborted: (409, "ABORTED"),
    errors.OutOfRange: (400, "OUT_OF_RANGE"),
    errors.Unimplemented: (501, "UNIMPLEMENTED"),
    errors.Unavailable: (503, "UNAVAILABLE"),
    errors.DataLoss: (500, "DATA_LOSS"),
    errors.Unauthenticated: (401, "UNAUTHENTICATED"),
    errors.PenstockError: (500, "UNKNOWN"),
}


def test_every_error_of_the_tree_has_googles_status(subtests: pytest.Subtests) -> None:
    for kind in [kind for kind in every(errors.PenstockError) if kind.__module__ == "penstock.errors"]:
        with subtests.test(kind=kind):
            error = kind.__new__(kind)
            error.__class__ = type(kind.__name__, (kind,), {"__str__": lambda _: "what was wrong", "retry_after": 0.2})
            refusal = refusal_of(error)

            wanted = next(status for family, status in STATUSES.items() if issubclass(kind, family))
            assert (refusal.status, refusal.word) == wanted
            assert (refusal.message, refusal.reason) == ("what was wrong", kind.reason)


def test_the_default_body_is_that_of_googles_json_apis() -> None:
    response = GOOGLE_ERRORS.render(refusal_of(errors.QueueNotFound("jobs")))

    assert isinstance(response.body, bytes)
    assert (response.status, response.content_type) == (404, "application/json")
    assert json.loads(response.body) == {
        "error": {
            "code": 404,
            "message": "Queue not found: jobs",
            "status": "NOT_FOUND",
            "reason": "queue_not_found",
            "hint": errors.QueueNotFound.hint,
        }
    }


def test_who_is_not_known_is_told_how_to_become_known_and_who_is_too_fast_when_to_return() -> None:
    assert refusal_of(errors.Unauthenticated()).headers["WWW-Authenticate"].startswith("Bearer")
    assert refusal_of(errors.RateLimited(2.1)).headers["Retry-After"] == "3"
    assert refusal_of(errors.RateLimited(0.001)).headers["Retry-After"] == "1"


def test_the_text_of_an_unknown_error_stays_inside() -> None:
    refusal = refusal_of(RuntimeError("a token"))

    assert (refusal.status, refusal.reason) == (500, "internal")
    assert "token" not in refusal.message


def test_what_aiohttp_and_doors_raise_keeps_its_status(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Exception, int, str | None]] = [
        (web.HTTPBadRequest(text="No\nway"), 400, "INVALID_ARGUMENT"),
        (web.HTTPUnsupportedMediaType(), 415, "UNSUPPORTED_MEDIA_TYPE"),
        (web.HTTPRequestEntityTooLarge(5), 413, None),
        (web.RequestPayloadError("x"), 400, "INVALID_ARGUMENT"),
        (Refusal(507, "full", reason="full"), 507, "INSUFFICIENT_STORAGE"),
        (Refusal(499, "gone", reason="gone"), 499, "STATUS_499"),
    ]
    for error, status, word in rows:
        with subtests.test(error=error, status=status):
            refusal = refusal_of(error)

            assert refusal.status == status
            assert word is None or refusal.word == word
            assert "\n" not in refusal.message
