"""Which endpoints push may send to."""

import pytest

from penstock.doors.pubsub import messages
from penstock.doors.pubsub.core.endpoints import Endpoints
from penstock.errors import InvalidArgument

ALLOWED = [
    ("*", "http://anything.example/x"),
    ("*", "http://bücher.example/"),
    ("example.com", "https://example.com/push"),
    ("example.com", "https://EXAMPLE.com:8443/push"),
    ("example.com", "https://example.com./push"),
    ("*.example.com", "https://a.b.example.com/"),
    ("127.0.0.1:9000", "http://127.0.0.1:9000/"),
    ("example.com:443", "https://example.com/"),
    ("example.com:80", "http://example.com/"),
    ("example.com:*", "http://example.com:1234/"),
    ("[::1]", "http://[::1]:9000/"),
    ("[::1]:9000", "http://[::1]:9000/"),
    ("a*b*c", "http://axxbxxc/"),
]

REFUSED = [
    ("example.com", "https://evil.example.com/"),
    ("example.com", "https://example.com.evil.org/"),
    ("example.com", "https://evil.org/example.com"),
    ("example.com", "https://evil.org?example.com"),
    ("example.com", "https://evil.org#example.com"),
    ("example.com", "https://example.com@evil.org/"),
    ("*.example.com", "https://example.com/"),
    ("*.example.com", "https://evil.org\\.example.com/"),
    ("*.example.com", "https://evil.org%2f.example.com/"),
    ("strasse.example", "https://straße.example/"),
    ("*.example", "https://straße.example/"),
    ("127.0.0.1:9000", "http://127.0.0.1:9001/"),
    ("127.0.0.1:9000", "http://127.0.0.1/"),
    ("127.0.0.1", "http://[::ffff:127.0.0.1]/"),
    ("example.com:443", "http://example.com/"),
    ("1.2.3.4", "http://1x2x3x4/"),
]


@pytest.mark.parametrize(("pattern", "url"), ALLOWED)
def test_allowed(pattern: str, url: str) -> None:
    assert Endpoints(["other.example", pattern]).allow(url)


@pytest.mark.parametrize(("pattern", "url"), REFUSED)
def test_refused(pattern: str, url: str) -> None:
    assert not Endpoints([pattern]).allow(url)


def test_no_pattern_means_no_push() -> None:
    assert not Endpoints([]).allow("http://example.com")


def test_the_refusal_names_the_endpoint_what_is_allowed_and_the_setting() -> None:
    subscription = messages.Subscription()
    Endpoints([]).check(subscription)
    subscription.push_config.push_endpoint = "http://evil.example/x"

    with pytest.raises(InvalidArgument, match=r"push_config.push_endpoint.*evil.example.*\*.good.example") as refused:
        Endpoints(["*.good.example"]).check(subscription)

    assert "push_allow" in (refused.value.hint or "")


def test_a_pattern_full_of_stars_takes_no_time() -> None:
    assert not Endpoints(["*a" * 100 + "b"]).allow("http://" + "a" * 2000 + "/")
