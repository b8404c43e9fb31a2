"""URIs of ActiveMQ queues."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidArgument
from penstock.router.sources.activemq import PREFETCH, Address, parse_address
from penstock.router.sources.stomp import Login


def test_a_uri_says_where_the_queue_is(subtests: pytest.Subtests) -> None:
    for uri, wanted in [
        ("activemq://mq:61613/orders", Address((("mq", 61613),), "orders", Login())),
        ("activemq://mq/orders", Address((("mq", 61613),), "orders", Login())),
        ("activemq://mq/orders?tls=true", Address((("mq", 61614),), "orders", Login(), has_tls=True)),
        ("activemq://mq:5/o?tls=true&ca=a.pem", Address((("mq", 5),), "o", Login(), has_tls=True, ca="a.pem")),
        ("activemq://me:a%40b%3Ac@mq/o", Address((("mq", 61613),), "o", Login("me", "a@b:c"))),
        ("activemq://mq1:1,mq2,[::1]:3/a.b%2Fc", Address((("mq1", 1), ("mq2", 61613), ("::1", 3)), "a.b/c", Login())),
        ("activemq://mq/o?prefetch=7&exclusive=true", Address((("mq", 61613),), "o", Login(), 7, is_exclusive=True)),
        ("ACTIVEMQ://mq/o?exclusive=false", Address((("mq", 61613),), "o", Login(), PREFETCH)),
    ]:
        with subtests.test(uri=uri):
            assert parse_address(uri) == wanted


def test_a_malformed_uri_is_refused(subtests: pytest.Subtests) -> None:
    for uri in [
        "activemq:",
        "activemq://",
        "activemq:///orders",
        "activemq://mq",
        "activemq://mq/",
        "activemq://mq/a,b",
        "activemq://mq/a.*",
        "activemq://mq/a.%3E",
        "activemq://mq/a%0Ab",
        "activemq://mq/a%3Fconsumer.exclusive=true",
        "activemq://mq:0/o",
        "activemq://mq:65536/o",
        "activemq://mq:port/o",
        "activemq://mq,/o",
        "activemq://a b/o",
        "activemq://[::1/o",
        "activemq://me:hush%0A@mq/o",
        "activemq://mq/o#part",
        "activemq://mq/o?prefetch=0",
        "activemq://mq/o?prefetch=-1",
        "activemq://mq/o?prefetch=100001",
        "activemq://mq/o?prefetch=",
        "activemq://mq/o?exclusive=yes",
        "activemq://mq/o?tls=1",
        "activemq://mq/o?color=red",
        "activemq://mq/o?ca=file",
        "activemq://mq/o?prefetch",
        "stomp://mq/o",
    ]:
        with subtests.test(uri=uri), pytest.raises(InvalidArgument):
            parse_address(uri)


def test_the_password_is_never_shown(subtests: pytest.Subtests) -> None:
    for uri in ["activemq://me:hush@mq:99999/o", "activemq://me:hush@/o", "activemq://me:hush@mq/a,b", "activemq://me:hush@[/o"]:
        with subtests.test(uri=uri):
            with pytest.raises(InvalidArgument) as caught:
                parse_address(uri)

            assert "hush" not in f"{caught.value} {caught.value.hint}"
            assert "hush" not in repr(parse_address("activemq://me:hush@mq/o"))
