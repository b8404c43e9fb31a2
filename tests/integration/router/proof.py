"""What "in order, once, nothing lost" means for deliveries to a target, and a target that fails at random.

The check, for each group of messages 0, 1, 2 …, from what the target saw. A message is *done* when the target answered a request
for it for good: 2xx, or 400 for one that nobody can deliver. A *life* is a router from its start to its end.

    overlap     two requests of a group were open at the same moment
    inversion   in one life: a request for k is followed by one for another message than k or, when k is done, k + 1;
                a life's first request is for a message behind the first one that is not done
    repeat      a request for a message that is done. Only a killed router may leave messages that are done and not acked: its
                successor begins with the oldest of them and, by the rule above, goes through all that follow; a message that was
                done in a life is not begun again in that life, and never after a life that ended in good order
    missing     a message that is not done

So a target that is idempotent ends up with what it would have from a router that never died.
"""

from __future__ import annotations

import json
import random
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.clock import monotonic
from penstock.testing.target import Behaviour, Request, respond

POOLS = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """Messages of groups, in the order in which they are sent: that of each group is that of its numbers."""

    groups: int
    messages: int
    seed: int = 7
    bad_share: float = 0.005
    """How many of them no target takes."""

    @property
    def total(self) -> int:
        """How many messages."""
        return self.groups * self.messages

    def bad(self) -> set[str]:
        """The ids of those that are answered with 400; two of them are the first and the last of a group."""
        chance = random.Random(self.seed)
        count = max(round(self.total * self.bad_share), 2) - 2
        some = {message_id(chance.randrange(self.groups), chance.randrange(self.messages)) for _ in range(count)}
        return some | {message_id(0, 0), message_id(self.groups - 1, self.messages - 1)}

    def bodies(self, url: str) -> list[tuple[str, bytes]]:
        """Groups and bodies, the groups mixed at random."""
        order = [group for group in range(self.groups) for _ in range(self.messages)]
        random.Random(self.seed).shuffle(order)
        sent = [0] * self.groups
        found: list[tuple[str, bytes]] = []
        for group in order:
            found.append((f"g{group}", body_of(message_id(group, sent[group]), url, f"g{group}", f"P{group % POOLS}")))
            sent[group] += 1
        return found


def body_of(name: str, url: str, group: str, pool: str) -> bytes:
    """A message as queues hold it."""
    return json.dumps({"id": name, "poolCode": pool, "mediationTarget": url, "messageGroupId": group}).encode()


def message_id(group: int, number: int) -> str:
    """The id of a message of a plan."""
    return f"g{group}-{number}"


def place_of(name: str) -> tuple[int, int]:
    """The group and the number of a message."""
    found = re.fullmatch(r"g(\d+)-(\d+)", name)
    assert found is not None, name
    return int(found[1]), int(found[2])


OK = respond(200)
SLOW = respond(200, {"ack": True}, after=0.01)
BAD = respond(400)
DEFERRED = respond(200, {"ack": False, "delaySeconds": 1})
RESET = Behaviour(lambda _, connection: connection.reset())
FAULTS = (respond(500), respond(500, after=0.005), respond(503), DEFERRED, RESET)


@dataclass(slots=True)
class Unreliable:
    """Decides what a target does with each request: a share of them fails, some messages always are refused."""

    bad: set[str]
    share: float = 0.1
    chance: random.Random = field(default_factory=lambda: random.Random(11))
    deferred: set[int] = field(default_factory=set)
    """The numbers of the requests that were answered with 200 and not acknowledged."""
    done: set[str] = field(default_factory=set)
    """Messages that were answered for good, or are about to be: for who waits until all are."""
    faults: int = 0

    def __call__(self, request: Request) -> Behaviour:
        """What to do with a request. In the target's thread."""
        name = request.message_id
        if name in self.bad:
            self.done.add(name)
            return BAD
        draw = self.chance.random()
        if draw >= self.share:
            self.done.add(name)
            return SLOW if draw > 0.8 else OK
        self.faults += 1
        behaviour = self.chance.choice(FAULTS)
        if behaviour is DEFERRED:
            self.deferred.add(request.number)
        return behaviour

    def is_final(self, request: Request) -> bool:
        """Whether a request was answered for good."""
        return request.status == 400 or (request.status == 200 and request.number not in self.deferred)


@dataclass(slots=True)
class Life:
    """A router from its start to its end."""

    started_at: int
    was_killed: bool = False


@dataclass(slots=True)
class Found:
    """What the check found."""

    overlaps: list[str] = field(default_factory=list)
    inversions: list[str] = field(default_factory=list)
    repeats: dict[str, int] = field(default_factory=dict)
    """By message: how often it was begun in another life though it was done."""
    needless: list[str] = field(default_factory=list)
    """Repeats that no kill explains."""
    missing: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether all is as it should be."""
        return not (self.overlaps or self.inversions or self.needless or self.missing)


class Lives:
    """The lives of routers over one queue, one after the other."""

    def __init__(self) -> None:
        self._lives: list[Life] = []

    def begin(self) -> None:
        """A router starts. No request of the one before is open any more."""
        self._lives.append(Life(monotonic()))

    def end(self, *, by_kill: bool) -> None:
        """It has ended."""
        self._lives[-1].was_killed = by_kill

    def of(self, request: Request) -> int:
        """The number of the life that a request was made in."""
        return bisect_right(self._lives, request.started_at, key=lambda life: life.started_at) - 1

    def was_killed_between(self, first: int, last: int) -> bool:
        """Whether one of these lives, the last not among them, ended by a kill."""
        return any(life.was_killed for life in self._lives[first:last])


def check(requests: Sequence[Request], unreliable: Unreliable, lives: Lives, plan: Plan) -> Found:
    """Hold what a target saw against the rules above."""
    found = Found()
    by_group: list[list[tuple[int, Request]]] = [[] for _ in range(plan.groups)]
    for request in requests:
        group, number = place_of(request.message_id)
        by_group[group].append((number, request))
    for group, seen in enumerate(by_group):
        _check_group(group, seen, unreliable, lives, plan, found)
    return found


def _check_group(
    group: int, seen: list[tuple[int, Request]], unreliable: Unreliable, lives: Lives, plan: Plan, found: Found
) -> None:
    seen.sort(key=lambda one: one[1].started_at)
    done_in: dict[int, int] = {}
    """By number of a message: the last life that it was done in."""
    next_new = 0
    life, expected = -1, 0
    open_until = 0
    for number, request in seen:
        name = message_id(group, number)
        if request.started_at < open_until:
            found.overlaps.append(name)
        open_until = max(open_until, request.ended_at or 1 << 62)
        if lives.of(request) != life:
            life = lives.of(request)
            is_in_order = number <= next_new
        else:
            is_in_order = number == expected
        if not is_in_order:
            found.inversions.append(f"{name} in life {life}, the first that is not done is {next_new}, expected {expected}")
        if number in done_in:
            found.repeats[name] = found.repeats.get(name, 0) + (done_in[number] != life)
            if not lives.was_killed_between(done_in[number], life):
                found.needless.append(name)
        expected = number
        if unreliable.is_final(request):
            done_in[number] = life
            expected = number + 1
            while next_new in done_in:
                next_new += 1
    found.missing += [message_id(group, number) for number in range(plan.messages) if number not in done_in]
