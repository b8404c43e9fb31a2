"""A process pool: lanes of groups, a number of messages at a time, and a rate limit (specification 001, "Process Pools").

It decides and never waits: `take` gives what may be worked on now, and `next_due` says when to ask again if nothing else happens.
Groups without messages cost nothing but their entry, which goes after five idle minutes.

Two orders. `strict`: a message that failed stays here, first in its group, until its next attempt; nothing of the group overtakes
it. One with a long delay returns to its queue with all of its group, and the group waits for it. `batch`: what failed returns
to its queue, and with it the rest of its batch and group; within a group, urgent messages come first. Messages without a group
are in batch order also in a strict pool: nobody asked for their order, and one dead target must not stop them all.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from operator import itemgetter

from penstock.durations import FOREVER, SECOND
from penstock.errors import InvalidArgument
from penstock.router.core.group import BatchGroups, GroupLane, key_of
from penstock.router.core.message import DEFAULT_GROUP, RoutedMessage

MINUTE = 60 * SECOND
MAX_INSTANTS = 4_096
"""Of how many instants in a minute a rate limit keeps the permits apart."""


class RateLimit:
    """How often a pool may call, in calls per minute (specification 001, "Rate Limiting").

    At most `per_minute` permits in any 60 seconds (decision 70). It returns how long to wait, and never waits.
    """

    __slots__ = ("_granted", "_in_window", "_slot", "per_minute")

    def __init__(self, per_minute: int, before: RateLimit | None = None) -> None:
        """`before` is the limit that this one replaces: what was permitted by it counts."""
        if per_minute < 1:
            raise InvalidArgument.of("rate_per_minute", per_minute, "a whole number from 1 on", hint="leave it out for no limit")
        self.per_minute = per_minute
        self._granted: deque[list[int]] = deque() if before is None else before._granted
        """Instants with the number of permits of each, oldest first; those of the last minute."""
        self._in_window: int = 0 if before is None else before._in_window
        self._slot = 1 if per_minute <= MAX_INSTANTS else MINUTE // MAX_INSTANTS
        """Permits of this many microseconds are kept together, as if all were of the last of them: never more than asked."""

    def take(self, now: int) -> int:
        """Take a permit and return 0, or return the time until there is one."""
        granted = self._granted
        while granted and granted[0][0] <= now - MINUTE:
            self._in_window -= granted.popleft()[1]
        if self._in_window >= self.per_minute:
            return granted[0][0] + MINUTE - now
        at = now - now % self._slot + self._slot - 1
        if granted and granted[-1][0] >= at:
            granted[-1][1] += 1
        else:
            granted.append([at, 1])
        self._in_window += 1
        return 0

    def export(self, now: int, since: int = 0) -> list[tuple[int, int]]:
        """Permits of the last minute that were granted from `since` on: how long ago (microseconds), and how many.

        They are summed up by seconds, and none is called older than it is.
        """
        found: dict[int, int] = {}
        for at, count in self._granted:
            if at >= since and at > now - MINUTE:
                second = max(now - at, 0) // SECOND
                found[second] = found.get(second, 0) + count
        return [(second * SECOND, count) for second, count in found.items()]

    def add(self, permits: Iterable[tuple[int, int]], now: int) -> None:
        """Count permits that were granted elsewhere, as `export` gives them."""
        known = [*self._granted, *([now - age, count] for age, count in permits)]
        self._granted = deque(sorted((one for one in known if one[0] > now - MINUTE), key=itemgetter(0)))
        self._in_window = sum(count for _, count in self._granted)

    def give_back(self) -> None:
        if self._granted:
            self._in_window -= 1
            self._granted[-1][1] -= 1
            if not self._granted[-1][1]:
                self._granted.pop()


CAPACITY_FACTOR = 20
LEAST_CAPACITY = 50
DEFAULT_CONCURRENCY = 20
IDLE_AFTER = 300 * SECOND
GRACE = 60 * SECOND
"""How much longer than its delay a message is waited for that returned to its queue."""


class RetryDecision(Enum):
    """What the pool does with a message that is to be tried again."""

    HELD = "held"
    """It stays here until its time has come."""
    SENT_BACK = "sent_back"
    """It returns to its queue."""


class Pool:
    """The state of one pool."""

    __slots__ = (
        "_by_due",
        "_is_strict",
        "_limited",
        "_limited_until",
        "_number",
        "_regular",
        "_urgent",
        "active",
        "away",
        "batches",
        "capacity",
        "code",
        "concurrency",
        "held",
        "hold_limit",
        "is_draining",
        "is_paused",
        "lanes",
        "limit",
        "limited",
        "passed_over",
        "queued",
    )

    def __init__(
        self,
        code: str,
        concurrency: int = DEFAULT_CONCURRENCY,
        rate_per_minute: int | None = None,
        *,
        is_strict: bool = True,
        hold_limit: int = 60 * SECOND,
        capacity: int | None = None,
    ) -> None:
        """`capacity`: messages that may wait in it, if that does not follow from the concurrency."""
        if concurrency < 1:
            raise InvalidArgument.of("concurrency", concurrency, "a whole number from 1 on")
        self.code = code
        self.concurrency = concurrency
        self.capacity = capacity or capacity_of(concurrency)
        self.limit = RateLimit(rate_per_minute) if rate_per_minute else None
        self.hold_limit = hold_limit
        self.lanes: dict[str, GroupLane] = {}
        self.queued = 0
        """Messages that wait, those that are held among them."""
        self.active = 0
        self.held = 0
        """Those of them whose group waits for the next attempt of its first one."""
        self.away = 0
        """Groups that wait for messages which returned to their queue."""
        self.is_draining = False
        self.is_paused = False
        """An operator has stopped it: nothing is started."""
        self.batches = BatchGroups()
        self.limited = 0
        """Messages that had to wait for a permit of the rate limit, so far."""
        self._limited: RoutedMessage | None = None
        """The one that waits at present."""
        self._is_strict = is_strict
        self.passed_over: list[RoutedMessage] = []
        """What `take` found to be of a batch and group that has failed: the caller sends them back and clears the list."""
        self._regular: deque[GroupLane] = deque()
        self._urgent: deque[GroupLane] = deque()
        self._by_due: list[tuple[int, int, GroupLane]] = []
        self._number = 0
        self._limited_until = FOREVER

    # ── coming in ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def room(self) -> int:
        """How many messages it takes at present."""
        # What is held came from a worker, not through here: with that there may be more than its capacity.
        return 0 if self.is_draining else max(self.capacity - self.queued, 0)

    def is_awaited(self, item: RoutedMessage) -> bool:
        """Whether a message returned to its queue from here, and its group waits for it."""
        lane = self.lanes.get(item.pointer.group)
        return lane is not None and lane.is_awaited(item)

    def is_in_turn(self, item: RoutedMessage, now: int, coming: set[str]) -> bool:
        """Whether a message may come in, as far as the order of its group goes. `coming` is as for `GroupLane.is_in_turn`."""
        lane = self.lanes.get(item.pointer.group)
        if lane is None or not lane.away:
            return True
        is_in_turn = lane.is_in_turn(item, now, coming)
        self.away -= not lane.away
        return is_in_turn

    def must_wait(self, item: RoutedMessage) -> bool:
        """Whether the group of a message waits for its first one, and enough of the pool is taken by such groups."""
        lane = self.lanes.get(item.pointer.group)
        return lane is not None and lane.is_held and self.is_hold_limit_reached

    @property
    def is_hold_limit_reached(self) -> bool:
        """Whether half of the pool is taken by groups that have to wait: the other half is for those that can move."""
        return self.held >= max(self.capacity // 2, 1)

    def submit(self, item: RoutedMessage) -> bool:
        """Take a message in, last of its group; False when there is no room, or the pool is being drained."""
        if self.is_draining or self.queued >= self.capacity:
            return False
        pointer = item.pointer
        lane = self._lane(pointer.group)
        if lane.away:
            lane.came_back(item)
            self.away -= not lane.away
        self.queued += 1
        if not lane.is_strict:
            self.batches.add(item.batch, pointer.group)
            if pointer.is_urgent:
                if lane.urgent is None:
                    lane.urgent = deque()
                lane.urgent.append(item)
            else:
                lane.regular.append(item)
        else:
            lane.regular.append(item)
            if pointer.is_urgent:
                lane.urgents += 1
        if lane.is_held:
            self.held += 1
        elif not lane.is_busy and (not lane.is_ready or pointer.is_urgent):
            self._make_ready(lane, is_urgent=pointer.is_urgent)
        return True

    def submit_all(self, items: Sequence[RoutedMessage]) -> int:
        """Take messages in for which there is room; returns how many. As `submit` for each of them, which is slower."""
        if not self._is_strict or self.is_draining or self.queued + len(items) > self.capacity:
            return sum([self.submit(item) for item in items])
        lanes, regular, grouped = self.lanes, self._regular, len(items)
        for item in items:
            pointer = item.pointer
            group = pointer.group
            if group == DEFAULT_GROUP:
                self.submit(item)
                grouped -= 1
                continue
            lane = lanes.get(group)
            if lane is None:
                lane = lanes[group] = GroupLane(group)
            elif lane.away:
                lane.came_back(item)
                self.away -= not lane.away
            lane.regular.append(item)
            lane.urgents += pointer.is_urgent
            if lane.is_held:
                self.held += 1
            elif lane.is_busy:
                continue
            elif pointer.is_urgent:
                self._make_ready(lane, is_urgent=True)
            elif not lane.is_ready:
                lane.is_ready = True
                regular.append(lane)
        self.queued += grouped
        return len(items)

    def sent_back(self, item: RoutedMessage, until: int) -> None:
        """A message could not come in and returns to its queue: what comes after it in its group has to wait for it."""
        if self.is_strict(item.pointer.group):
            lane = self._lane(item.pointer.group)
            self.away += not lane.away
            lane.sent_back(item, until + GRACE)

    def awaited(self, now: int | None = None) -> dict[str, dict[str, int]]:
        """By group: which messages are waited for, and until when. With `now` also those that wait here and will return."""
        return {
            group: {**({} if now is None else dict.fromkeys(map(key_of, lane.regular), now + GRACE)), **(lane.away or {})}
            for group, lane in self.lanes.items()
            if lane.is_strict and (lane.away or (now is not None and lane.regular))
        }

    def wait_for(self, group: str, ahead: Mapping[str, int]) -> None:
        """Messages of a group are on their way that come before all others of it."""
        if not self.is_strict(group):
            return
        lane = self._lane(group)
        self.away += not lane.away
        lane.away = {**ahead, **(lane.away or {})}

    # ── being worked on ──────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, now: int) -> RoutedMessage | None:
        """The next message to work on; None when there is none, no worker is free, or it is too early.

        Each message taken must be given to `finish`.
        """
        if self._by_due and self._by_due[0][0] <= now:
            self._let_go(now)
        if self.active >= self.concurrency or self.is_paused:
            return None
        while True:
            waiting = self._urgent or self._regular
            if not waiting:
                self._limited_until = FOREVER  # what waited for a permit is gone
                return None
            lane = waiting[0]
            if not lane.is_ready:  # it stood in both rows, and came up in the other one
                waiting.popleft()
                continue
            if not lane.is_strict and self._pass_over(lane):
                continue
            if self.limit is not None:
                if wait := self.limit.take(now):
                    self._limited_until = now + wait
                    if (first := lane.first) is not self._limited:
                        self._limited = first
                        self.limited += 1
                    return None
                self._limited_until, self._limited = FOREVER, None
            waiting.popleft()
            item = lane.urgent.popleft() if lane.urgent else lane.regular.popleft()
            if lane.urgents and item.pointer.is_urgent:
                lane.urgents -= 1
            lane.is_ready = False
            lane.is_busy = True
            self.queued -= 1
            self.active += 1
            item.attempts += 1
            item.started_at = now
            return item

    def finish(self, item: RoutedMessage, now: int) -> None:
        """A message is settled: it is done with, whatever came of it, and is not redelivered from here."""
        lane = self._ended(item)
        if lane is None:
            return
        if not lane.regular and not lane.urgent:
            lane.idle_at = now
        elif lane.urgent or lane.urgents:
            self._make_ready(lane, is_urgent=True)
        else:
            lane.is_ready = True
            self._regular.append(lane)

    def retry(
        self, item: RoutedMessage, delay: int, now: int, *, was_called: bool = True
    ) -> tuple[RetryDecision, list[RoutedMessage]]:
        """A message failed and is to be tried again after a delay: what becomes of it, and what has to return to its queue.

        In strict order those that return go in this order: the message with all of its group, or, when it is held, what there is
        no room for behind it. In batch order it is the message alone, and what follows it is passed over when its turn comes;
        but not what has no group, if no call was made: a target that is not called must not hold up what is for others.
        """
        if not was_called and self.limit is not None:
            self.limit.give_back()
        group = item.pointer.group
        if not self.is_strict(group):
            if was_called or group != DEFAULT_GROUP:
                self.batches.fail(item.batch, group)
            self.finish(item, now)
            return RetryDecision.SENT_BACK, [item]
        lane = self._ended(item)
        if self.is_draining or lane is None:
            return RetryDecision.SENT_BACK, [item]
        if delay <= self.hold_limit and not self.is_hold_limit_reached:
            back = lane.cut(max(self.capacity // 2, 1) - self.held - 1)
            lane.regular.appendleft(item)
            lane.urgents += item.pointer.is_urgent
            self.queued += 1 - len(back)
            self.held += len(lane.regular)
            lane.is_held = True
            item.due = now + delay
            self._number += 1
            heapq.heappush(self._by_due, (item.due, self._number, lane))
            if back:
                self.away += not lane.away
                lane.sent_back_first(back, item.due + GRACE)
            return RetryDecision.HELD, back
        back = [item, *lane.clear()]
        self.queued -= len(back) - 1
        self.away += not lane.away
        lane.sent_back_first(back, now + delay + GRACE)
        lane.idle_at = now
        return RetryDecision.SENT_BACK, back

    def drop(self, item: RoutedMessage, now: int) -> bool:
        """Take a message out that waits; False when it does not wait here. What is behind it moves up."""
        lane = self.lanes.get(item.pointer.group)
        if lane is None or not lane.remove(item):
            return False
        self.queued -= 1
        self.held -= lane.is_held
        if lane.is_strict:
            lane.urgents -= item.pointer.is_urgent
        else:
            self.batches.done(item.batch, item.pointer.group)
        if item.due:
            item.due, lane.is_held = 0, False
            self.held -= len(lane.regular)
            self._by_due = [entry for entry in self._by_due if entry[2] is not lane]
            heapq.heapify(self._by_due)
        if lane.is_empty:
            lane.is_ready, lane.idle_at = False, now
        elif not (lane.is_ready or lane.is_busy or lane.is_held):
            self._make_ready(lane, is_urgent=bool(lane.urgents))
        return True

    def hurry(self, item: RoutedMessage, now: int) -> bool:
        """Let a message be tried now that is kept back until its next attempt; False when that does not keep it back."""
        lane = self.lanes.get(item.pointer.group)
        if lane is None or not lane.is_held or lane.regular[0] is not item:
            return False
        item.due = now
        self._by_due = [(now if entry[2] is lane else entry[0], *entry[1:]) for entry in self._by_due]
        heapq.heapify(self._by_due)
        return True

    @property
    def next_due(self) -> int:
        """When `take` may have something though nothing else has happened; FOREVER: not by itself."""
        if self.active >= self.concurrency or self.is_paused:
            return FOREVER
        return min(self._by_due[0][0] if self._by_due else FOREVER, self._limited_until)

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def update(self, concurrency: int, rate_per_minute: int | None) -> None:
        """Other limits, at once: beyond a smaller concurrency, what runs is finished and nothing new is started."""
        if concurrency < 1:
            raise InvalidArgument.of("concurrency", concurrency, "a whole number from 1 on")
        self.concurrency = concurrency
        self.capacity = capacity_of(concurrency)
        if rate_per_minute != (self.limit.per_minute if self.limit is not None else None):
            self.limit = RateLimit(rate_per_minute, self.limit) if rate_per_minute else None
            self._limited_until = FOREVER

    def drain(self) -> list[RoutedMessage]:
        """Take nothing more in; returns everything that waits, which returns to its queue. What is worked on is finished."""
        self.is_draining = True
        found = [item for lane in self.lanes.values() for item in lane.clear()]
        self.lanes = {group: lane for group, lane in self.lanes.items() if lane.is_busy}
        self.queued = self.held = self.away = 0
        self._regular.clear()
        self._urgent.clear()
        self._by_due.clear()
        for lane in self.lanes.values():
            lane.is_ready = lane.is_held = False
        return found

    @property
    def is_drained(self) -> bool:
        """Whether it is being drained and nothing is worked on any more."""
        return self.is_draining and self.active == 0

    def sweep(self, now: int) -> int:
        """Forget groups that have had nothing to do for five minutes; returns how many."""
        idle = [
            group
            for group, lane in self.lanes.items()
            if lane.is_empty
            and not lane.is_busy
            and lane.idle_at <= now - IDLE_AFTER
            and (not lane.away or all(until <= now for until in lane.away.values()))
        ]
        for group in idle:
            self.away -= bool(self.lanes.pop(group).away)
        return len(idle)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def is_strict(self, group: str) -> bool:
        """Whether a message of this group that failed holds back the others."""
        return self._is_strict and group != DEFAULT_GROUP

    def _lane(self, group: str) -> GroupLane:
        lane = self.lanes.get(group)
        if lane is None:
            lane = self.lanes[group] = GroupLane(group, is_strict=self.is_strict(group))
        return lane

    def _make_ready(self, lane: GroupLane, *, is_urgent: bool) -> None:
        lane.is_ready = True
        (self._urgent if is_urgent else self._regular).append(lane)

    def _ended(self, item: RoutedMessage) -> GroupLane | None:
        """Free the worker of a message; its lane, if it is still there."""
        self.active -= 1
        item.started_at = 0
        lane = self.lanes.get(item.pointer.group)
        if lane is None:
            return None
        if not lane.is_strict:
            self.batches.done(item.batch, lane.group)
        lane.is_busy = False
        return lane

    def _let_go(self, now: int) -> None:
        """Make those lanes ready whose first message has waited long enough."""
        while self._by_due and self._by_due[0][0] <= now:
            lane = heapq.heappop(self._by_due)[2]
            lane.is_held = False
            self.held -= len(lane.regular)
            lane.regular[0].due = 0
            self._make_ready(lane, is_urgent=bool(lane.urgents))

    def _pass_over(self, lane: GroupLane) -> bool:
        """Take messages out of a lane whose batch and group has failed; True when none is left."""
        batches = self.batches
        while True:
            first = lane.first
            if not batches.has_failed(first.batch, lane.group):
                return False
            self.passed_over.append(lane.pop())
            self.queued -= 1
            batches.done(first.batch, lane.group)
            if lane.is_empty:
                lane.is_ready = False
                return True


def capacity_of(concurrency: int) -> int:
    return max(concurrency * CAPACITY_FACTOR, LEAST_CAPACITY)
