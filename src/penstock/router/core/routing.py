"""Where the messages of a batch go (specification 001, "Routing Algorithm"): from a batch and the state to decisions.

    1 deduplication   a redelivery of a message in the router: its new receipt is used; another message with its id: is acked
    2 capacity        a pool without room for all its messages of the batch accepts none of them
    3 FIFO            messages enter their groups in the order of arrival

After a message that was not accepted, the rest of its group is not accepted either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from penstock.router.core.message import RoutedMessage
from penstock.router.core.pool import Pool
from penstock.router.core.tracker import DuplicateKind, Tracker


class Routing(msgspec.Struct, gc=False):
    """What to do with the messages of a batch that were not accepted, and what to report."""

    accepted: int = 0
    pools: dict[str, Pool] = {}
    """The pools that got messages, by code."""
    taken: dict[str, int] = {}
    """How many messages each of them got."""
    redelivered: list[RoutedMessage] = []
    """Messages in the router that their queue redelivered, with the new delivery: they must stay hidden, and continue."""
    requeued: list[RoutedMessage] = []
    """Messages that are in the router under another id of a queue: to ack."""
    repeated: list[RoutedMessage] = []
    """Messages that were in the batch twice: to return to the queue."""
    refused: list[tuple[Pool, RoutedMessage]] = []
    """Messages that were not accepted, in order: to return to the queue."""
    waiting: list[tuple[Pool, RoutedMessage]] = []
    """Messages of groups whose first message waits for its next attempt: to return to the queue, with a longer delay."""
    full: dict[str, int] = {}
    """By pool: how many messages it had no room for."""
    unknown: dict[str, int] = {}
    """By code: messages for a pool that does not exist, which went to the default pool."""


def route(
    items: Sequence[RoutedMessage], tracker: Tracker, pools: Mapping[str, Pool], default: Callable[[], Pool], now: int
) -> Routing:
    """Route a batch of one queue: accepted messages are tracked and in their pools; the result has the others."""
    routing = Routing()
    for pool, wanted in _by_pool(items, tracker, pools, default, routing):
        chosen = _in_turn(pool, wanted, routing, now)
        room = pool.room
        if room < len(chosen):
            # Of a batch that never fits, as many as possible are accepted: otherwise it would be redelivered forever.
            fitting = room if len(chosen) > pool.capacity else 0
            routing.full[pool.code] = len(chosen) - fitting
            routing.refused += [(pool, item) for item in chosen[fitting:]]
            chosen = chosen[:fitting]
        if chosen:
            tracked, repeated = tracker.track(chosen)
            routing.repeated += repeated
            taken = pool.submit_all(tracked)
            routing.accepted += taken
            routing.taken[pool.code] = taken
            routing.pools[pool.code] = pool
    return routing


def _by_pool(
    items: Sequence[RoutedMessage], tracker: Tracker, pools: Mapping[str, Pool], default: Callable[[], Pool], routing: Routing
) -> list[tuple[Pool, list[RoutedMessage]]]:
    """Deduplicate (phase 1), and find the pool of each new message."""
    fresh, known = tracker.fresh(items)
    for item, seen in [(item, tracker.seen(item)) for item in known]:  # all of them before the first is renewed
        assert seen is not None
        if seen[0] is DuplicateKind.REDELIVERED:
            tracker.renew(seen[1], item)
            routing.redelivered.append(seen[1])
        else:
            routing.requeued.append(item)
    codes: dict[str, list[RoutedMessage]] = {}
    for item in fresh:
        code = item.pointer.pool
        if code in codes:
            codes[code].append(item)
        else:
            codes[code] = [item]
    found: dict[int, tuple[Pool, list[RoutedMessage]]] = {}
    for code, wanted in codes.items():
        pool = pools.get(code)
        if pool is None:
            routing.unknown[code] = len(wanted)
            pool = default()
        if id(pool) in found:
            found[id(pool)][1].extend(wanted)
        else:
            found[id(pool)] = pool, wanted
    return list(found.values())


def _in_turn(pool: Pool, items: list[RoutedMessage], routing: Routing, now: int) -> list[RoutedMessage]:
    """Those whose group neither waits for an earlier message that returned to its queue, nor lacks room while it is held."""
    if pool.away == 0 and not pool.is_hold_limit_reached:
        return items
    chosen: list[RoutedMessage] = []
    behind: set[str] = set()
    coming: set[str] = set()
    for item in items:
        group = item.pointer.group
        # A message that is waited for is older than the refused ones of the batch: it does not wait for them.
        if pool.must_wait(item):
            behind.add(group)
            routing.waiting.append((pool, item))
        elif (group in behind and not pool.is_awaited(item)) or not pool.is_in_turn(item, now, coming):
            behind.add(group)
            routing.refused.append((pool, item))
        else:
            chosen.append(item)
    return chosen
