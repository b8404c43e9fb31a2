"""What is told to a NATS consumer of its messages, collected and sent together; and which of it a lost connection puts in doubt.

The subject that settles a delivery says which message it is: its number in the stream and the time it was stored. A number alone
may come again, when a stream is made anew or a server has lost the end of one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from penstock.router.sources.nats_jetstream import NANOSECONDS

REMEMBERED = 100_000
"""Acks that are doubted when the connection is lost: a server that is killed forgets what it did in its last seconds."""


class Delivery(msgspec.Struct, frozen=True):
    """A message, as the subject that settles it says."""

    count: int
    """How often it was handed out."""
    sequence: int
    stored: bytes

    @property
    def key(self) -> str:
        """The same for every delivery of this message, and for no other message."""
        return f"{self.sequence}.{self.stored.decode()}"


def delivery_of(reply: bytes) -> Delivery:
    """`$JS.ACK.<stream>.<consumer>.<count>.<sequence>.<delivery>.<stored>.<pending>`, or with domain and account before that.

    ValueError or IndexError when it is neither.
    """
    words = reply.split(b".")
    start = 4 if len(words) == 9 else 6
    return Delivery(int(words[start]), int(words[start + 1]), words[start + 3])


class Outbox:
    """Collects; whoever owns it is called once when there is something, and then takes it."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self._is_due = False
        self._acks: list[bytes] = []
        self._naks: list[tuple[int, bytes]] = []
        self._leases: list[bytes] = []
        self._acked: deque[bytes] = deque(maxlen=REMEMBERED)

    def ack(self, reply: bytes) -> None:
        """The message is done with."""
        self._acks.append(reply)
        self._acked.append(reply)
        if not self._is_due:
            self._due()

    def nak(self, reply: bytes, delay: int = 0) -> None:
        """The message is to be handed out again after so many seconds."""
        self._naks.append((delivery_of(reply).sequence, _nak(reply, delay)))
        self._due()

    def extend(self, reply: bytes, seconds: int = 0) -> None:
        """The message's lease is to begin anew; with seconds: to run for so long, whatever the consumer's leases are.

        The latter is a `-NAK` with a delay: to the server it means no more than when the message is to be handed out again, if it
        is not acked before.
        """
        self._leases.append(_nak(reply, seconds) if seconds else b"PUB %b 4\r\n+WPI\r\n" % reply)
        self._due()

    def take(self) -> bytes:
        """The commands for everything that was told. Naks are in the stream's order: the server goes by the order it hears."""
        self._is_due = False
        parts = self._leases
        parts += (nak for _, nak in sorted(self._naks))
        if self._acks:
            parts += (b"PUB ", b" 4\r\n+ACK\r\nPUB ".join(self._acks), b" 4\r\n+ACK\r\n")
        commands = b"".join(parts)
        self._leases, self._naks, self._acks = [], [], []
        return commands

    def doubted(self) -> Iterator[str]:
        """Keys of messages that were acked lately: the connection is lost, the server may not know it."""
        while self._acked:
            yield delivery_of(self._acked.popleft()).key

    def forget_after(self, last: int) -> None:
        """Numbers above this one stand for other messages now, or for none."""
        self._acks = [reply for reply in self._acks if delivery_of(reply).sequence <= last]
        self._naks = [nak for nak in self._naks if nak[0] <= last]
        self._leases = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be sent."""
        return not (self._acks or self._naks or self._leases)

    def _due(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._on_first()


def _nak(reply: bytes, delay: int) -> bytes:
    command = b'-NAK {"delay": %d}' % (delay * NANOSECONDS) if delay > 0 else b"-NAK"
    return b"PUB %b %d\r\n%b\r\n" % (reply, len(command), command)
