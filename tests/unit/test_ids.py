"""Ids name exactly one message or delivery: what differs in a letter or in spaces is no id."""

from __future__ import annotations

import pytest

from penstock.ids import MAX_OFFSET, MAX_STREAMS, ack_id, message_id, message_ids, parse_ack_id, parse_message_id

AT = 1_763_000_000_123_456


def test_a_message_id_is_time_stream_and_offset_in_hexadecimal(subtests: pytest.Subtests) -> None:
    for at, stream, offset in ((0, 1, 0), (AT, 7, 10**6), ((1 << 56) - 1, MAX_STREAMS - 1, MAX_OFFSET - 1)):
        with subtests.test(at=at):
            made = message_id(at, stream, offset)
            assert made == f"{at:014x}{stream:06x}{offset:010x}"
            assert parse_message_id(made) == (at, stream, offset)
    assert message_ids(AT, 7, range(254, 258)) == [message_id(AT, 7, offset) for offset in range(254, 258)]


def test_what_is_not_a_message_id_names_nothing(subtests: pytest.Subtests) -> None:
    made = message_id(AT, 0xABCDEF, 0xAB)
    wrong = [made.upper(), made[:-1], f"{made}0", f"{made[:-1]} ", f" {made[1:]}", f"{made[:-2]}  ", f"{made[:-1]}g", "ä" * 30]
    for text in [*wrong, "", None, 7, made.encode(), f"+{made[1:]}", f"{made[:5]}_{made[6:]}", "٣" * 30]:
        with subtests.test(text=text):
            assert parse_message_id(text) is None


def test_an_ack_id_is_read_as_it_was_made_and_nothing_else_is(subtests: pytest.Subtests) -> None:
    made = ack_id(0xABCD, 0xFACE, 3, 0xBEEF)
    assert made == f"{0xABCD:06x}{0xBEEF:08x}{3:08x}{0xFACE:010x}"
    assert parse_ack_id(made) == (0xABCD, 0xFACE, 3, 0xBEEF)
    for text in (made.upper(), made[:-1], f"{made[:-1]} ", f"{made[:-1]}g", f"g{made[1:]}", None, message_id(AT, 1, 1)):
        with subtests.test(text=text):
            assert parse_ack_id(text) is None
