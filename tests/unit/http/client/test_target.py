"""Targets come from messages, so from anybody: what is called is exactly what was written, or nothing."""

from ipaddress import ip_address

import pytest

from penstock.errors import InvalidArgument
from penstock.http.client.target import MAX_LENGTH, parse_target

MAPPED = str(ip_address("::ffff:10.0.0.1"))
"""The spelling depends on Python: `::ffff:a00:1` up to 3.12, `::ffff:10.0.0.1` from 3.13 on."""

GOOD = [
    # url, origin, authority, path
    ("http://hooks.example/orders", "http://hooks.example:80", "hooks.example", "/orders"),
    ("https://hooks.example/orders", "https://hooks.example:443", "hooks.example", "/orders"),
    ("https://hooks.example", "https://hooks.example:443", "hooks.example", "/"),
    ("HTTPS://Hooks.EXAMPLE/Orders", "https://hooks.example:443", "hooks.example", "/Orders"),
    ("https://hooks.example:443/a", "https://hooks.example:443", "hooks.example", "/a"),
    ("http://hooks.example:443/a", "http://hooks.example:443", "hooks.example:443", "/a"),
    ("https://hooks.example:8443/a", "https://hooks.example:8443", "hooks.example:8443", "/a"),
    ("https://hooks.example:65535/a", "https://hooks.example:65535", "hooks.example:65535", "/a"),
    ("https://hooks.example./a", "https://hooks.example:443", "hooks.example", "/a"),
    ("https://hooks.example?a=b", "https://hooks.example:443", "hooks.example", "/?a=b"),
    ("https://hooks.example/a?b=c&d=%20e?f/g", "https://hooks.example:443", "hooks.example", "/a?b=c&d=%20e?f/g"),
    ("https://hooks.example/a?", "https://hooks.example:443", "hooks.example", "/a"),
    ("https://hooks.example//a/../b", "https://hooks.example:443", "hooks.example", "//a/../b"),
    ("https://hooks.example/a@b:c", "https://hooks.example:443", "hooks.example", "/a@b:c"),
    ("https://hooks.example/a%0d%0ab", "https://hooks.example:443", "hooks.example", "/a%0d%0ab"),
    ("https://hooks.example/ü?ß={}|\\", "https://hooks.example:443", "hooks.example", "/%C3%BC?%C3%9F=%7B%7D%7C%5C"),
    ("https://bücher.example/a", "https://xn--bcher-kva.example:443", "xn--bcher-kva.example", "/a"),
    ("https://hooks\uff0eexample/a", "https://hooks.example:443", "hooks.example", "/a"),
    ("http://a_b.internal-1/a", "http://a_b.internal-1:80", "a_b.internal-1", "/a"),
    ("http://10.0.0.1:8080/a", "http://10.0.0.1:8080", "10.0.0.1:8080", "/a"),
    ("http://[::1]/a", "http://[::1]:80", "[::1]", "/a"),
    ("http://[0:0:0:0:0:0:0:1]:8080/a", "http://[::1]:8080", "[::1]:8080", "/a"),
    ("http://[::ffff:10.0.0.1]/a", f"http://[{MAPPED}]:80", f"[{MAPPED}]", "/a"),
]

BAD = [
    "",
    " ",
    "hooks.example",
    "//hooks.example/",
    "/orders",
    "hooks.example:80/",
    "ftp://hooks.example/",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "gopher://hooks.example/",
    "unix:///run/docker.sock",
    "httpx://hooks.example/",
    "http+unix://hooks.example/",
    "http:hooks.example",
    "http:/hooks.example",
    "http:///hooks.example",
    "http:\\\\hooks.example",
    "http://",
    "http://:80/",
    "http://?a",
    "http://.",
    "http://..",
    " http://hooks.example/",
    "http://hooks.example/ ",
    "http://hooks.example /",
    "http://hooks.example/a b",
    "http://hooks.example/a\tb",
    "http://hooks.example/a\r\nX-Evil: 1",
    "http://hooks.example\r\nX-Evil: 1/",
    "http://hooks.example/a\nb",
    "http://hooks.example/a\x00b",
    "http://hooks.example/a\x7fb",
    "http://hooks.example/a\x85b",
    "http://hooks.example/a\u2028b",
    "ht\ntp://hooks.example/",
    "http://hooks.example/#",
    "http://hooks.example/a#b",
    "http://user@hooks.example/",
    "http://user:secret@hooks.example/",
    "http://@hooks.example/",
    "http://hooks.example@evil.example/",
    "http://hooks.example:80@evil.example/",
    "http://hooks.example\\@evil.example/",
    "http://hooks.example\\evil/",
    "http://hooks.example:/",
    "http://hooks.example:0/",
    "http://hooks.example:65536/",
    "http://hooks.example:999999/",
    "http://hooks.example:-1/",
    "http://hooks.example:+1/",
    "http://hooks.example:8_0/",
    "http://hooks.example:80:80/",
    "http://hooks.example:http/",
    "http://hooks.example:\u0668\u0660/",
    "http://hooks..example/",
    "http://.hooks.example/",
    "http://-hooks.example/",
    "http://hooks-.example/",
    "http://ho%6fks.example/",
    "http://hooks,example/",
    "http://hooks*example/",
    "http://hooks!example/",
    'http://hooks"example/',
    "http://hooks<example/",
    f"http://{'a' * 64}.example/",
    f"http://{'.'.join(['a' * 60] * 5)}/",
    "http://\ud800.example/",
    "http://hooks.example/\ud800",
    "http://\u200b/",
    "http://ho\u2100ks.example/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0177.0.0.1/",
    "http://127.0.0.01/",
    "http://1.2.3/",
    "http://1.2.3.4.5/",
    "http://256.1.1.1/",
    "http://example.0x/",
    "http://[::1/",
    "http://::1/",
    "http://[]/",
    "http://[1.2.3.4]/",
    "http://[::1]x/",
    "http://x[::1]/",
    "http://[[::1]]/",
    "http://[::1]:/",
    "http://[::1]:x/",
    "http://[::g]/",
    "http://[v1.a]/",
    "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/",
    f"http://hooks.example/{'a' * MAX_LENGTH}",
]


def test_a_url_that_can_be_called(subtests: pytest.Subtests) -> None:
    for url, origin, authority, path in GOOD:
        with subtests.test(url=url):
            found = parse_target(url)

            assert (found.origin, found.authority, found.path) == (origin, authority, path)
            assert found.is_secure is origin.startswith("https:")
            assert found.head.startswith(f"POST {path} HTTP/1.1\r\nHost: {authority}\r\n".encode())
            assert found.head.endswith(b"\r\nContent-Length: ")
            assert found.head.count(b"\r\n") == found.head.count(b"\n") == found.head.count(b"\r") == 5, "no URL adds a line"
            assert found.head.split(b"\r\n")[0].count(b" ") == 2
            assert found.head.isascii()


def test_a_url_that_cannot_be_called_is_refused(subtests: pytest.Subtests) -> None:
    for url in BAD:
        with subtests.test(ascii(url)[:50]):
            with pytest.raises(InvalidArgument, match="target ") as caught:
                parse_target(url)

            assert caught.value.hint is not None


@pytest.mark.parametrize(
    "url",
    ["https://hooks.example:x/?token=secret", "https://user:secret@hooks.example/", "https://h:x@y:secret/", "http://h/#secret"],
)
def test_an_error_shows_no_secret(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_target(url)

    assert "secret" not in f"{caught.value} {caught.value.hint}"


def test_an_error_of_an_endless_url_is_short() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_target("http://" + "a" * 1_000_000)

    assert len(str(caught.value)) < 200
