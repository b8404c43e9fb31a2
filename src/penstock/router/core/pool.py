"""A process pool: groups of messages, a limit on concurrent calls, and a rate limit (specification 001, "Process Pools").

It decides and never waits: `take` returns a message that may be processed now, and `next_due` says when to call it again if
nothing else happens. A group without messages costs one entry, which is removed after five idle minutes.

Two orders. `strict`: a failed message stays here, first in its group, until its next attempt, and no message of the group
overtakes it. After a failure with a long delay the message returns to its queue with all of its group, and later messages of the
group wait for it. `batch`: a failed message returns to its queue, with the rest of its batch and group; within a group, urgent
messages come first. Messages without a group are processed in batch order in a strict pool too: they need no order, and one dead
target must not stop them all.
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
"""How many instants of a minute a rate limit distinguishes."""


class RateLimit:
    """The rate limit of a pool, in calls per minute (specification 001, "Rate Limiting").

    At most `per_minute` permits in any 60 seconds (decision 70). It returns how long to wait, and never waits.
    """

    __slots__ = ("_granted", "_in_window", "_slot", "per_minute")

    def __init__(self, per_minute: int, before: RateLimit | None = None) -> None:
        """`before` is the limit that this one replaces; the permits that it granted count."""
        if per_minute < 1:
            raise InvalidArgument.of("rate_per_minute", per_minute, "a whole number from 1 on", hint="leave it out for no limit")
        self.per_minute = per_minute
        self._granted: deque[list[int]] = deque() if before is None else before._granted
        """The permits of the last minute: instants with the number of permits of each, oldest first."""
        self._in_window: int = 0 if before is None else before._in_window
        self._slot = 1 if per_minute <= MAX_INSTANTS else MINUTE // MAX_INSTANTS
        """Permits of a slot of this many microseconds count as granted at its end, so the rate is never above the limit."""

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
        """Permits of the last minute that were granted since `since`: their age (microseconds), and how many.

        They are grouped by second; no age is more than the real one.
        """
        found: dict[int, int] = {}
        for at, count in self._granted:
            if at >= since and at > now - MINUTE:
                second = max(now - at, 0) // SECOND
                found[second] = found.get(second, 0) + count
        return [(second * SECOND, count) for second, count in found.items()]

    def add(self, permits: Iterable[tuple[int, int]], now: int) -> None:
        """Count permits that were granted elsewhere, in the form that `export` returns."""
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
"""How long a group waits for a message that returned to its queue, beyond the delay of that message."""


class RetryDecision(Enum):
    """What the pool does with a message that has to be retried."""

    HELD = "held"
    """It waits here until its next attempt."""
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
        """`capacity`: how many messages may wait, if not derived from the concurrency."""
        if concurrency < 1:
            raise InvalidArgument.of("concurrency", concurrency, "a whole number from 1 on")
        self.code = code
        self.concurrency = concurrency
        self.capacity = capacity or capacity_of(concurrency)
        self.limit = RateLimit(rate_per_minute) if rate_per_minute else None
        self.hold_limit = hold_limit
        self.lanes: dict[str, GroupLane] = {}
        self.queued = 0
        """Messages that wait, including those that are held."""
        self.active = 0
        self.held = 0
        """Waiting messages of groups whose first message waits for its next attempt."""
        self.away = 0
        """Groups that wait for messages which returned to their queue."""
        self.is_draining = False
        self.is_paused = False
        """An operator has paused it: no delivery is started."""
        self.batches = BatchGroups()
        self.limited = 0
        """Messages that had to wait for a permit of the rate limit, so far."""
        self._limited: RoutedMessage | None = None
        """The message that waits for a permit now."""
        self._is_strict = is_strict
        self.passed_over: list[RoutedMessage] = []
        """Messages of a failed batch and group, found by `take`: the caller returns them to their queue and clears the list."""
        self._regular: deque[GroupLane] = deque()
        self._urgent: deque[GroupLane] = deque()
        self._by_due: list[tuple[int, int, GroupLane]] = []
        self._number = 0
        self._limited_until = FOREVER

    # ── arriving ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def room(self) -> int:
        """How many more messages it accepts now."""
        # Held messages come from a worker, not through here: with them there may be more than the capacity.
        return 0 if self.is_draining else max(self.capacity - self.queued, 0)

    def is_awaited(self, item: RoutedMessage) -> bool:
        """Whether a message returned to its queue from here, and its group waits for it."""
        lane = self.lanes.get(item.pointer.group)
        return lane is not None and lane.is_awaited(item)

    def is_in_turn(self, item: RoutedMessage, now: int, coming: set[str]) -> bool:
        """Whether the order of its group lets a message in. `coming` is as for `GroupLane.is_in_turn`."""
        lane = self.lanes.get(item.pointer.group)
        if lane is None or not lane.away:
            return True
        is_in_turn = lane.is_in_turn(item, now, coming)
        self.away -= not lane.away
        return is_in_turn

    def must_wait(self, item: RoutedMessage) -> bool:
        """Whether the group of a message waits for its first message, and such groups take up enough of the pool."""
        lane = self.lanes.get(item.pointer.group)
        return lane is not None and lane.is_held and self.is_hold_limit_reached

    @property
    def is_hold_limit_reached(self) -> bool:
        """Whether half of the pool is taken by groups that have to wait: the other half is for groups that can proceed."""
        return self.held >= max(self.capacity // 2, 1)

    def submit(self, item: RoutedMessage) -> bool:
        """Accept a message, as the last of its group; False if there is no room, or the pool is being drained."""
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
        """Accept as many of the messages as there is room for; returns how many. The same as `submit` for each, but faster."""
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
        """A message was not accepted and returns to its queue: later messages of its group have to wait for it."""
        if self.is_strict(item.pointer.group):
            lane = self._lane(item.pointer.group)
            self.away += not lane.away
            lane.sent_back(item, until + GRACE)

    def awaited(self, now: int | None = None) -> dict[str, dict[str, int]]:
        """By group: the messages it waits for, and until when. With `now`, also those that wait here and will return."""
        return {
            group: {**({} if now is None else dict.fromkeys(map(key_of, lane.regular), now + GRACE)), **(lane.away or {})}
            for group, lane in self.lanes.items()
            if lane.is_strict and (lane.away or (now is not None and lane.regular))
        }

    def wait_for(self, group: str, ahead: Mapping[str, int]) -> None:
        """Messages of a group are on their way, and come before all its others."""
        if not self.is_strict(group):
            return
        lane = self._lane(group)
        self.away += not lane.away
        lane.away = {**ahead, **(lane.away or {})}

    # ── processing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, now: int) -> RoutedMessage | None:
        """The next message to process; None if there is none, no worker is free, or it is too early.

        Each message that is taken must be passed to `finish` or `retry`.
        """
        if self._by_due and self._by_due[0][0] <= now:
            self._let_go(now)
        if self.active >= self.concurrency or self.is_paused:
            return None
        while True:
            waiting = self._urgent or self._regular
            if not waiting:
                self._limited_until = FOREVER  # the message that waited for a permit is gone
                return None
            lane = waiting[0]
            if not lane.is_ready:  # it was in both queues, and was taken from the other one
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
        """A message is settled, delivered or not: it will not be retried from here."""
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
        """A message failed and is retried after a delay. Returns what becomes of it, and the messages that return to their queue.

        In strict order, those are the message with all of its group, or, if it is held, the messages behind it that there is no
        room for; they return in this order. In batch order it is the message alone: those that follow it are passed over when
        their turn comes. If no call was made, messages without a group are not passed over: a target that is not called must not
        hold up messages for others.
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
        """Remove a message that waits; False if it does not wait here. Those behind it move up."""
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
        """Let a message that waits for its next attempt be tried now; False if it does not wait for one."""
        lane = self.lanes.get(item.pointer.group)
        if lane is None or not lane.is_held or lane.regular[0] is not item:
            return False
        item.due = now
        self._by_due = [(now if entry[2] is lane else entry[0], *entry[1:]) for entry in self._by_due]
        heapq.heapify(self._by_due)
        return True

    @property
    def next_due(self) -> int:
        """When `take` may return a message even if nothing else happens; FOREVER if it will not."""
        if self.active >= self.concurrency or self.is_paused:
            return FOREVER
        return min(self._by_due[0][0] if self._by_due else FOREVER, self._limited_until)

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def update(self, concurrency: int, rate_per_minute: int | None) -> None:
        """Change the limits at once. With a smaller concurrency, running deliveries finish and none are started until it fits."""
        if concurrency < 1:
            raise InvalidArgument.of("concurrency", concurrency, "a whole number from 1 on")
        self.concurrency = concurrency
        self.capacity = capacity_of(concurrency)
        if rate_per_minute != (self.limit.per_minute if self.limit is not None else None):
            self.limit = RateLimit(rate_per_minute, self.limit) if rate_per_minute else None
            self._limited_until = FOREVER

    def drain(self) -> list[RoutedMessage]:
        """Accept no more messages; returns all that wait: they have to return to their queue. Running deliveries finish."""
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
        """Whether it is being drained and no delivery is running."""
        return self.is_draining and self.active == 0

    def sweep(self, now: int) -> int:
        """Forget groups that have been idle for five minutes; returns how many."""
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
        """Whether a failed message of this group holds back the others."""
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
        """Free the worker of a message; returns its lane, if it still exists."""
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
        """Make the lanes ready whose first message has waited until its next attempt."""
        while self._by_due and self._by_due[0][0] <= now:
            lane = heapq.heappop(self._by_due)[2]
            lane.is_held = False
            self.held -= len(lane.regular)
            lane.regular[0].due = 0
            self._make_ready(lane, is_urgent=bool(lane.urgents))

    def _pass_over(self, lane: GroupLane) -> bool:
        """Take messages whose batch and group has failed out of a lane; True if the lane is then empty."""
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
