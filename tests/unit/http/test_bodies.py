"""Request bodies: the memory that all of them share, and those that are compressed."""

import asyncio
import gzip
import zlib
from itertools import chain

import pytest
from aiohttp import web

from penstock.http.bodies import FREE_BYTES, MAX_MEMBERS, MAX_WAITING, STEP_BYTES, BodyBudget, BodyShare, Unpacker
from penstock.http.limits import HttpLimits
from penstock.http.refusal import Refusal
from tests.integration.http_client import scenario

LIMITS = HttpLimits(max_bodies_bytes=300, max_request_bytes=100, min_body_rate=10, body_stall_seconds=5.0)

TEXT = b"a message that is sent many times; " * 10_000
RAW = zlib.compressobj(wbits=-15)
PACKED = [
    ("gzip", gzip.compress(TEXT), TEXT),
    ("gzip", gzip.compress(TEXT) + gzip.compress(b"another member"), TEXT + b"another member"),
    ("gzip", gzip.compress(bytes(2 * STEP_BYTES)), bytes(2 * STEP_BYTES)),
    ("gzip", b"", b""),
    ("deflate", zlib.compress(TEXT), TEXT),
    ("deflate", RAW.compress(TEXT) + RAW.flush(), TEXT),
]


def share_of(budget: BodyBudget) -> BodyShare:
    return BodyShare(budget, now=0.0)


async def grow(share: BodyShare, counted: int) -> None:
    await share.grow_to(FREE_BYTES + counted)


async def waiting(share: BodyShare, counted: int) -> asyncio.Task[None]:
    """A body that asks for room and does not get it yet."""
    task = asyncio.create_task(grow(share, counted))
    await asyncio.sleep(0)
    assert share.is_waiting
    return task


@scenario
async def test_the_beginning_of_a_body_is_free_and_the_rest_is_counted_until_it_is_released() -> None:
    budget = BodyBudget(LIMITS)
    share = share_of(budget)
    await share.grow_to(FREE_BYTES)
    assert budget.held == 0
    await share.grow_to(FREE_BYTES + 60)
    await share.grow_to(FREE_BYTES + 80)
    assert budget.held == 80
    share.release()
    share.release()
    assert budget.held == 0


@scenario
async def test_without_room_one_body_is_completed_and_the_others_wait_in_the_order_they_came() -> None:
    budget = BodyBudget(LIMITS)
    first, second, third, fourth = (share_of(budget) for _ in range(4))
    await grow(first, 100)
    await grow(second, 100)
    await grow(third, 20)  # beyond what is shared, as the only one that may
    waits = [await waiting(fourth, 40), await waiting(second, 170)]
    await grow(third, 100)
    assert budget.held == LIMITS.max_bodies_bytes
    first.release()
    await waits[0]
    assert second.is_waiting, "40 bytes of the fourth and 170 of the second are more than the 200 that are shared"
    third.release()
    await waits[1]
    assert (budget.held, budget.is_short) == (210, False)


@scenario
async def test_a_body_larger_than_the_budget_passes() -> None:
    budget = BodyBudget(HttpLimits(max_bodies_bytes=10, max_request_bytes=100))
    await grow(share_of(budget), 50)


@scenario
async def test_a_body_that_waits_too_long_or_behind_too_many_is_refused_and_told_when_to_come_back() -> None:
    budget = BodyBudget(HttpLimits(max_bodies_bytes=10, max_request_bytes=10, body_wait_seconds=0.01))
    await grow(share_of(budget), 10)
    with pytest.raises(Refusal, match="too many large request bodies") as caught:
        await grow(share_of(budget), 1)
    assert (caught.value.status, caught.value.headers, caught.value.closes) == (503, {"Retry-After": "1"}, True)
    assert not budget.is_short

    budget = BodyBudget(HttpLimits(max_bodies_bytes=10, max_request_bytes=10))
    await grow(share_of(budget), 10)
    waits = [await waiting(share_of(budget), 1) for _ in range(MAX_WAITING)]
    with pytest.raises(Refusal):
        await grow(share_of(budget), 1)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert (budget.held, budget.is_short) == (10, False)


@scenario
async def test_a_body_that_hardly_grows_is_stalled_only_while_others_wait() -> None:
    budget = BodyBudget(LIMITS)
    still, brisk, other = (share_of(budget) for _ in range(3))
    await grow(still, 100)
    await grow(brisk, 50)
    assert not still.is_stalled(1.0)
    await grow(other, 100)
    assert not still.is_stalled(20.0), "nobody waits"
    late = share_of(budget)
    wait = await waiting(late, 60)
    assert not brisk.is_stalled(1.0)
    assert still.is_stalled(20.0)
    assert not late.is_stalled(20.0), "it is the server that keeps it waiting"
    still.release()
    await wait


def unpacked(coding: str, *pieces: bytes) -> list[bytes]:
    unpacker = Unpacker(coding)
    steps = [*chain.from_iterable(unpacker.steps(piece) for piece in pieces)]
    unpacker.finish()
    return steps


def test_a_body_is_unpacked_however_it_arrives_and_no_step_is_large(subtests: pytest.Subtests) -> None:
    for coding, packed, plain in PACKED:
        for size in (1, 1000, len(packed) or 1):
            with subtests.test(coding=coding, bytes=len(packed), pieces_of=size):
                steps = unpacked(coding, *(packed[at : at + size] for at in range(0, len(packed), size)))
                assert b"".join(steps) == plain
                assert max(map(len, steps), default=0) <= STEP_BYTES


def test_a_body_that_is_broken_cut_short_or_made_of_countless_parts_is_refused(subtests: pytest.Subtests) -> None:
    whole = gzip.compress(TEXT)
    for coding, packed in [
        ("gzip", b"oops"),
        ("gzip", whole[:-1]),
        ("gzip", whole + b"trailing"),
        ("gzip", gzip.compress(b"") * (MAX_MEMBERS + 1)),
        ("deflate", zlib.compress(TEXT)[:-5]),
        ("deflate", zlib.compress(TEXT) * 2),
    ]:
        with subtests.test(coding=coding, starts=packed[:10]), pytest.raises(web.RequestPayloadError):
            unpacked(coding, packed)


def test_an_unknown_encoding_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(Refusal, match="is 'br', expected gzip or deflate") as caught:
        Unpacker("br")
    assert (caught.value.status, caught.value.headers["Accept-Encoding"]) == (415, "gzip, deflate")
