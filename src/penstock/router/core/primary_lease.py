"""Whether one of several routers may act as the primary, according to its own clock and the answers of the lock's server.

    waiting ──acquired──> settling ──the server is up for a TTL──> held ──renewed──> held
       ^                     │                                       │
       └───── refused, or no answer until a margin before the TTL ends ──────┘

The server releases the lock a TTL after it executed a request, and it never does that before the request was sent. So the lock is
certainly ours until `sent + TTL`, and no router acts on it after `sent + TTL - margin`: two routers never hold it at the same
instant, whatever was lost or delayed. A server that lost the lock in a restart may grant it to a second router while the first
does not know yet: so a router that gets the lock within a TTL of the server's start waits until that time is over.

Instants are of a monotonic clock. This cannot detect a replica of the server that takes over without the lock, a machine that was
suspended (its clock stands still), or a lock deleted by hand. In these cases the next renewal ends the hold.
"""

from __future__ import annotations

from penstock.durations import SECOND
from penstock.errors import InvalidArgument


class Lease:
    """One router's hold on the lock."""

    def __init__(self, *, ttl: int, margin: int, renew_every: int, retry_every: int) -> None:
        if not 0 < margin < ttl:
            raise InvalidArgument.of("margin", margin / SECOND, f"seconds, more than 0 and less than the TTL of {ttl / SECOND:g}")
        if not 0 < renew_every < ttl - margin:
            raise InvalidArgument.of(
                "renew_every",
                renew_every / SECOND,
                f"seconds, more than 0 and less than {(ttl - margin) / SECOND:g}: TTL - margin",
            )
        if retry_every <= 0:
            raise InvalidArgument.of("retry_every", retry_every / SECOND, "seconds, more than 0")
        self.ttl = ttl
        self._usable = ttl - margin
        self._renew_every = renew_every
        self._retry_every = retry_every
        self._begins = 0
        self._ends = 0
        self.next_at = 0
        """When to ask the server next."""

    def is_ours(self, now: int) -> bool:
        """Whether the lock is ours, even if it is too early to act: then it is renewed, otherwise requested."""
        return now < self._ends

    def is_held(self, now: int) -> bool:
        return self._begins <= now < self._ends

    def left(self, now: int) -> int:
        """How long the lock stays ours without another answer."""
        return max(self._ends - now, 0)

    def wake_at(self, now: int) -> int:
        """When there is something to do: a request, or the start or end of acting as the primary."""
        return min(at for at in (self.next_at, self._begins, self._ends) if at > now or at == self.next_at)

    def acquired(self, sent_at: int, now: int, uptime: int | None = None) -> None:
        """The server granted the lock. `uptime`: how long it has been up at least; None if it does not report that."""
        self._begins = 0 if uptime is None else now - uptime + self.ttl
        self.renewed(sent_at)

    def renewed(self, sent_at: int) -> None:
        """The server confirmed that the lock is still ours."""
        self._ends = sent_at + self._usable
        self.next_at = sent_at + self._renew_every

    def refused(self, now: int) -> None:
        """The lock is not ours, or we released it."""
        self._ends = 0
        self.next_at = now + self._retry_every

    def unanswered(self, now: int) -> None:
        """The request had no answer; a lock that is held stays held until its time is over."""
        self.next_at = now + self._retry_every
