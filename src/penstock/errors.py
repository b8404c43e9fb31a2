"""Every error Penstock raises, as one tree.

    PenstockError
    ├── InvalidArgument (3)        the call itself is wrong; the same call never succeeds
    │   ├── DeadLetterCycle        dead letters would return to the topic that they come from
    │   ├── InvalidAckId           the delivery is settled, expired, replaced or was never made
    │   ├── InvalidFilter          a subscription filter that does not parse, with its position
    │   ├── InvalidPriority
    │   └── TransformFailed        a JavaScript transform threw, or made something that is no message
    ├── NotFound (5)
    │   ├── TopicNotFound · SubscriptionNotFound · SnapshotNotFound
    │   ├── QueueNotFound · MessageNotFound · ConsumerNotFound
    │   └── SchemaNotFound · TokenNotFound · CursorNotFound · PartNotFound · ActorNotFound
    ├── AlreadyExists (6)
    ├── PermissionDenied (7)       the token does not allow this
    ├── ResourceExhausted (8)      transient: room may come back
    │   ├── SubscriptionFull
    │   ├── QueueFull
    │   └── RateLimited            too many calls of one client; `retry_after` says how long to wait
    ├── FailedPrecondition (9)
    │   ├── AckDeadlineExceeded    the lease ran out before the call arrived
    │   ├── AckIdsRefused          some deliveries of an exactly-once subscription are not live any more
    │   ├── BrokerClosed
    │   ├── DataDirectoryInUse
    │   ├── LogInUse               another node owns the log in a database
    │   ├── UnsupportedFormat      the data directory is of a newer version, or has to be migrated first
    │   ├── StreamReplaced         the stream was deleted and recreated since it was read
    │   ├── OpenedBeforeFork       opened by the parent process; a child process must open its own
    │   └── PublishingPaused       a message of this ordering key failed; `resume_publishing` continues
    ├── Aborted (10)               transient: another call changed the same resource at the same time
    ├── OutOfRange (11)            an offset or a time that the log does not hold
    ├── Unimplemented (12)         a command that this API does not know
    │   └── ArrowUnavailable       the server has no pyarrow: its log API is off
    ├── Unavailable (14)           transient
    │   ├── JournalUnavailable     the disk refuses to write; nothing was stored
    │   │   └── LogLost            another node owns the log now; nothing was stored
    │   ├── JournalUncertain       the database did not answer: the call is stored or not, and nobody knows which
    │   └── ServerUnreachable      no connection to the server, and no retries left
    ├── DataLoss (15)
    │   └── CorruptLog             stored bytes are not what was written
    └── Unauthenticated (16)       no token, or one that is unknown, revoked or expired

`code` is the number that specification 000 gives (they are gRPC's), `reason` a stable word for programs, `transient` says
whether the same call may succeed later. `str(error)` says what was wrong; `hint`, also shown under a traceback, says what to
do. Required data is positional, so that every error survives pickle on its way through process pools and Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import ClassVar

from penstock.extras import how_to_install


class PenstockError(Exception):
    """The base class of all errors that Penstock raises on purpose."""

    code: ClassVar[int] = 2
    reason: ClassVar[str] = "unknown"
    transient: ClassVar[bool] = False
    hint: str | None = None

    def __init__(self, *fields: object, hint: str | None = None) -> None:
        super().__init__(*fields)
        advice = hint or self.hint
        if advice:
            self.hint = advice
            self.add_note(advice)

    @property
    def message(self) -> str:
        """The text without the hint, as in the specifications' error objects."""
        return str(self)


# ── the call itself is wrong ────────────────────────────────────────────────────────────────────────────────────────────────


class InvalidArgument(PenstockError):
    """The request can never succeed as it is written."""

    code = 3
    reason = "invalid_argument"

    @classmethod
    def of(cls, name: str, value: object, wanted: str, hint: str | None = None) -> InvalidArgument:
        """An error with the usual text: the argument, its value, and what was expected."""
        return cls(f"{name} is {short_repr(value)}, expected {wanted}", hint=hint)


class InvalidAckId(InvalidArgument):
    """The delivery with this ack id is not live any more, or never existed."""

    reason = "invalid_ack_id"
    hint = "it was settled, expired or was replaced by a redelivery; settle the newest delivery, or set a longer ack deadline"

    def __init__(self, ack_id: object) -> None:
        super().__init__(_kept(ack_id))
        self.ack_id = _kept(ack_id)

    def __str__(self) -> str:
        return f"Invalid ack ID: {short_repr(self.ack_id, bare=True)}"


class DeadLetterCycle(InvalidArgument):
    """Dead letters would return to the topic that they come from."""

    reason = "dead_letter_cycle"
    hint = "choose a dead-letter topic whose own subscriptions do not forward to this one"

    def __init__(self, topics: Sequence[str]) -> None:
        super().__init__([*topics])
        self.topics = [*topics]

    def __str__(self) -> str:
        return f"Dead letters would be forwarded in a cycle: {' -> '.join(self.topics)}"


class InvalidFilter(InvalidArgument):
    """A filter expression that does not parse."""

    reason = "invalid_filter"

    def __init__(self, text: str, position: int, problem: str) -> None:
        super().__init__(text, position, problem)
        self.text = text
        self.position = position
        self.problem = problem

    def __str__(self) -> str:
        return f"Invalid filter at position {self.position}: {self.problem}\n  {self.text}\n  {' ' * self.position}^"


class InvalidPriority(InvalidArgument):
    """A priority outside 0–9."""

    reason = "invalid_priority"
    hint = "9 is the highest priority, 0 the lowest; omit it to use the queue's default"

    def __init__(self, priority: object) -> None:
        super().__init__(_kept(priority))
        self.priority = _kept(priority)
        self.shown = short_repr(priority)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, {"shown": self.shown}

    def __str__(self) -> str:
        return f"Invalid priority: {self.shown}, expected an integer from 0 to 9"


class TransformFailed(InvalidArgument):
    """A transform threw, ran out of time or memory, or returned something that is no message."""

    reason = "transform_failed"

    def __init__(self, function_name: str, problem: str) -> None:
        super().__init__(function_name, problem)
        self.function_name = function_name
        self.problem = problem

    def __str__(self) -> str:
        return f"transform {self.function_name} {self.problem}"


# ── what the call names does not exist ──────────────────────────────────────────────────────────────────────────────────────


class NotFound(PenstockError):
    """A resource that the call names does not exist."""

    code = 5
    reason = "not_found"
    kind: ClassVar[str] = "Resource"
    hint = "create it first, or check the spelling of the name"

    def __init__(self, name: object) -> None:
        super().__init__(_kept(name))
        self.name = _kept(name)

    def __str__(self) -> str:
        return f"{self.kind} not found: {short_repr(self.name, bare=True)}"


class TopicNotFound(NotFound):
    """There is no topic with this name."""

    reason = "topic_not_found"
    kind = "Topic"


class SubscriptionNotFound(NotFound):
    """There is no subscription with this name."""

    reason = "subscription_not_found"
    kind = "Subscription"


class SnapshotNotFound(NotFound):
    """There is no snapshot with this name."""

    reason = "snapshot_not_found"
    kind = "Snapshot"


class QueueNotFound(NotFound):
    """There is no queue with this name."""

    reason = "queue_not_found"
    kind = "Queue"


class MessageNotFound(NotFound):
    """The queue has no such message: none that waits, is leased or is a dead letter."""

    reason = "message_not_found"
    kind = "Message"
    hint = "it was settled already, purged, or never belonged to this queue"


class ConsumerNotFound(NotFound):
    """That consumer does not hold the message, or never consumed."""

    reason = "consumer_not_found"
    kind = "Consumer"
    hint = "settle with the consumer_id that consumed the message, or leave consumer_id out"


class SchemaNotFound(NotFound):
    """There is no schema, or no revision of a schema, with this name."""

    reason = "schema_not_found"
    kind = "Schema"


class TokenNotFound(NotFound):
    """There is no token with this id."""

    reason = "token_not_found"
    kind = "Token"
    hint = "`penstock token list` shows all tokens"


class CursorNotFound(NotFound):
    """There is no cursor with this name."""

    reason = "cursor_not_found"
    kind = "Cursor"


class PartNotFound(NotFound):
    """No part with this name is staged for the write."""

    reason = "part_not_found"
    kind = "Staged part"
    hint = "stage it again: parts are kept for a day after the last part was staged, and until the write is committed or aborted"


class ActorNotFound(NotFound):
    """No actor is registered at the hub with this address."""

    reason = "actor_not_found"
    kind = "Actor"
    hint = "it is not connected, or has another address; `penstock hub actors` lists connected actors"


# ── the call is valid, but is refused in the current state ──────────────────────────────────────────────────────────────────


class AlreadyExists(PenstockError):
    """The name is taken. `difference` names the settings that differ from those of a call with `exist_ok`."""

    code = 6
    reason = "already_exists"

    def __init__(self, kind: str, name: str, difference: str | None = None) -> None:
        fields = (kind, name) if difference is None else (kind, name, difference)
        super().__init__(*fields, hint=None if difference is None else "change it with update(…), or omit the options")
        self.kind = kind
        self.name = name
        self.difference = difference

    def __str__(self) -> str:
        other = f" with other settings: {self.difference}" if self.difference is not None else ""
        return f"{self.kind} already exists: {self.name}{other}"


class PermissionDenied(PenstockError):
    """The caller is authenticated, but is not allowed to do this."""

    code = 7
    reason = "permission_denied"
    hint = "use a token whose verbs, names and project cover it; `penstock token list` shows what each may do"

    def __init__(self, verb: str, name: str) -> None:
        super().__init__(verb, name)
        self.verb = verb
        self.name = name

    def __str__(self) -> str:
        verb = {"publish": "publish to", "consume": "consume from", "metrics": "read metrics of"}.get(self.verb, self.verb)
        return f"this token may not {verb} {short_repr(self.name, bare=True)}"


class ResourceExhausted(PenstockError):
    """A limit is reached; the call changed nothing."""

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
    """A client exceeds its rate limit."""

    reason = "rate_limited"
    hint = "slow down, send batches, or raise the server's rate limit"

    def __init__(self, retry_after: float) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"too many calls, try again in {self.retry_after:.3f} s"


class FailedPrecondition(PenstockError):
    """The system is not in the state that this call requires."""

    code = 9
    reason = "failed_precondition"


class StreamReplaced(FailedPrecondition):
    """The stream with this name is not the one that was read before: it was deleted and recreated."""

    reason = "stream_replaced"
    hint = "start again at offset 0 of the new stream"

    def __init__(self, stream: str, number: int, expected: int) -> None:
        super().__init__(stream, number, expected)
        self.stream = stream
        self.number = number
        self.expected = expected

    def __str__(self) -> str:
        return (
            f"stream {short_repr(self.stream)} was deleted and recreated: its number is {self.number}, expected {self.expected}"
        )


class AckDeadlineExceeded(FailedPrecondition):
    """The lease ran out before it was settled; the message returned to its queue, or died."""

    reason = "ack_deadline_exceeded"
    hint = "settle earlier, or consume with a longer ack_deadline"

    def __init__(self, message_id: str) -> None:
        super().__init__(message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return f"Ack deadline exceeded: {self.message_id}"


class AckIdsRefused(FailedPrecondition):
    """Some ack ids of an exactly-once subscription are not valid any more; `failures` says which, and why."""

    reason = "ack_ids_refused"
    hint = "settle the newest delivery of each message, or set a longer ack deadline"

    def __init__(self, failures: dict[str, str]) -> None:
        super().__init__(failures)
        self.failures = failures

    def __str__(self) -> str:
        return f"{len(self.failures)} ack ids are settled, expired or unknown; the details name them"


class BrokerClosed(FailedPrecondition):
    """The broker was closed."""

    reason = "broker_closed"
    hint = "open a new one on the same data directory; it has everything that was confirmed"

    def __str__(self) -> str:
        return "the broker is closed"


class OpenedBeforeFork(FailedPrecondition):
    """A broker, a journal or a client that the parent process opened before the fork."""

    reason = "opened_before_fork"
    hint = "open one after the fork, or let all processes connect to one server"

    def __init__(self, what: str, process: int) -> None:
        super().__init__(what, process)
        self.what = what
        self.process = process

    def __str__(self) -> str:
        return f"{self.what} belongs to process {self.process}, which opened it before this process was forked"


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


class LogInUse(FailedPrecondition):
    """Another broker, here or on another machine, owns the log in this database."""

    reason = "log_in_use"
    hint = "stop that server, connect to it instead, or use another database"

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(path, holder)
        self.path = path
        self.holder = holder

    def __str__(self) -> str:
        return f"the log in {self.path!r} is in use by {self.holder}"


class UnsupportedFormat(FailedPrecondition):
    """The data directory was written by a newer version, or by an older one and must be migrated by a broker first."""

    reason = "unsupported_format"

    def __init__(self, path: str, found: int, newest: int) -> None:
        super().__init__(path, found, newest)
        self.path = path
        self.found = found
        self.newest = newest
        self.hint = (
            "use the version that wrote it or a newer one, or restore a backup from before the upgrade"
            if found > newest
            else "make a backup with the version that wrote it, then start a server or broker of this version on it to migrate it"
        )
        self.add_note(self.hint)

    def __str__(self) -> str:
        age = "a newer" if self.found > self.newest else "an older"
        return f"data directory {self.path!r} has format {self.found} of {age} version; this version reads format {self.newest}"


class PublishingPaused(FailedPrecondition):
    """An earlier message with this ordering key could not be published, and later ones must not overtake it."""

    reason = "publishing_paused"
    hint = "call topic.resume_publishing(ordering_key), then publish the failed messages again or drop them"

    def __init__(self, ordering_key: str) -> None:
        super().__init__(ordering_key)
        self.ordering_key = ordering_key

    def __str__(self) -> str:
        return f"Publishing paused for ordering key: {self.ordering_key}"


class Aborted(PenstockError):
    """Another call changed the same resource at the same time; read it again and repeat the change."""

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
    """The command or option is not supported by this API."""

    code = 12
    reason = "unimplemented"


class ArrowUnavailable(Unimplemented):
    """The server has no pyarrow, so its log API is off."""

    reason = "arrow_unavailable"
    hint = f"on the server's machine: {how_to_install('arrow')}, then restart the server"

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"the server cannot read Arrow: {self.problem}"


class Unauthenticated(PenstockError):
    """The caller sent no token, or one that is unknown, revoked or expired."""

    code = 16
    reason = "unauthenticated"
    hint = "send `Authorization: Bearer TOKEN`; `penstock token create` makes one"

    def __init__(self, problem: str = "no token was sent") -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"not authenticated: {self.problem}"


# ── something outside the call has failed ───────────────────────────────────────────────────────────────────────────────────


class Unavailable(PenstockError):
    """Temporarily not possible; the same call may succeed later."""

    code = 14
    reason = "unavailable"
    transient = True


class JournalUnavailable(Unavailable):
    """The journal cannot write. This call stored nothing. Consuming still works; publishing works again when writing does."""

    reason = "journal_unavailable"
    hint = "free disk space or repair the device; the broker retries by itself"

    def __init__(self, path: str, problem: str, hint: str | None = None) -> None:
        super().__init__(path, problem, hint=hint)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"cannot write to the journal {self.path!r}: {self.problem}; nothing was stored"


class LogLost(JournalUnavailable):
    """Another node has taken over the log: this one writes nothing any more. This call stored nothing."""

    reason = "log_lost"
    hint = "repeat the call at the node that owns the log now"


class JournalUncertain(Unavailable):
    """The database was lost while it stored this call: the call is stored as a whole, or not at all, and nobody knows which."""

    reason = "journal_uncertain"
    hint = (
        "publish again with the same producer_id and sequence: what was stored is not stored twice; our client does so by itself"
    )

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"the outcome of a write to the journal {self.path!r} is unknown: {self.problem}"


class ServerUnreachable(Unavailable):
    """The server could not be reached within the time that the client may try."""

    reason = "server_unreachable"

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(address, problem, hint=_connection_advice(address, problem))
        self.address = address
        self.problem = problem

    def __str__(self) -> str:
        return f"no connection to the server at {self.address}: {self.problem}"


def _connection_advice(address: str, problem: str) -> str:
    """The hint for a failed connection, by its cause: a server that answers need not be started."""
    if "mismatch" in problem:
        return "use a host name that the server's certificate contains"
    if "certificate has expired" in problem:
        return "renew the server's certificate, and check the clock of this machine"
    if "CERTIFICATE_VERIFY_FAILED" in problem:
        return "set SSL_CERT_FILE to a file with the certificate of the authority that signed the server's certificate"
    if "WRONG_VERSION_NUMBER" in problem or "not speak TLS" in problem:
        scheme = address.partition("://")[0]
        plain = scheme.removesuffix("s")
        return f"the server does not use TLS on that port: write the address with {plain}:// instead of {scheme}://"
    if "[SSL" in problem:
        return "compare the TLS settings of both sides: `openssl s_client -connect HOST:PORT` shows those of the server"
    if "speak HTTP" in problem or ("server disconnected" in problem.lower() and not address.startswith(("https:", "wss:"))):
        return "use the server's HTTP port; if the server uses TLS, write the address with https://"
    if "native protocol" in problem:
        return "use the server's native port, or write the address with http:// so that the client asks the server for it"
    if address.startswith("penstock:") and "closed the connection" in problem:
        return "if the server uses TLS, write the address with penstocks://"
    return "start it with `penstock serve`, or check the spelling of the address"


class DataLoss(PenstockError):
    """Stored data is damaged."""

    code = 15
    reason = "data_loss"


class CorruptLog(DataLoss):
    """The stored bytes are not those that were written. Nothing was changed or repaired."""

    reason = "corrupt_log"
    hint = (
        "restore the data directory from a backup, or move it away to start empty; Penstock never repairs or deletes it by itself"
    )

    def __init__(self, path: str, where: str, problem: str) -> None:
        super().__init__(path, where, problem)
        self.path = path
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"corrupt log {self.path!r}: {self.where}: {self.problem}"


# ── values and errors as text ───────────────────────────────────────────────────────────────────────────────────────────────


def short_repr(value: object, *, bare: bool = False) -> str:
    """Return a repr of the value for error texts: at most one line, also if its own `__repr__` is long or fails."""
    if isinstance(value, str | bytes):
        value = value[:121]  # a repr of megabytes takes time, and is cut anyway
    if bare and isinstance(value, str):
        text = value
    else:
        try:
            text = repr(value)
        except Exception:  # noqa: BLE001  # a broken repr must not hide the error that shows it
            text = f"<{type(value).__name__}>"
    return text if len(text) <= 120 else f"{text[:117]}..."


def _kept(value: object) -> object:
    """Return the value in a form that an error can keep: one that can be pickled."""
    return value if value is None or type(value) in {str, int, float, bytes, bool} else short_repr(value)


def from_wire(reason: str, fields: Sequence[object], text: str, hint: str | None) -> PenstockError:
    """Recreate an error of another process: of the type with this `reason`, or with the text alone if the type is unknown."""
    try:
        error = _kinds()[reason](*fields)
    except (KeyError, TypeError):
        error = PenstockError(text)
    if hint and hint != error.hint:
        error.hint = hint
        error.add_note(hint)
    return error


@cache
def _kinds() -> dict[str, type[PenstockError]]:
    found: dict[str, type[PenstockError]] = {}
    rest: list[type[PenstockError]] = [PenstockError]
    while rest:
        kind = rest.pop()
        found.setdefault(kind.reason, kind)
        rest += kind.__subclasses__()
    return found
