"""What a new configuration changes: which pools and queues come, go, and stay with other values.

A queue is known by its name, and by its URI when its name is new: a queue that was only renamed is changed, not removed and
added, so that its messages are never taken by two consumers of this router. One that has another name or URI is opened again;
other changes leave it open.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.router.core.config import PoolConfig, QueueConfig, RouterConfig, shown_uri


class PoolChange(msgspec.Struct, frozen=True):
    """A pool that stays, with other values."""

    old: PoolConfig
    new: PoolConfig

    @property
    def has_new_concurrency(self) -> bool:
        """Whether it may do more or less at a time."""
        return self.old.concurrency != self.new.concurrency

    @property
    def has_new_rate(self) -> bool:
        """Whether it may do more or less a minute."""
        return self.old.rate_per_minute != self.new.rate_per_minute


class QueueChange(msgspec.Struct, frozen=True):
    """A queue that stays, with other values."""

    old: QueueConfig
    new: QueueConfig

    @property
    def has_to_be_opened(self) -> bool:
        """Whether its source cannot be kept."""
        return (self.old.name, self.old.uri) != (self.new.name, self.new.uri)


class Changes(msgspec.Struct, frozen=True):
    """All that changes."""

    pools_added: tuple[PoolConfig, ...] = ()
    pools_removed: tuple[PoolConfig, ...] = ()
    pools_changed: tuple[PoolChange, ...] = ()
    queues_added: tuple[QueueConfig, ...] = ()
    queues_removed: tuple[QueueConfig, ...] = ()
    queues_changed: tuple[QueueChange, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return any(getattr(self, field) for field in self.__struct_fields__)

    def describe(self) -> list[str]:
        """A line for each change, for people; no passwords."""
        return list(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from (f"pool {pool.code} is added: {_pace(pool)}" for pool in self.pools_added)
        yield from (f"pool {change.new.code} changes: {_pool_change(change)}" for change in self.pools_changed)
        yield from (f"pool {pool.code} is removed: what waits in it goes back to its queue" for pool in self.pools_removed)
        yield from (f"queue {_called(queue)} is added: {_polling(queue)}" for queue in self.queues_added)
        yield from (f"queue {change.old.name} {_queue_change(change)}" for change in self.queues_changed)
        yield from (f"queue {_called(queue)} is removed: it is not polled any more" for queue in self.queues_removed)


def changes(old: RouterConfig | None, new: RouterConfig) -> Changes:
    """What has to be done to come from the old configuration (None: there is none) to the new one."""
    old = old or RouterConfig()
    pools = {pool.code: pool for pool in old.pools}
    kept_pools = [PoolChange(pools[pool.code], pool) for pool in new.pools if pool.code in pools]
    codes = {pool.code for pool in new.pools}
    kept_queues = _same_queues(old, new)
    stay = {change.old.name for change in kept_queues}
    return Changes(
        pools_added=tuple(pool for pool in new.pools if pool.code not in pools),
        pools_removed=tuple(pool for pool in old.pools if pool.code not in codes),
        pools_changed=tuple(change for change in kept_pools if change.old != change.new),
        queues_added=_without(new.queues, {change.new.name for change in kept_queues}),
        queues_removed=_without(old.queues, stay),
        queues_changed=tuple(change for change in kept_queues if change.old != change.new),
    )


def _same_queues(old: RouterConfig, new: RouterConfig) -> list[QueueChange]:
    """Pairs of what each queue that stays was and is."""
    by_name = {queue.name: queue for queue in old.queues}
    names = {queue.name for queue in new.queues}
    gone_by_uri = {queue.uri: queue for queue in old.queues if queue.name not in names}
    pairs: list[QueueChange] = []
    for queue in new.queues:
        before = by_name.get(queue.name) or gone_by_uri.get(queue.uri)
        if before is not None:
            pairs.append(QueueChange(before, queue))
    return pairs


def _without(queues: tuple[QueueConfig, ...], names: set[str]) -> tuple[QueueConfig, ...]:
    return tuple(queue for queue in queues if queue.name not in names)


def _pool_change(change: PoolChange) -> str:
    said: list[str] = []
    if change.has_new_concurrency:
        said.append(f"{change.old.concurrency} at a time becomes {change.new.concurrency}")
    if change.has_new_rate:
        said.append(f"{_rate(change.old)} becomes {_rate(change.new)}")
    return ", ".join(said)


def _queue_change(change: QueueChange) -> str:
    old, new, said = change.old, change.new, list[str]()
    if old.name != new.name:
        said.append(f"it is called {new.name} from now on")
    if old.uri != new.uri:
        before, after = shown_uri(old.uri), shown_uri(new.uri)
        said.append(f"{before} becomes {after}" if before != after else "its user or password is another")
    if old.connections != new.connections:
        said.append(f"{_connections(old)} becomes {new.connections}")
    if old.visibility_timeout != new.visibility_timeout:
        said.append(f"visibility timeout {old.visibility_timeout} s becomes {new.visibility_timeout} s")
    return f"{'is opened again' if change.has_to_be_opened else 'changes'}: {', '.join(said)}"


def _called(queue: QueueConfig) -> str:
    address = shown_uri(queue.uri)
    return queue.name if queue.name == address else f"{queue.name} ({address})"


def _pace(pool: PoolConfig) -> str:
    return f"{pool.concurrency} at a time, {_rate(pool)}"


def _rate(pool: PoolConfig) -> str:
    return "no rate limit" if pool.rate_per_minute is None else f"{pool.rate_per_minute} a minute"


def _polling(queue: QueueConfig) -> str:
    return f"{_connections(queue)}, visibility timeout {queue.visibility_timeout} s"


def _connections(queue: QueueConfig) -> str:
    return f"{queue.connections} connection{'' if queue.connections == 1 else 's'}"
