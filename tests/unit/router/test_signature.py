"""How a target knows the router (decision 29)."""

import hmac
from base64 import b64encode

import pytest

from penstock.durations import SECOND
from penstock.errors import InvalidArgument
from penstock.router.core.signature import message_headers, standard_headers, standard_key

SECRET = "test-secret-do-not-use-in-prod"  # that of the published golden vector
NOW = 1_767_225_600 * SECOND  # 2026-01-01T00:00:00Z


def test_decision_29_the_originals_signature_is_that_of_its_golden_vector() -> None:
    assert message_headers(SECRET, b'{"messageId":"msg_TEST123456"}', NOW) == (
        b"X-FLOWCATALYST-SIGNATURE: 4c53b4f3224c8c870cd4f12e03a6903233153f26777708dd3afab915b2eb3819\r\n"
        b"X-FLOWCATALYST-TIMESTAMP: 2026-01-01T00:00:00.000Z\r\n"
    )


@pytest.mark.parametrize(("micros", "written"), [(1, b".000Z"), (999, b".000Z"), (1_000, b".001Z"), (999_999, b".999Z")])
def test_decision_29_the_originals_timestamp_has_24_characters(micros: int, written: bytes) -> None:
    line = message_headers(SECRET, b"", NOW + micros).split(b"\r\n")[1]

    assert line == b"X-FLOWCATALYST-TIMESTAMP: 2026-01-01T00:00:00" + written


def test_decision_29_standard_webhooks_sign_id_time_and_body() -> None:
    key = b"0123456789abcdef"
    lines = standard_headers(key, "m1", b"{}", NOW + 7)

    digest = b64encode(hmac.digest(key, b"m1.1767225600.{}", "sha256")).decode()
    assert lines.decode().split("\r\n") == [
        "webhook-id: m1",
        "webhook-timestamp: 1767225600",
        f"webhook-signature: v1,{digest}",
        "",
    ]


def test_decision_29_a_standard_webhooks_secret_is_base64_after_its_prefix_or_any_text() -> None:
    assert standard_key("whsec_" + b64encode(b"key").decode()) == b"key"
    assert standard_key("plain") == b"plain"


@pytest.mark.parametrize("wrong", ["", "whsec_!", "whsec_abc", "whsec_é"])
def test_decision_29_a_secret_that_cannot_be_is_refused_and_not_shown(wrong: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        standard_key(wrong)

    assert not wrong or wrong.removeprefix("whsec_") not in str(caught.value).replace("Base64", "")
