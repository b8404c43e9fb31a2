"""Every way in which the hub ends a connection. That the page has them all is tested in tests/docs/test_hub_protocol.py."""

from collections import Counter

from penstock.hub.core import close_codes
from penstock.hub.core.close_codes import CLOSES, Close


def test_the_list_has_every_close_there_is_once() -> None:
    defined = [value for value in vars(close_codes).values() if isinstance(value, Close)]

    assert Counter(CLOSES) == Counter(defined)


def test_a_code_means_one_thing_but_for_the_end_that_is_no_failure() -> None:
    assert {code: count for code, count in Counter(close.code for close in CLOSES).items() if count > 1} == {1000: 2}


def test_a_reason_means_one_thing() -> None:
    assert set(Counter(close.reason for close in CLOSES).values()) == {1}


def test_every_close_fits_in_a_close_frame_and_says_what_it_means() -> None:
    for close in CLOSES:
        assert close.code in {1000, 1001, 1002, 1007, 1009, 1011} or 4000 <= close.code <= 4999
        assert len(close.reason.encode()) <= 123  # RFC 6455 5.5: 125 bytes, two of them the code
        assert close.meaning
