"""Target: what a test's own behaviour raises is not lost, and requests that were answered at the same time are recognised."""

from __future__ import annotations

import asyncio
import threading
import urllib.request

import pytest

from penstock.testing.target import Behaviour, Connection, Request, Target, respond

pytestmark = pytest.mark.server


def post(url: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, data=b"{}"), timeout=30):
        pass


def test_stop_raises_what_a_behaviour_raised_once() -> None:
    def choose(request: Request) -> Behaviour:
        raise AssertionError(f"unexpected request to {request.path}")

    async def answer(request: Request, connection: Connection) -> None:
        raise ValueError("in a coroutine")

    for behaviour, error, text in (
        (choose, AssertionError, "unexpected request to /x"),
        (Behaviour(answer), ValueError, "in a coroutine"),
    ):
        target = Target(behaviour).start()
        with pytest.raises(OSError):  # noqa: PT011  # reset or closed, as the system likes
            post(f"{target.url}/x")
        with pytest.raises(error, match=text):
            target.stop()
        target.stop()


def test_an_error_of_a_behaviour_does_not_replace_the_error_in_the_body() -> None:
    def choose(_: Request) -> Behaviour:
        raise AssertionError("unexpected")

    with pytest.raises(OSError), Target(choose) as target:  # noqa: PT011  # as above
        post(target.url)


def test_requests_that_are_answered_at_the_same_time_overlap() -> None:
    released = threading.Event()

    async def answer(request: Request, connection: Connection) -> None:
        if request.path == "/slow":
            await asyncio.to_thread(released.wait, 30)
        respond().answer(request, connection)

    with Target(Behaviour(answer)) as target:
        slow = threading.Thread(target=post, args=(f"{target.url}/slow",))
        slow.start()
        target.wait_for(1)
        post(f"{target.url}/quick")
        first, second = target.requests
        while_unanswered = first.overlaps(second), second.overlaps(first)
        released.set()
        slow.join()
        post(f"{target.url}/quick")
        third = target.requests[2]

    assert while_unanswered == (True, True)
    assert (first.overlaps(second), second.overlaps(first)) == (True, True)
    assert (first.overlaps(third), third.overlaps(first), second.overlaps(third)) == (False, False, False)
    assert target.peak == 2
