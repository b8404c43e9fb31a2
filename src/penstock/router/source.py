"""Sources of messages: the interface that every kind of queue implements, and how a queue's URI becomes a source.

    returned by `poll` ──┬── ack      removed from the queue
                         ├── nack     redelivered when the delay is over
                         ├── extend   not redelivered before `seconds` from now
                         └── neither  redelivered when its lease ends (see `lease_seconds`), or its source is stopped

Settling never waits and never raises: a source collects the settlements of one turn of the loop and sends them together. It
retries what failed; if a message is redelivered after its ack failed, it acks the message again and does not return it from
`poll` (`core.tracker.LateAcks` remembers). `flush` returns when all settlements so far are carried out or given up.

A source belongs to one event loop. Several tasks may call `poll` at once. One conformance suite tests all sources.

The scheme of a URI names the module in `sources/` that opens it: a new kind of queue is one file.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from penstock.clock import Clock
from penstock.errors import InvalidArgument
from penstock.router import sources
from penstock.router.core.config import QueueConfig, shown_uri
from penstock.router.core.message import SourceMessage

if TYPE_CHECKING:
    from penstock.router.sources.penstock import LocalQueues, RemoteQueues


class QueueDepth(msgspec.Struct, frozen=True):
    """The number of messages in a queue."""

    pending: int
    """Messages that can be delivered."""
    not_visible: int
    """Messages that are delivered, or delayed."""


class Source(Protocol):
    """One queue at one server."""

    lease_seconds: float | None
    """How long after `poll` or `extend` an unsettled message is redelivered; None: not while connected."""

    async def start(self) -> None:
        """Connect, and find the queue.

        Unavailable if the server cannot be reached (try again), FailedPrecondition or NotFound if the queue cannot be used in its
        present state. Messages that an earlier run of this router left unsettled are delivered before new ones, in order, as far
        as the server allows.
        """

    async def stop(self) -> None:
        """Accept no more messages, send the settlements, release unsettled messages at once and in order, and close.

        Waiting polls return nothing. Safe to call twice, and before a start.
        """

    @property
    def is_healthy(self) -> bool:
        """Whether it is connected, as far as it knows."""

    async def poll(self, want: int, wait: float) -> Sequence[SourceMessage]:
        """Up to `want` messages, in the queue's order, as soon as there is one; nothing after `wait` seconds.

        A server's limits may reduce both values. Unavailable if the server cannot be reached: the next call connects again.
        """

    def ack(self, received: SourceMessage) -> None:
        """The message is finished."""

    def nack(self, received: SourceMessage, delay: int) -> None:
        """Redeliver the message after this many seconds; 0: at once, in its old place if the server can."""

    def extend(self, received: SourceMessage, seconds: int) -> None:
        """The message is still being processed: its lease runs for this many seconds from now."""

    def set_lease(self, seconds: int) -> None:
        """Lease messages for `seconds` from now on, if the router and not the server decides that."""

    async def flush(self) -> None:
        """Return when all settlements so far are carried out, or given up."""

    async def depth(self) -> QueueDepth | None:
        """The depth of the queue; None if the server does not report it."""


class CountsAttempts(Protocol):
    """A source whose queue counts the attempts of a message, and dead-letters it after a number of them."""

    def refuse(self, received: SourceMessage, delay: int) -> None:
        """As `nack`, but the message was not tried: there was no room for it."""


class PollsAtServer(Protocol):
    """A source whose polls continue at the server after they are cancelled, and may take messages that nobody receives."""

    polls_at_server: bool


class AcceptsMessages(Protocol):
    """A source whose queue accepts messages from here, to try a router."""

    async def send(self, body: bytes, group: str) -> str:
        """Put a message on the queue; returns the queue's own id of it when it is stored safely."""


class KeepsDeadLetters(Protocol):
    """A source whose queue has its own list of dead letters."""

    async def dead_letter(self, received: SourceMessage, reason: str, error: str, attempts: int) -> None:
        """Move the message to the dead letters, after `attempts` of this router; returns when it is stored safely."""


_ALIASES: Final = {"http": "sqs", "https": "sqs", "penstocks": "penstock", "tls": "nats"}
"""An SQS queue has the URL that the service assigned; a Penstock server may use TLS; NATS uses `tls:` for that."""
_SCHEME: Final = re.compile(r"([a-z][a-z0-9]*):", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """What sources need in addition to their queue's configuration."""

    environment: Mapping[str, str]
    clock: Clock
    local: LocalQueues | None = None
    """The broker in this process, if there is one."""
    remote: RemoteQueues | None = None
    """Opens queues of other Penstock servers."""
    sqs_max_messages: int = 10
    """The number of messages that a poll of SQS asks for, 1 to 10."""
    sqs_wait_seconds: int = 20
    """How long a poll of SQS waits, 0 to 20."""


class _Module(Protocol):
    def open_source(self, config: QueueConfig, context: SourceContext) -> Source: ...


def open_source(config: QueueConfig, context: SourceContext) -> Source:
    """The source of a queue, not started; InvalidArgument for a URI with an unknown scheme."""
    found = _SCHEME.match(config.uri)
    module = _module(found[1].lower()) if found is not None else None
    if module is None:
        raise InvalidArgument.of(
            f"the URI of queue {shown_uri(config.name)!r}",
            shown_uri(config.uri),
            f"one that begins with {', '.join(f'{scheme}:' for scheme in schemes())}",
        )
    return module.open_source(config, context)


def schemes() -> list[str]:
    names = [module.name for module in pkgutil.iter_modules(sources.__path__)]
    return sorted([*(name for name in names if _module(name) is not None), *_ALIASES])


def _module(scheme: str) -> _Module | None:
    """The module that opens the sources of a scheme; None if there is none."""
    name = f"{sources.__name__}.{_ALIASES.get(scheme, scheme)}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None
    return module if hasattr(module, "open_source") else None
