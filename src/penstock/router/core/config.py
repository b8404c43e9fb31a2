"""The configuration of a router: its queues and its pools, and what a new configuration changes.

Three spellings are read (camelCase, snake_case, and the short `name` and `uri` of a queue); camelCase is written. If a value is
given in several of them, the first of that list counts; null counts as not given. Unknown keys are ignored.

A queue's URI may contain a user and a password: logs, responses and errors (those of this module too) show `shown_uri` of it.

`changes` compares two configurations. A queue is identified by its name, and by its URI if its name is new: a queue that was only
renamed is changed, not removed and added, so that its messages are never taken by two consumers of this router. A queue with
another name or URI is opened again; other changes leave it open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, TypeVar, cast, get_args

import msgspec

from penstock.errors import InvalidArgument

DEFAULT_VISIBILITY = 120
"""Seconds for which a delivered message is hidden, unless the configuration has a value."""

MAX_CONCURRENCY: Final = 10_000
MAX_CONNECTIONS: Final = 100
MAX_RATE: Final = 60_000_000
"""A minute. The maximum is one each microsecond, the resolution of the router's clock."""
MAX_VISIBILITY: Final = 43_200
MAX_TEXT: Final = 2_048
"""Characters of a name, a code or a URI."""


Engine = Literal["local", "spark"]
"""What delivers the messages: this process, or `penstock pipeline route`."""


class PoolConfig(msgspec.Struct, frozen=True):
    """A process pool."""

    code: str
    concurrency: int = 1
    rate_per_minute: int | None = None
    """None: no limit but the concurrency."""
    engine: Engine = "local"


class QueueConfig(msgspec.Struct, frozen=True):
    """A queue to consume from."""

    name: str
    """The name of the queue in this router; its URI without the user, if the configuration gives no name."""
    uri: str
    connections: int = 1
    """The number of concurrent polls."""
    visibility_timeout: int = DEFAULT_VISIBILITY
    """Seconds."""
    engine: Engine | None = None
    """What consumes its messages; None: the engine that all pools share, else this process."""

    def __repr__(self) -> str:
        return f"<queue {self.name} at {shown_uri(self.uri)}>"


class RouterConfig(msgspec.Struct, frozen=True):
    """A whole configuration."""

    queues: tuple[QueueConfig, ...] = ()
    pools: tuple[PoolConfig, ...] = ()

    def of(self, engine: Engine) -> RouterConfig:
        """The queues and pools of one engine."""
        default: Engine = "spark" if self.pools and all(pool.engine == "spark" for pool in self.pools) else "local"
        return RouterConfig(
            tuple(queue for queue in self.queues if (queue.engine or default) == engine),
            tuple(pool for pool in self.pools if pool.engine == engine),
        )


def parse_config(data: bytes | object, *, passed_over: list[str] | None = None) -> RouterConfig:
    """The configuration in this JSON, or in data decoded from another format; InvalidArgument if it cannot be used.

    The paths of unknown keys are added to `passed_over`: most are harmless, but one may be a typing error.
    """
    top = _Table("the configuration", _decoded(data) if isinstance(data, bytes) else data, passed_over)
    queues, pools = top.rows("queues"), top.rows("processingPools", "processing_pools")
    if queues is None and pools is None:
        raise InvalidArgument(
            "the configuration has neither queues nor processingPools", hint="give at least one of them; a list may be empty"
        )
    connections = top.number("connections", most=MAX_CONNECTIONS) or 1
    config = RouterConfig(
        queues=tuple(_queue(row, connections) for row in queues or ()), pools=tuple(_pool(row) for row in pools or ())
    )
    for table in (top, *(queues or ()), *(pools or ())):
        table.report_unknown_keys()
    _refuse_twice("processingPools", "code", [pool.code for pool in config.pools])
    _refuse_twice("queues", "queueUri", [queue.uri for queue in config.queues])
    _refuse_twice("queues", "queueName", [queue.name for queue in config.queues])
    return config


def to_json(config: RouterConfig) -> bytes:
    """The configuration as `parse_config` reads it, in camelCase. It contains the passwords of URIs: do not show it."""
    pools = [
        {"code": pool.code, "concurrency": pool.concurrency}
        | ({} if pool.rate_per_minute is None else {"rateLimitPerMinute": pool.rate_per_minute})
        | ({} if pool.engine == "local" else {"engine": pool.engine})
        for pool in config.pools
    ]
    queues = [
        {
            "queueName": queue.name,
            "queueUri": queue.uri,
            "connections": queue.connections,
            "visibilityTimeout": queue.visibility_timeout,
        }
        | ({} if queue.engine is None else {"engine": queue.engine})
        for queue in config.queues
    ]
    return msgspec.json.encode({"processingPools": pools, "queues": queues})


def merge(configs: Iterable[RouterConfig]) -> RouterConfig:
    """Merge several configurations into one: of pools with the same code, or queues with the same URI, the first counts.

    Two queues with the same name stay two: the later one gets its URI as its name.
    """
    pools: dict[str, PoolConfig] = {}
    queues: dict[str, QueueConfig] = {}
    names: set[str] = set()
    for config in configs:
        for pool in config.pools:
            pools.setdefault(pool.code, pool)
        for queue in config.queues:
            if queue.uri not in queues:
                name = _free_name(queue, names)
                names.add(name)
                queues[queue.uri] = queue if name == queue.name else msgspec.structs.replace(queue, name=name)
    return RouterConfig(queues=tuple(queues.values()), pools=tuple(pools.values()))


_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?://)?")
_HOST_AND_PORT: Final = re.compile(r"(?:[^:@]*|\[[^\]@]*\])(?::\d{1,5})?")
_SECRET: Final = re.compile(r"([?&;#][^=&;#]*(?:pass|pwd|secret|token|key|auth|cred|sign)[^=&;#]*=)[^&;#]*", re.IGNORECASE)


def shown_uri(uri: str) -> str:
    """A URI as logs, errors and the monitoring API may show it: without the user, the password and anything like a secret.

    Also of text that is not a valid URI, such as one whose password has an `@` or a `/` that should have been escaped.
    """
    scheme = found[0] if (found := _SCHEME.match(uri)) else ""
    rest = uri[len(scheme) :]
    authority = re.split(r"[/?#]", rest.lstrip("/"), maxsplit=1)[0]
    if "@" in authority:
        rest = f"***@{authority.rpartition('@')[2]}{rest.lstrip('/')[len(authority) :]}"
    elif "@" in rest and not _HOST_AND_PORT.fullmatch(authority):
        rest = f"***@{rest.rpartition('@')[2]}"
    return scheme + _SECRET.sub(r"\1***", rest)


_T = TypeVar("_T", int, str)


class _Table:
    """A JSON object, and its path in the configuration."""

    def __init__(self, path: str, value: object, passed_over: list[str] | None) -> None:
        if not isinstance(value, Mapping):
            raise _wrong(path, value, "an object")
        self._path = path
        self._fields: Mapping[object, object] = value
        self._known: set[str] = set()
        self._passed_over = passed_over

    def report_unknown_keys(self) -> None:
        """Add the paths of the keys that were not read."""
        if self._passed_over is not None:
            self._passed_over += [self._inner(str(key)) for key in self._fields if key not in self._known]

    def rows(self, *keys: str) -> list[_Table] | None:
        """The objects of a list; None if it is not given."""
        key, value = self._find(keys)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise _wrong(self._inner(key), value, "a list")
        return [_Table(f"{self._inner(key)}[{place}]", row, self._passed_over) for place, row in enumerate(value)]

    def number(self, *keys: str, most: int, zero_is_none: bool = False) -> int | None:
        """A whole number from 1; None if it is not given, or if it is 0 and `zero_is_none`."""
        return self._value(keys, lambda value: _number(value, most, zero_is_none), f"a whole number from 1 to {most:,}")

    def text(self, *keys: str) -> str | None:
        """Text that is not empty; None if it is not given."""
        return self._value(keys, _text, f"1 to {MAX_TEXT:,} characters that can be printed, not only spaces")

    def engine(self) -> Engine | None:
        """The engine; None if it is not given."""
        return cast("Engine | None", self._value(("engine",), _engine, "local or spark"))

    def missing(self, key: str, wanted: str) -> InvalidArgument:
        """The error for a required value that is not given."""
        return InvalidArgument.of(self._inner(key), None, wanted)

    def _value(self, keys: tuple[str, ...], read: Callable[[object], _T | None], wanted: str) -> _T | None:
        key, value = self._find(keys)
        try:
            return None if value is None else read(value)
        except ValueError:
            raise _wrong(self._inner(key), value, wanted) from None

    def _find(self, keys: tuple[str, ...]) -> tuple[str, object]:
        """The first of the keys that is given, and its value."""
        self._known.update(keys)
        for key in keys:
            if (value := self._fields.get(key)) is not None:
                return key, value
        return keys[0], None

    def _inner(self, key: str) -> str:
        return key if self._path == "the configuration" else f"{self._path}.{key}"


def _decoded(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The decoder's message about text that is not UTF-8 quotes the text.
        said = str(error) if isinstance(error, msgspec.DecodeError) else type(error).__name__
        raise InvalidArgument(f"the configuration is not JSON: {said}") from None


def _queue(row: _Table, connections: int) -> QueueConfig:
    uri = row.text("queueUri", "queue_uri", "uri")
    if uri is None:
        raise row.missing("queueUri", "the address of a queue")
    return QueueConfig(
        name=shown_uri(row.text("queueName", "queue_name", "name") or uri),
        uri=uri,
        connections=row.number("connections", most=MAX_CONNECTIONS) or connections,
        visibility_timeout=row.number("visibilityTimeout", "visibility_timeout", most=MAX_VISIBILITY) or DEFAULT_VISIBILITY,
        engine=row.engine(),
    )


def _pool(row: _Table) -> PoolConfig:
    code = row.text("code")
    if code is None:
        raise row.missing("code", "the name of a pool")
    rate = row.number("rateLimitPerMinute", "rate_limit_per_minute", most=MAX_RATE, zero_is_none=True)
    concurrency = row.number("concurrency", most=MAX_CONCURRENCY, zero_is_none=True)
    return PoolConfig(code, concurrency or min(max((rate or 0) // 60, 1), MAX_CONCURRENCY), rate, row.engine() or "local")


def _number(value: object, most: int, zero_is_none: bool) -> int | None:
    if type(value) is not int or not (0 if zero_is_none else 1) <= value <= most:
        raise ValueError
    return value or None


def _engine(value: object) -> str:
    if value not in get_args(Engine):
        raise ValueError
    return str(value)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not value.strip() or len(value) > MAX_TEXT:
        raise ValueError
    return value


def _wrong(path: str, value: object, wanted: str) -> InvalidArgument:
    """A wrong value may contain a password: lists and objects are not shown, and of text only what a URI may show."""
    if isinstance(value, str):
        return InvalidArgument.of(path, shown_uri(value), wanted)
    if isinstance(value, Mapping | list | tuple | bytes):
        kind = {list: "a list", tuple: "a list", bytes: "bytes"}.get(type(value), "an object")
        return InvalidArgument(f"{path} is {kind}, expected {wanted}")
    return InvalidArgument.of(path, value, wanted)


def _refuse_twice(rows: str, key: str, values: list[str]) -> None:
    places: dict[str, int] = {}
    for place, value in enumerate(values):
        if (before := places.setdefault(value, place)) != place:
            hint = "give one of them a queueName of its own" if key == "queueName" else "leave one of them out"
            raise InvalidArgument.of(f"{rows}[{place}].{key}", shown_uri(value), f"another than that of {rows}[{before}]", hint)


def _free_name(queue: QueueConfig, taken: set[str]) -> str:
    name, number = queue.name, 1
    while name in taken:
        name = shown_uri(queue.uri) if number == 1 else f"{shown_uri(queue.uri)} ({number})"
        number += 1
    return name


class PoolChange(msgspec.Struct, frozen=True):
    """A pool that stays, with changed values."""

    old: PoolConfig
    new: PoolConfig

    @property
    def has_new_concurrency(self) -> bool:
        return self.old.concurrency != self.new.concurrency

    @property
    def has_new_rate(self) -> bool:
        return self.old.rate_per_minute != self.new.rate_per_minute


class QueueChange(msgspec.Struct, frozen=True):
    """A queue that stays, with changed values."""

    old: QueueConfig
    new: QueueConfig

    @property
    def has_to_be_opened(self) -> bool:
        return (self.old.name, self.old.uri) != (self.new.name, self.new.uri)


class Changes(msgspec.Struct, frozen=True):
    """The differences between two configurations."""

    pools_added: tuple[PoolConfig, ...] = ()
    pools_removed: tuple[PoolConfig, ...] = ()
    pools_changed: tuple[PoolChange, ...] = ()
    queues_added: tuple[QueueConfig, ...] = ()
    queues_removed: tuple[QueueConfig, ...] = ()
    queues_changed: tuple[QueueChange, ...] = ()

    def __bool__(self) -> bool:
        return any(getattr(self, field) for field in self.__struct_fields__)

    def describe(self) -> list[str]:
        """A line of text for each change, without passwords."""
        return list(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from (f"pool {pool.code} is added: {_pace(pool)}" for pool in self.pools_added)
        yield from (f"pool {change.new.code} changes: {_pool_change(change)}" for change in self.pools_changed)
        yield from (f"pool {pool.code} is removed: what waits in it returns to its queue" for pool in self.pools_removed)
        yield from (f"queue {_called(queue)} is added: {_polling(queue)}" for queue in self.queues_added)
        yield from (f"queue {change.old.name} {_queue_change(change)}" for change in self.queues_changed)
        yield from (f"queue {_called(queue)} is removed: it is not polled any more" for queue in self.queues_removed)


def changes(old: RouterConfig | None, new: RouterConfig) -> Changes:
    """The changes from the old configuration (None if there is none) to the new one."""
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
    """The old and new configuration of each queue that stays."""
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
    if change.old.engine != change.new.engine:
        said.append(f"engine {change.old.engine} becomes {change.new.engine}")
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
    if old.engine != new.engine:
        said.append(f"engine {old.engine or 'of its pools'} becomes {new.engine or 'of its pools'}")
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
