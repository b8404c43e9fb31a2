"""The settings of a subscription or a queue, and the one policy that the state machine reads.

`SubscriptionOptions` (specification 000) and `QueueConfig` (specification 003) are checked when they are built. Both become a
`Policy`: the queue's state machine does not know which of the two it serves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from penstock.backoff import exponential
from penstock.durations import DAY, SECOND, micros
from penstock.errors import InvalidArgument, short_repr
from penstock.values.filter import Filter
from penstock.values.message import DEFAULT_PRIORITY, check_name, check_priority, plain_text

Duration = float | timedelta

WEEK_SECONDS = 7 * 86_400
MAX_COUNT = 1 << 40
MAX_ORDERING_WINDOW = 1_000
"""Messages of one ordering key that a stream may hold. After a nack, the later messages of its key are redelivered, too."""


class Overflow(StrEnum):
    """What happens to a message when the queue is full."""

    DISCARD = "discard"
    """It is not stored for this subscription; a counter and a warning report it."""
    REJECT = "reject"
    """The publish is refused as a whole."""
    SPILL = "spill"
    """It is kept: the backlog is in the log, and only a window of it in memory."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Wait before a failed message is delivered again: min(minimum_backoff * 2^(attempt-1), maximum_backoff) seconds."""

    minimum_backoff: Duration = 10
    maximum_backoff: Duration = 600

    def __post_init__(self) -> None:
        low = micros(self.minimum_backoff, "retry_policy.minimum_backoff", maximum=WEEK_SECONDS)
        high = micros(self.maximum_backoff, "retry_policy.maximum_backoff", maximum=WEEK_SECONDS)
        if low > high:
            raise InvalidArgument.of(
                "retry_policy.minimum_backoff", self.minimum_backoff, f"at most maximum_backoff ({self.maximum_backoff})"
            )


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """Where a message goes when delivery number `max_delivery_attempts` fails."""

    dead_letter_topic: str
    max_delivery_attempts: int = 5

    def __post_init__(self) -> None:
        check_name(self.dead_letter_topic, "dead_letter_policy.dead_letter_topic")
        check_count(self.max_delivery_attempts, "dead_letter_policy.max_delivery_attempts", 1, 100)


@dataclass(frozen=True, slots=True)
class FlowControl:
    """How much may be in flight at once. None: no limit.

    `allow_excess_messages` lets a stream finish its current batch when the limit is reached inside it.
    """

    max_messages: int | None = None
    max_bytes: int | None = None
    allow_excess_messages: bool = False

    def __post_init__(self) -> None:
        for name, value in (("max_messages", self.max_messages), ("max_bytes", self.max_bytes)):
            if value is not None:
                check_count(value, f"flow_control.{name}", 1)
        check_flag(self.allow_excess_messages, "flow_control.allow_excess_messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOptions:
    """The settings of a subscription (specification 000). Durations are seconds or `timedelta`.

    `max_messages` and `max_bytes` bound the unacknowledged backlog; `overflow` says what happens beyond: 'discard' (the default
    in memory), 'reject', or 'spill' (the default with a data directory, where the bounds then only size the window).
    `exactly_once`: acks are confirmed when they are durable, and one that comes too late is reported.
    """

    ack_deadline_seconds: Duration = 10
    message_ordering: bool = False
    retry_policy: RetryPolicy | None = None
    dead_letter_policy: DeadLetterPolicy | None = None
    flow_control: FlowControl | None = None
    message_retention_duration: Duration = WEEK_SECONDS
    retain_acked_messages: bool = True
    filter: str = ""
    max_messages: int = 10_000
    max_bytes: int = 100 * 1024 * 1024
    overflow: str | None = None
    exactly_once: bool = False

    def __post_init__(self) -> None:
        micros(self.ack_deadline_seconds, "ack_deadline_seconds", minimum=10, maximum=600)
        check_flag(self.message_ordering, "message_ordering")
        check_flag(self.retain_acked_messages, "retain_acked_messages")
        check_flag(self.exactly_once, "exactly_once")
        for name, value, kind in (
            ("retry_policy", self.retry_policy, RetryPolicy),
            ("dead_letter_policy", self.dead_letter_policy, DeadLetterPolicy),
            ("flow_control", self.flow_control, FlowControl),
        ):
            if value is not None and not isinstance(value, kind):
                raise InvalidArgument.of(name, value, f"a {kind.__name__} or None")
        micros(self.message_retention_duration, "message_retention_duration", minimum=1, maximum=366 * 86_400)
        Filter.parse(self.filter)
        check_count(self.max_messages, "max_messages", 1)
        check_count(self.max_bytes, "max_bytes", 1)
        check_overflow(self.overflow)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """The settings of a work queue (specification 003). Durations are seconds or `timedelta`."""

    max_depth: int = 100_000
    ack_deadline_secs: Duration = 30
    max_retries: int = 3
    default_priority: int = DEFAULT_PRIORITY
    default_prefetch: int = 10
    max_prefetch: int = 1_000
    message_ttl: Duration | None = None
    dead_letter_enabled: bool = True
    dead_letter_max_size: int = 10_000
    retry_policy: RetryPolicy | None = None
    overflow: str = Overflow.REJECT

    def __post_init__(self) -> None:
        check_count(self.max_depth, "max_depth", 1)
        check_ack_deadline(self.ack_deadline_secs, "ack_deadline_secs")
        check_count(self.max_retries, "max_retries", 0, 1_000_000)
        check_priority(self.default_priority)
        check_count(self.max_prefetch, "max_prefetch", 1, 1_000_000)
        check_count(self.default_prefetch, "default_prefetch", 1, self.max_prefetch)
        if self.message_ttl is not None:
            micros(self.message_ttl, "message_ttl", minimum=1e-6)
        check_flag(self.dead_letter_enabled, "dead_letter_enabled")
        check_count(self.dead_letter_max_size, "dead_letter_max_size", 0)
        if self.retry_policy is not None and not isinstance(self.retry_policy, RetryPolicy):
            raise InvalidArgument.of("retry_policy", self.retry_policy, "a RetryPolicy or None")
        if self.overflow is None:
            raise InvalidArgument.of("overflow", self.overflow, _OVERFLOWS)
        check_overflow(self.overflow)


T = TypeVar("T")
Settings = TypeVar("Settings", SubscriptionOptions, QueueConfig, RetryPolicy, DeadLetterPolicy, FlowControl)


class Policy(msgspec.Struct, frozen=True, array_like=True):
    """The rules of one queue, in microseconds and plain numbers. Stored in the log with the queue."""

    ack_deadline: int
    ordered: bool = False
    backoff: tuple[int, int] | None = None
    max_attempts: int | None = None
    dead_letter_topic: str | None = None
    dead_letter_size: int | None = None
    """Room in the queue's own list of dead letters; None: it has no such list."""
    flow_messages: int | None = None
    flow_bytes: int | None = None
    capacity_messages: int = MAX_COUNT
    capacity_bytes: int = MAX_COUNT
    overflow: str = Overflow.SPILL
    filter: str = ""
    retention: int | None = None
    """Unsettled messages leave after this long; None: never."""
    retain_acked: bool = True
    prefetch: int | None = None
    """The default limit of unsettled messages a consumer; None: no limit."""
    letter: tuple[str, str] | None = None
    """(subscription, project) for Google's attributes of its dead letters; None: they have only Penstock's."""
    exactly_once: bool = False
    """Whether consumers are notified of every late ack."""

    def delay(self, attempt: int) -> int:
        """The delay after the failure of delivery number `attempt`."""
        return exponential(attempt, *self.backoff) if self.backoff else 0


def subscription_policy(options: SubscriptionOptions, *, durable: bool) -> Policy:
    """The policy of a subscription."""
    dead, flow = options.dead_letter_policy, options.flow_control or FlowControl()
    return Policy(
        ack_deadline=micros(options.ack_deadline_seconds, "ack_deadline_seconds"),
        ordered=options.message_ordering,
        backoff=_backoff(options.retry_policy),
        max_attempts=dead.max_delivery_attempts if dead else None,
        dead_letter_topic=dead.dead_letter_topic if dead else None,
        flow_messages=flow.max_messages,
        flow_bytes=flow.max_bytes,
        capacity_messages=options.max_messages,
        capacity_bytes=options.max_bytes,
        overflow=options.overflow or (Overflow.SPILL if durable else Overflow.DISCARD),
        filter=options.filter,
        retention=micros(options.message_retention_duration, "message_retention_duration"),
        retain_acked=options.retain_acked_messages,
        exactly_once=options.exactly_once,
    )


def queue_policy(config: QueueConfig) -> Policy:
    """The policy of a work queue."""
    return Policy(
        ack_deadline=micros(config.ack_deadline_secs, "ack_deadline_secs"),
        backoff=_backoff(config.retry_policy),
        max_attempts=config.max_retries + 1,
        dead_letter_size=config.dead_letter_max_size if config.dead_letter_enabled else 0,
        capacity_messages=config.max_depth,
        overflow=config.overflow,
        prefetch=config.default_prefetch,
    )


def check_ack_deadline(value: object, name: str) -> int:
    """The length of one lease: positive, a day at most."""
    return micros(value, name, minimum=1e-3, maximum=DAY // SECOND)


def check_count(value: object, name: str, minimum: int, maximum: int = MAX_COUNT) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        wanted = f"an integer, {minimum} or more" if maximum == MAX_COUNT else f"an integer from {minimum} to {maximum}"
        raise InvalidArgument.of(name, value, wanted)
    return int(value)


def check_flag(value: object, name: str) -> bool:
    """Check a real bool: "false" in a configuration file must not mean True."""
    if not isinstance(value, bool):
        raise InvalidArgument.of(name, value, "True or False")
    return value


_OVERFLOWS = "'discard', 'reject' or 'spill'"


def check_overflow(value: object) -> None:
    """Check what happens when a queue is full: one of the three names, or None for the broker's default."""
    if value is not None and (not isinstance(value, str) or value not in tuple(Overflow)):
        raise InvalidArgument.of("overflow", value, _OVERFLOWS)


def _backoff(policy: RetryPolicy | None) -> tuple[int, int] | None:
    if policy is None:
        return None
    return micros(policy.minimum_backoff, "minimum_backoff"), micros(policy.maximum_backoff, "maximum_backoff")


def as_plain(settings: Settings) -> Settings:
    """Settings as they are stored: subclasses of str, int and float (mostly enums) become plain values."""
    plain: dict[str, Any] = {field.name: _plain_value(getattr(settings, field.name)) for field in fields(settings)}
    return replace(settings, **plain)


def changed(settings: Settings, changes: Mapping[str, object], *, fixed: Collection[str] = ()) -> Settings:
    """Settings with some of them changed by name, also in the form of a wire format; those that are `fixed` cannot change.

    If a policy is a mapping, only its keys change.
    """
    names = [field.name for field in fields(settings)]
    known = ", ".join(name for name in names if name not in fixed)
    if not changes:
        raise InvalidArgument("no change is given", hint=f"name at least one of {known}")
    for name in changes:
        if name in fixed:
            raise InvalidArgument(f"{name} cannot be changed after the creation", hint=f"what can be changed: {known}")
        if name not in names:
            raise InvalidArgument(f"unknown setting {short_repr(name)}, expected one of {known}")
    merged = by_name(settings)
    for name, value in changes.items():
        policy = merged[name]
        merged[name] = {**by_name(policy), **value} if is_dataclass(policy) and isinstance(value, Mapping) else value
    return converted(merged, type(settings), "changes")


def by_name(settings: Any) -> dict[str, Any]:
    """The settings as a dict by name."""
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def converted(value: object, kind: type[T], name: str) -> T:
    """Convert a value to its type, from an instance of that type or from the form that it has on a wire."""
    try:
        return msgspec.convert(msgspec.to_builtins(value), kind)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:  # msgspec.ValidationError is a ValueError
        raise InvalidArgument(f"invalid {name}: {error}") from None


def _plain_value(value: object) -> object:
    match value:
        case str():
            return plain_text(value)
        case bool():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case RetryPolicy():
            return as_plain(value)
        case DeadLetterPolicy():
            return as_plain(value)
        case FlowControl():
            return as_plain(value)
        case _:
            return value


ROUTER_QUEUE = QueueConfig(max_depth=10_000_000, max_retries=1_000_000, dead_letter_max_size=1_000_000)
"""Of a work queue that a router makes: how often a message is tried is the router's to decide."""
