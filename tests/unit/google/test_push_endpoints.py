"""Which endpoints push may send to."""

import pytest

from penstock.errors import InvalidArgument
from penstock.google import messages
from penstock.google.core.push_endpoints import Endpoints

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
    ("[::1]:9000", "http://[0:0:0:0:0:0:0:1]:9000/"),
    ("[0:0::1]", "http://[::1]/"),
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


def test_allowed(subtests: pytest.Subtests) -> None:
    for pattern, url in ALLOWED:
        with subtests.test(pattern=pattern, url=url):
            assert Endpoints(["other.example", pattern]).allow(url)


def test_refused(subtests: pytest.Subtests) -> None:
    for pattern, url in REFUSED:
        with subtests.test(pattern=pattern, url=url):
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


# ── public addresses only ────────────────────────────────────────────────────────────────────────────────────────────────


PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]

NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.1.2.3",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.9",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:a9fe:a9fe",
    "::ffff:0:127.0.0.1",
    "::ffff:224.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%lo",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]

NO_ADDRESSES = ["", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "127.0.0.1.", "8.8.8.8 ", "dns.example", "8.8.8", "1::2::3"]


def url_of(address: str) -> str:
    return f"http://[{address}]:9000/" if ":" in address else f"http://{address}:9000/"


def test_a_public_address_is_open(subtests: pytest.Subtests) -> None:
    for address in PUBLIC:
        with subtests.test(address=address):
            endpoints = Endpoints(public_only=True)
            assert endpoints.may_connect(address, 9000)
            assert endpoints.allow(url_of(address))


def test_another_address_is_open_only_if_it_is_named_or_there_are_no_tokens(subtests: pytest.Subtests) -> None:
    for address in NOT_PUBLIC:
        with subtests.test(address=address):
            url = url_of(address)
            for patterns in (["*"], ["*:9000"], ["*", "**", "*.*", "*:*"], ["*", "other.example", "*.example.com"]):
                endpoints = Endpoints(patterns, public_only=True)
                assert not endpoints.may_connect(address, 9000)
                assert not endpoints.allow(url)
            assert Endpoints().allow(url)
            assert Endpoints().may_connect(address, 9000)
            if "%" not in address:
                host = f"[{address}]" if ":" in address else address
                for pattern in (host, f"{host}:9000", f"{host}:*"):
                    assert Endpoints(["*", pattern], public_only=True).allow(url)
                    assert Endpoints(["*", pattern], public_only=True).may_connect(address, 9000)
                assert not Endpoints(["*", f"{host}:9001"], public_only=True).allow(url)


def test_what_is_no_address_is_never_connected_to(subtests: pytest.Subtests) -> None:
    for text in NO_ADDRESSES:
        with subtests.test(text=text):
            assert not Endpoints(["*", "2*", "*.1", "0*", "*.example", "*8*"], public_only=True).may_connect(text, 80)


def test_what_is_known_to_lead_inside_is_refused_at_once(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "localhost",
        "LocalHost",
        "localhost.",
        "a.localhost",
        "127.0.0.1.",
        "127.1",
        "0x7f.1",
        "0X7F000001",
        "0x",
        "2130706433",
        "017700000001",
        "0177.0.0.1",
        "127.0.0.0x1",
        "[::FFFF:127.0.0.1]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:7f00:1]",
        "[fe80::1%25eth0]",
    ]
    for host in rows:
        with subtests.test(host=host):
            assert not Endpoints(public_only=True).allow(f"http://{host}:9000/x")
            assert not Endpoints(public_only=True).trusts(f"http://{host}:9000/x")


NAMED = [
    ("hooks.internal", "http://hooks.internal/", True),
    ("hooks.internal:80", "http://hooks.internal/", True),
    ("hooks.internal:81", "http://hooks.internal/", False),
    ("*.internal", "http://a.b.internal/", True),
    ("*.internal:*", "http://a.b.internal/", True),
    ("localhost", "http://localhost:9000/", True),
    ("localhost:9000", "http://localhost:9000/", True),
    ("localhost:9000", "http://localhost:9001/", False),
    ("other.internal", "http://hooks.internal/", False),
    ("*", "http://hooks.internal/", False),
    ("*:80", "http://hooks.internal/", False),
    ("*.*", "http://hooks.internal/", False),
    # The end of a name is its owner's: a pattern without one means addresses.
    ("10.*", "http://10.evil.example/", False),
    ("hooks.*", "http://hooks.evil.example/", False),
    ("hooks*", "http://hooks.evil.example/", False),
    ("*.1", "http://0x7f.1/", False),
    ("*.internal", "http://evil.example\\.internal/", False),
]


def test_which_names_may_lead_anywhere(subtests: pytest.Subtests) -> None:
    for pattern, url, is_trusted in NAMED:
        with subtests.test(pattern=pattern, url=url):
            assert Endpoints(["*", pattern], public_only=True).trusts(url) is is_trusted
            assert Endpoints(["*", pattern]).trusts(url)


def test_a_pattern_of_addresses_opens_them_for_every_name() -> None:
    endpoints = Endpoints(["*", "10.*:9000"], public_only=True)
    assert endpoints.allow("http://10.1.2.3:9000/")
    assert endpoints.may_connect("10.1.2.3", 9000)
    assert not endpoints.may_connect("10.1.2.3", 9001)
    assert not endpoints.may_connect("11.1.2.3.4", 9000)
    assert not endpoints.may_connect("127.0.0.1", 9000)


def test_a_refusal_in_public_does_not_list_the_hosts_inside() -> None:
    subscription = messages.Subscription()
    subscription.push_config.push_endpoint = "http://127.0.0.1/x"

    with pytest.raises(InvalidArgument) as refused:
        Endpoints(["*", "vault.internal"], public_only=True).check(subscription)

    assert "127.0.0.1" in str(refused.value)
    assert "vault" not in f"{refused.value} {refused.value.hint}"
