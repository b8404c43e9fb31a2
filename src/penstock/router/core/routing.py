"""Where the messages of a batch go (specification 001, "Routing Algorithm"): from a batch and the state to decisions.

    1 deduplication   the same message once more: its new receipt is taken over; one with the same id: it goes
    2 capacity        a pool that has no room for all its messages of the batch takes none of them
    3 FIFO            in the order of arrival into the lanes

After a message that could not go in, the rest of its group does not go in either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from penstock.router.core.message import RoutedMessage
from penstock.router.core.pool import Pool
from penstock.router.core.tracker import DuplicateKind, Tracker


class Routing(msgspec.Struct, gc=False):
    """What is to be done with the messages of a batch that did not go in, and what is to be reported."""

    accepted: int = 0
    pools: dict[str, Pool] = {}
    """Those that have got messages, by code."""
    taken: dict[str, int] = {}
    """How many each of them has got."""
    redelivered: list[RoutedMessage] = []
    """Messages in the router that their queue delivered again, with their new delivery: to be kept away, they continue."""
    requeued: list[RoutedMessage] = []
    """Messages that are in the router under another id of a queue: to be acked."""
    repeated: list[RoutedMessage] = []
    """Messages that came twice within the batch: to be sent back."""
    refused: list[tuple[Pool, RoutedMessage]] = []
    """Messages that could not go in, in order: to be sent back."""
    waiting: list[tuple[Pool, RoutedMessage]] = []
    """The same of groups whose first message waits for its next attempt: to be sent back for longer."""
    full: dict[str, int] = {}
    """By pool: how many messages it had no room for."""
    unknown: dict[str, int] = {}
    """By code: messages for a pool that is not there, which went to the default one."""


def route(
    items: Sequence[RoutedMessage], tracker: Tracker, pools: Mapping[str, Pool], default: Callable[[], Pool], now: int
) -> Routing:
    """Route a batch of one queue: what can go in is tracked and in its pool; the rest is in what is returned."""
    routing = Routing()
    for pool, wanted in _by_pool(items, tracker, pools, default, routing):
        chosen = _in_turn(pool, wanted, routing, now)
        room = pool.room
        if room < len(chosen):
            # A batch that never fits is taken as far as it goes, or it would go round forever.
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
    """Phase 1, and the pool of each message that is new."""
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
    """Those whose group does not wait for an earlier message that returned to its queue, or has no room while it waits."""
    if pool.away == 0 and not pool.is_hold_limit_reached:
        return items
    chosen: list[RoutedMessage] = []
    behind: set[str] = set()
    coming: set[str] = set()
    for item in items:
        group = item.pointer.group
        # One that is waited for is older than those of the batch that are refused: it does not wait for them.
        if pool.must_wait(item):
            behind.add(group)
            routing.waiting.append((pool, item))
        elif (group in behind and not pool.is_awaited(item)) or not pool.is_in_turn(item, now, coming):
            behind.add(group)
            routing.refused.append((pool, item))
        else:
            chosen.append(item)
    return chosen
