"""The call is well-formed, and is not done as things are."""

from __future__ import annotations

from penstock.errors.root import PenstockError
from penstock.errors.short_repr import shown


class AlreadyExists(PenstockError):
    """The name is taken."""

    code = 6
    reason = "already_exists"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name)
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        return f"{self.kind} already exists: {self.name}"


class PermissionDenied(PenstockError):
    """The caller is known, and may not do this."""

    code = 7
    reason = "permission_denied"
    hint = "use a token whose verbs, names and project cover it; `penstock token list` shows what each may do"

    def __init__(self, verb: str, name: str) -> None:
        super().__init__(verb, name)
        self.verb = verb
        self.name = name

    def __str__(self) -> str:
        verb = {"publish": "publish to", "consume": "consume from", "metrics": "read metrics of"}.get(self.verb, self.verb)
        return f"this token may not {verb} {shown(self.name, bare=True)}"


class ResourceExhausted(PenstockError):
    """A limit is reached; nothing of the call was done."""

    code = 8
    reason = "resource_exhausted"
    transient = True


class SubscriptionFull(ResourceExhausted):
    """A subscription with overflow='reject' has no room, so the publish was refused as a whole."""

    reason = "subscription_full"
    hint = "let its consumers catch up, raise max_messages/max_bytes, or choose overflow='spill'"

    def __init__(self, subscription: str, topic: str) -> None:
        super().__init__(subscription, topic)
        self.subscription = subscription
        self.topic = topic

    def __str__(self) -> str:
        return f"Subscription is full: {self.subscription}; nothing was published to topic {self.topic!r}"


class QueueFull(ResourceExhausted):
    """The queue holds max_depth messages."""

    reason = "queue_full"
    hint = "let its consumers catch up, or raise max_depth"

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def __str__(self) -> str:
        return f"Queue is full: {self.queue}"


class RateLimited(ResourceExhausted):
    """One client calls more often than it may."""

    reason = "rate_limited"
    hint = "slow down, send batches, or raise the server's rate limit"

    def __init__(self, retry_after: float) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"too many calls, try again in {self.retry_after:.3f} s"


class FailedPrecondition(PenstockError):
    """The system is not in the state this call needs."""

    code = 9
    reason = "failed_precondition"


class StreamReplaced(FailedPrecondition):
    """The stream of that name is not the one that was read before: it was deleted and made again."""

    reason = "stream_replaced"
    hint = "start again at offset 0 of the new stream"

    def __init__(self, stream: str, number: int, expected: int) -> None:
        super().__init__(stream, number, expected)
        self.stream = stream
        self.number = number
        self.expected = expected

    def __str__(self) -> str:
        return f"stream {shown(self.stream)} was deleted and made again: its number is {self.number}, expected {self.expected}"


class AckDeadlineExceeded(FailedPrecondition):
    """The lease ran out before it was settled; the message went back to its queue, or died."""

    reason = "ack_deadline_exceeded"
    hint = "settle sooner, or consume with a longer ack_deadline"

    def __init__(self, message_id: str) -> None:
        super().__init__(message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return f"Ack deadline exceeded: {self.message_id}"


class AckIdsRefused(FailedPrecondition):
    """Some ack ids of an exactly-once subscription are not good any more; `failures` says which and why."""

    reason = "ack_ids_refused"
    hint = "settle the newest delivery of each message, or ask for a longer ack deadline"

    def __init__(self, failures: dict[str, str]) -> None:
        super().__init__(failures)
        self.failures = failures

    def __str__(self) -> str:
        return f"{len(self.failures)} ack ids are settled, have run out or were never given; the details name them"


class BrokerClosed(FailedPrecondition):
    """The broker was closed."""

    reason = "broker_closed"
    hint = "open a new one on the same data directory; everything confirmed is there"

    def __str__(self) -> str:
        return "the broker is closed"


class OpenedBeforeFork(FailedPrecondition):
    """A broker, a journal or a client that the parent of this process opened before it forked it."""

    reason = "opened_before_fork"
    hint = "open one after the fork, or let every process connect to one server"

    def __init__(self, what: str, process: int) -> None:
        super().__init__(what, process)
        self.what = what
        self.process = process

    def __str__(self) -> str:
        return f"{self.what} belongs to process {self.process}, which opened it before it forked this process"


class DataDirectoryInUse(FailedPrecondition):
    """Another broker, here or in another process, has the data directory open."""

    reason = "data_directory_in_use"
    hint = "close that broker, connect to it instead, or choose another data directory"

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(path, holder)
        self.path = path
        self.holder = holder

    def __str__(self) -> str:
        return f"data directory {self.path!r} is in use by {self.holder}"


class PublishingPaused(FailedPrecondition):
    """An earlier message of this ordering key could not be published: later ones must not overtake it."""

    reason = "publishing_paused"
    hint = "publish what failed again, or give it up, after topic.resume_publishing(ordering_key)"

    def __init__(self, ordering_key: str) -> None:
        super().__init__(ordering_key)
        self.ordering_key = ordering_key

    def __str__(self) -> str:
        return f"Publishing paused for ordering key: {self.ordering_key}"


class Aborted(PenstockError):
    """Somebody else changed the same thing at the same moment; read it again and repeat the change."""

    code = 10
    reason = "aborted"
    transient = True


class OutOfRange(PenstockError):
    """An offset that the log no longer holds, or does not hold yet."""

    code = 11
    reason = "out_of_range"

    def __init__(self, stream: str, offset: int, earliest: int, latest: int) -> None:
        super().__init__(stream, offset, earliest, latest)
        self.stream = stream
        self.offset = offset
        self.earliest = earliest
        self.latest = latest

    def __str__(self) -> str:
        return (
            f"offset {self.offset} of {self.stream!r} is not in the log, which holds {self.earliest} to {self.latest} (exclusive)"
        )


class Unimplemented(PenstockError):
    """A command or option that is not known here."""

    code = 12
    reason = "unimplemented"


class ArrowUnavailable(Unimplemented):
    """The server has no pyarrow, so its log API is off."""

    reason = "arrow_unavailable"
    hint = "on the server's machine: pip install 'penstock[arrow]', and start the server again"

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"the server cannot read Arrow: {self.problem}"


class Unauthenticated(PenstockError):
    """Nobody knows who calls: there is no token, or one that is unknown, revoked or expired."""

    code = 16
    reason = "unauthenticated"
    hint = "send `Authorization: Bearer TOKEN`; `penstock token create` makes one"

    def __init__(self, problem: str = "no token was sent") -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"not authenticated: {self.problem}"
