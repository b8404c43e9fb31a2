"""Headers of HTTP/2 requests as a decoder of another maker reads them."""

from __future__ import annotations

from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from penstock.http.client.http2 import HeaderEncoder

NAMES = st.sampled_from([b":method", b":scheme", b":path", b":authority", b"authorization", b"content-length", b"x-one"])
VALUES = st.binary(max_size=300) | st.sampled_from([b"POST", b"https", b"", b"x" * 126, b"x" * 127, b"x" * 128, b"x" * 20_000])
HEADERS = st.lists(st.tuples(NAMES | st.binary(min_size=1, max_size=200), VALUES), min_size=1, max_size=8)


@given(st.lists(HEADERS, min_size=1, max_size=4))
def test_headers_are_read_as_they_were_written_and_nothing_is_remembered(requests: list[list[tuple[bytes, bytes]]]) -> None:
    encoder, decoder = HeaderEncoder(), Decoder(max_header_list_size=1 << 20)
    for headers in [*requests, *requests]:
        assert [tuple(header) for header in decoder.decode(encoder.encode(headers), raw=True)] == headers
    assert len(decoder.header_table.dynamic_entries) == 0


def test_a_target_that_changes_the_size_of_its_table_hears_that_it_is_empty() -> None:
    encoder, decoder = HeaderEncoder(), Decoder()
    first = encoder.encode([(b":method", b"POST")])
    decoder.decode(first)
    decoder.max_allowed_table_size = 100  # it refuses headers now that do not begin with a size within that
    encoder.header_table_size = 100
    (header,) = decoder.decode(encoder.encode([(b":method", b"POST")]), raw=True)
    assert tuple(header) == (b":method", b"POST")
    assert encoder.encode([(b":method", b"POST")]) == first


def test_a_token_is_marked_as_one_that_no_table_may_keep() -> None:
    (header,) = Decoder().decode(HeaderEncoder().encode([(b"authorization", b"Bearer t")]))
    assert not header.indexable
