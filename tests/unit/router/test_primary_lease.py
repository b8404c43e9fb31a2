"""A router's hold on the lock: never two at the same instant, whatever is lost or late, by a model of the server."""

import heapq
from itertools import count
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.durations import SECOND
from penstock.errors import InvalidArgument
from penstock.router.core.primary_lease import Lease

TTL, MARGIN, RENEW, RETRY = 30 * SECOND, 5 * SECOND, 10 * SECOND, 2 * SECOND


def a_lease(margin: int = MARGIN) -> Lease:
    return Lease(ttl=TTL, margin=margin, renew_every=RENEW, retry_every=RETRY)


def test_the_lock_is_ours_from_the_moment_of_asking_until_a_margin_before_the_ttl_ends() -> None:
    lease = a_lease()
    lease.acquired(sent_at=100 * SECOND, now=103 * SECOND)

    assert lease.is_held(103 * SECOND)
    assert lease.next_at == 110 * SECOND
    assert lease.is_held(125 * SECOND - 1)
    assert not lease.is_held(125 * SECOND)


def test_each_renewal_counts_from_when_it_was_sent() -> None:
    lease = a_lease()
    lease.acquired(0, 0)
    lease.renewed(sent_at=10 * SECOND)

    assert lease.left(30 * SECOND) == 5 * SECOND
    assert not lease.is_held(35 * SECOND)


def test_a_refusal_ends_it_at_once_and_silence_does_not() -> None:
    lease = a_lease()
    lease.acquired(0, 0)
    lease.unanswered(13 * SECOND)
    assert lease.is_held(13 * SECOND)
    assert lease.next_at == 15 * SECOND

    lease.refused(15 * SECOND)
    assert not lease.is_held(15 * SECOND)
    assert lease.next_at == 17 * SECOND


def test_of_a_server_that_has_just_started_it_is_renewed_but_not_acted_on() -> None:
    lease = a_lease()
    lease.acquired(0, 0, uptime=4 * SECOND)

    assert lease.is_ours(0)
    assert not lease.is_held(0)
    assert lease.wake_at(0) == 10 * SECOND
    lease.renewed(10 * SECOND)
    lease.renewed(20 * SECOND)
    assert lease.wake_at(20 * SECOND) == 26 * SECOND
    assert not lease.is_held(26 * SECOND - 1)
    assert lease.is_held(26 * SECOND)


def test_it_wakes_when_there_is_something_to_do() -> None:
    lease = a_lease()
    assert lease.wake_at(5) == 0

    lease.acquired(0, 0)
    assert lease.wake_at(0) == 10 * SECOND
    lease.unanswered(24 * SECOND)
    assert lease.wake_at(24 * SECOND) == 25 * SECOND
    assert lease.wake_at(25 * SECOND) == 26 * SECOND


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"margin": 0}, "margin"),
        ({"margin": TTL}, "margin"),
        ({"renew_every": 25 * SECOND}, "renew_every"),
        ({"renew_every": 0}, "renew_every"),
        ({"retry_every": 0}, "retry_every"),
    ],
)
def test_times_that_cannot_work_are_refused(change: dict[str, int], name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        Lease(**{"ttl": TTL, "margin": MARGIN, "renew_every": RENEW, "retry_every": RETRY} | change)


class Server:
    """What Redis does with the lock."""

    def __init__(self) -> None:
        self.holder: int | None = None
        self.expires = 0
        self.started = -10 * TTL

    def ask(self, who: int, is_renewal: bool, now: int) -> bool:
        if now >= self.expires:
            self.holder = None
        if self.holder != who and (is_renewal or self.holder is not None):
            return False
        self.holder, self.expires = who, now + TTL
        return True

    def uptime(self, now: int) -> int:
        return (now - self.started) // SECOND * SECOND


Fate = Literal["answered", "request lost", "answer lost"]
CALL_TIMEOUT = 3 * SECOND

# How long a request is on its way there and back, sometimes longer than its sender waits, and what becomes of it.
delays = st.sampled_from([0, 1000, SECOND // 2, SECOND, 2 * SECOND, 4 * SECOND])
trips = st.tuples(delays, delays, st.sampled_from(["answered", "answered", "request lost", "answer lost"]))
incidents = st.lists(
    st.tuples(st.integers(0, 300 * SECOND), st.sampled_from(["restart", "hang", "cut off", "cut off", "release"])), max_size=8
)


class World:
    """Several routers, each as its shell drives it, and one server; time goes from event to event."""

    def __init__(self, routers: int, trips: list[tuple[int, int, Fate]], incidents: list[tuple[int, str]]) -> None:
        self.leases = [a_lease(margin=1) for _ in range(routers)]  # the margin is for clocks and loops; here they are exact
        self.outstanding: list[list[bool]] = [[] for _ in range(routers)]
        self.server = Server()
        self.hung_until = 0
        self.cut_off_until = [0] * routers
        self.trips = trips
        self.asked = 0
        self.now = 0
        self._numbers = count()
        self._events: list[tuple[int, int, object]] = []
        self.overlaps: list[tuple[int, list[int]]] = []
        for who in range(routers):
            self.at(who * 17, lambda who=who: self.turn(who))
        for when, what in incidents:
            self.at(when, lambda what=what: self.happen(what))

    def at(self, when: int, act: object) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), act))

    def run(self, until: int) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()  # type: ignore[operator]  # events are the closures above and below
            held = [who for who, lease in enumerate(self.leases) if lease.is_held(self.now)]
            if len(held) > 1:
                self.overlaps.append((self.now, held))

    def turn(self, who: int) -> None:
        """The shell's loop: ask when it is time, otherwise sleep until it is."""
        lease, now = self.leases[who], self.now
        if now < lease.next_at:
            self.at(max(lease.wake_at(now), now + 1), lambda: self.turn(who))
            return
        there, back, fate = self.trips[self.asked % len(self.trips)]
        self.asked += 1
        is_renewal = lease.is_ours(now)
        patience = min(CALL_TIMEOUT, lease.left(now)) if is_renewal else CALL_TIMEOUT
        done: list[bool] = []  # whether the sender heard of it; empty while it waits
        self.outstanding[who] = done
        if fate != "request lost" and now >= self.cut_off_until[who]:
            self.at(max(now + there, self.hung_until), lambda: self.arrive(who, is_renewal, now, back, fate, done))
        self.at(now + patience, lambda: self.give_up(who, done))

    def arrive(self, who: int, is_renewal: bool, sent_at: int, back: int, fate: Fate, done: list[bool]) -> None:
        if self.now < self.hung_until:
            self.at(self.hung_until, lambda: self.arrive(who, is_renewal, sent_at, back, fate, done))
            return
        is_granted, uptime = self.server.ask(who, is_renewal, self.now), self.server.uptime(self.now)
        if fate == "answered":
            self.at(self.now + back, lambda: self.hear(who, is_renewal, sent_at, is_granted, uptime, done))

    def hear(self, who: int, is_renewal: bool, sent_at: int, is_granted: bool, uptime: int, done: list[bool]) -> None:
        if done:
            return  # too late: the connection is closed
        done.append(True)
        lease = self.leases[who]
        if not is_granted:
            lease.refused(self.now)
        elif is_renewal:
            lease.renewed(sent_at)
        else:
            lease.acquired(sent_at, self.now, uptime)
        self.turn(who)

    def give_up(self, who: int, done: list[bool]) -> None:
        if not done:
            done.append(False)
            self.leases[who].unanswered(self.now)
            self.turn(who)

    def happen(self, what: str) -> None:
        if what == "restart":
            self.server.holder, self.server.started = None, self.now
        elif what == "hang":
            self.hung_until = max(self.hung_until, self.now + 20 * SECOND)
        elif what == "cut off" and self.server.holder is not None:
            self.cut_off_until[self.server.holder] = self.now + 40 * SECOND
        elif self.server.holder is not None and self.leases[self.server.holder].is_held(self.now):
            # A graceful stop: the holder acts no more, hears no answer any more, then deletes the lock.
            who, self.server.holder = self.server.holder, None
            self.leases[who].refused(self.now)
            if not self.outstanding[who]:
                self.outstanding[who].append(False)
                self.turn(who)


@settings(max_examples=max(200, settings().max_examples))  # each is quick, and few of them come near the edge
@given(st.integers(2, 4), st.lists(trips, min_size=1, max_size=30), incidents)
def test_no_two_routers_hold_the_lock_at_the_same_instant(
    routers: int, trips: list[tuple[int, int, Fate]], incidents: list[tuple[int, str]]
) -> None:
    world = World(routers, trips, incidents)
    world.run(until=400 * SECOND)

    assert world.overlaps == []


def test_with_a_server_that_answers_somebody_holds_the_lock_nearly_always() -> None:
    world = World(3, [(1000, 1000, "answered")], [(100 * SECOND, "release"), (200 * SECOND, "restart")])
    world.run(until=99 * SECOND)
    assert [lease.is_held(99 * SECOND) for lease in world.leases] == [True, False, False]
    world.run(until=104 * SECOND)
    assert sum(lease.is_held(104 * SECOND) for lease in world.leases) == 1, "a release is noticed within a try"
    world.run(until=240 * SECOND)
    assert sum(lease.is_held(240 * SECOND) for lease in world.leases) == 1, "40 s after the server lost the lock"
    assert world.overlaps == []
