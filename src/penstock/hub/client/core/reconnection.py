"""When a client reconnects to a hub, and how fast it sends after the hub has asked it to slow down."""

from __future__ import annotations

from penstock.backoff import exponential
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, PenstockError, Unauthenticated
from penstock.hub.core import close_codes
from penstock.hub.core.close_codes import CLOSES, Close

FORGOTTEN = SECOND
"""After this long without anything to send, nobody has to wait any more: the hub has forgotten too."""
MINIMUM = SECOND
MAXIMUM = 30 * SECOND
SETTLED = 3 * SECOND
"""A client that was connected for this long starts with the shortest wait again when that ends."""


class ReconnectDelays:
    """The waits of one client: none before the first try, then 1 s, 2 s, 4 s … 30 s, each shortened at random by up to a half.

    At random, because all clients of a hub lose it at the same moment and must not all come back at the same moment.
    """

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures = 0

    def wait(self, lasted: int, chance: float) -> int:
        """How many microseconds to wait after a connection that could be used for this long; `chance` is from 0 to 1."""
        if lasted >= SETTLED:
            self._failures = 0
        self._failures += 1
        if self._failures == 1:
            return 0
        longest = exponential(self._failures - 1, MINIMUM, MAXIMUM)
        return longest - int(longest * chance / 2)


def close_of(code: int | None, reason: str) -> Close | None:
    """What a close frame means, if it is one of the hub's own."""
    alike = [close for close in CLOSES if close.code == code]
    return next((close for close in alike if close.reason == reason), alike[0] if len(alike) == 1 else None)


def final_error(close: Close | None, address: str) -> PenstockError | None:
    """What to raise when coming back would only meet the same end; None when it may help."""
    if close is None or close.may_reconnect:
        return None
    match close:
        case close_codes.UNAUTHORIZED:
            error = Unauthenticated("the hub closed the connection: the token ran out, or was not accepted")
            error.hint = "make another HubClient with a new token; a function as token= is asked for one at each connection"
            return error
        case close_codes.REPLACED:
            return FailedPrecondition(
                f"another connection registered the address {address}, and this one was closed",
                hint="give each client an address of its own; without one, an address is made up",
            )
        case close_codes.TOO_LARGE:
            hint = "send less at once, or raise the server's hub_max_message_bytes"
            return FailedPrecondition(f"the hub closed the connection: {close.meaning}", hint=hint)
        case close_codes.WRONG_VERSION:
            hint = "install the version of penstock that the server has"
            return FailedPrecondition(f"the hub closed the connection: {close.meaning}", hint=hint)
        case _:
            return FailedPrecondition(f"the hub closed the connection: {close.meaning}", hint="make another HubClient")


class RequestPacing:
    """Whose turn is when, in microseconds: at once, and after a refusal one request after another, as far apart as the hub wants.

    Those that were refused together must not come back together: all but one would be refused again, and a hub closes the
    connection of a client that continues like that.
    """

    __slots__ = ("_free_at", "_gap")

    def __init__(self) -> None:
        self._gap = 0
        self._free_at = 0

    def refused(self, now: int, retry_after: int, gap: int) -> None:
        """A request was refused: the next one may come after `retry_after`, and then one each `gap`."""
        self._gap = max(gap, 1)
        self._free_at = max(self._free_at, now + retry_after)

    def turn(self, now: int) -> int:
        """How long to wait before one request is sent."""
        if now > self._free_at + FORGOTTEN:
            self._gap = 0
        if not self._gap:
            return 0
        at = max(now, self._free_at)
        self._free_at = at + self._gap
        return at - now
