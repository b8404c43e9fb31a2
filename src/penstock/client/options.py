"""Options of subscribers and publishers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypedDict

from penstock.client.core.batching import BatchLimits
from penstock.durations import SECOND, micros
from penstock.errors import InvalidArgument
from penstock.values.message import MAX_MESSAGE_BYTES
from penstock.values.policy import (
    MAX_ORDERING_WINDOW,
    DeadLetterPolicy,
    Duration,
    FlowControl,
    RetryPolicy,
    check_count,
    check_flag,
)

MAX_MESSAGES = 1_000
MAX_BYTES = 100 * 1024 * 1024
MAX_BATCH_MESSAGES = 1_000
DAY_SECONDS = 86_400


class CloseBehavior(StrEnum):
    """What a closing stream does with unsettled messages."""

    WAIT = "wait"
    """Wait until they are settled or their leases expire."""
    NACK = "nack"
    """Requeue them at once, so that others get them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberOptions:
    """The options of a MessageStream. Durations are seconds or `timedelta`."""

    flow_control: FlowControl = field(default_factory=FlowControl)
    """Limits of unsettled messages; None in it means 1,000 messages or 100 MiB."""
    ack_deadline: Duration = 60
    """How long a lease lasts unless it is extended."""
    message_ordering: bool = False
    """Deliver messages of one ordering key one at a time, in order. The subscription must have been created with it."""
    ordering_window: int = 1
    """Messages of one ordering key that the stream may hold. They are still handled one at a time, in order."""
    max_streams: int = 5
    """Concurrent streams. They share the limits, and the messages evenly."""
    high_water_mark: int | None = None
    """Messages that are held for a busy `async for`; None: as many as `flow_control` allows. Handlers
    take every message at once, so that none is held for them."""
    max_extension: Duration = 3_600
    """How long after its delivery a lease expires at the latest, however long its handler runs."""
    close_behavior: CloseBehavior = CloseBehavior.WAIT
    close_timeout: Duration | None = None
    """How long a close waits for unsettled messages before it requeues them; None: until their leases expire."""

    def __post_init__(self) -> None:
        if not isinstance(self.flow_control, FlowControl):
            raise InvalidArgument.of("flow_control", self.flow_control, "a FlowControl")
        micros(self.ack_deadline, "ack_deadline", minimum=1e-3, maximum=600)
        check_flag(self.message_ordering, "message_ordering")
        check_count(self.ordering_window, "ordering_window", 1, MAX_ORDERING_WINDOW)
        check_count(self.max_streams, "max_streams", 1, 100)
        if self.high_water_mark is not None:
            check_count(self.high_water_mark, "high_water_mark", 0)
        micros(self.max_extension, "max_extension", maximum=366 * 86_400)
        if self.close_timeout is not None:
            micros(self.close_timeout, "close_timeout", maximum=366 * 86_400)
        try:
            object.__setattr__(self, "close_behavior", CloseBehavior(self.close_behavior))
        except ValueError:
            raise InvalidArgument.of("close_behavior", self.close_behavior, "'wait' or 'nack'") from None

    @property
    def max_messages(self) -> int:
        """The limit of unsettled messages."""
        return self.flow_control.max_messages or MAX_MESSAGES

    @property
    def max_bytes(self) -> int:
        """The limit of unsettled bytes."""
        return self.flow_control.max_bytes or MAX_BYTES


class StreamKeywords(TypedDict, total=False):
    """The fields of `SubscriberOptions` as keywords. None leaves a field unchanged."""

    flow_control: FlowControl | None
    ack_deadline: Duration | None
    message_ordering: bool
    ordering_window: int | None
    max_streams: int | None
    high_water_mark: int | None
    max_extension: Duration | None
    close_behavior: CloseBehavior | Literal["wait", "nack"] | None
    close_timeout: Duration | None


class SubscriptionKeywords(StreamKeywords, total=False):
    """The keywords of a subscription: how its messages are received, and how `create` creates it."""

    ack_deadline_seconds: Duration
    """Deprecated here: use `ack_deadline`."""
    retry_policy: RetryPolicy | None
    dead_letter_policy: DeadLetterPolicy | None
    message_retention_duration: Duration
    retain_acked_messages: bool
    filter: str
    max_messages: int
    max_bytes: int
    overflow: str | None
    exactly_once: bool


class OnLimit(StrEnum):
    """What happens to a message beyond the limits of flow control."""

    BLOCK = "block"
    """It waits, and is sent when there is room."""
    ERROR = "error"
    """Publishing it raises ResourceExhausted."""
    IGNORE = "ignore"
    """It is sent anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherFlowControl:
    """The limits of unconfirmed messages. A single message is always accepted."""

    max_outstanding_messages: int = 10_000
    max_outstanding_bytes: int = 100 * 1024 * 1024
    on_limit: OnLimit = OnLimit.BLOCK

    def __post_init__(self) -> None:
        check_count(self.max_outstanding_messages, "flow_control.max_outstanding_messages", 1)
        check_count(self.max_outstanding_bytes, "flow_control.max_outstanding_bytes", 1)
        try:
            object.__setattr__(self, "on_limit", OnLimit(self.on_limit))
        except ValueError:
            raise InvalidArgument.of("flow_control.on_limit", self.on_limit, "'block', 'error' or 'ignore'") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """How a topic batches messages. Durations are seconds."""

    max_messages: int = 100
    """A batch is sent when it has this many messages; 1 sends each message alone."""
    max_bytes: int = 1024 * 1024
    """A batch is sent when it has this many bytes. A larger message is sent alone."""
    max_seconds: float = 0.01
    """How long messages gather while another batch is in flight. If none is, they do not wait."""
    flow_control: PublisherFlowControl = field(default_factory=PublisherFlowControl)
    give_up_seconds: float = 60
    """How long a batch is retried before its messages fail, and how long a close waits for unconfirmed messages."""

    def __post_init__(self) -> None:
        check_count(self.max_messages, "max_messages", 1, MAX_BATCH_MESSAGES)
        check_count(self.max_bytes, "max_bytes", 1, MAX_MESSAGE_BYTES)
        # Both may be given as timedelta, as everywhere.
        object.__setattr__(self, "max_seconds", micros(self.max_seconds, "max_seconds", maximum=60) / SECOND)
        give_up = micros(self.give_up_seconds, "give_up_seconds", minimum=1e-3, maximum=DAY_SECONDS)
        object.__setattr__(self, "give_up_seconds", give_up / SECOND)
        if not isinstance(self.flow_control, PublisherFlowControl):
            raise InvalidArgument.of("flow_control", self.flow_control, "a PublisherFlowControl")

    @property
    def limits(self) -> BatchLimits:
        """The same, for `core/batching.py`."""
        flow = self.flow_control
        max_wait = micros(self.max_seconds, "max_seconds")
        if flow.on_limit is OnLimit.IGNORE:
            return BatchLimits(self.max_messages, self.max_bytes, max_wait)
        return BatchLimits(
            # A batch must not be larger than the limit of messages in flight.
            min(self.max_messages, flow.max_outstanding_messages),
            min(self.max_bytes, flow.max_outstanding_bytes),
            max_wait,
            flow.max_outstanding_messages,
            flow.max_outstanding_bytes,
            flow.on_limit is OnLimit.ERROR,
        )
