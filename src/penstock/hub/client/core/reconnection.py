"""When a client reconnects to a hub, and how fast it sends after the hub has asked it to slow down."""

from __future__ import annotations

from penstock.backoff import exponential
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, PenstockError, Unauthenticated
from penstock.hub.core import close_codes
from penstock.hub.core.close_codes import CLOSES, Close

FORGOTTEN = SECOND
"""After this time without requests, pacing ends: the hub's rate limit has recovered too."""
MINIMUM = SECOND
MAXIMUM = 30 * SECOND
SETTLED = 3 * SECOND
"""After a connection that lasted this long, the delays start again with the shortest."""


class ReconnectDelays:
    """The delays of one client: none before the first attempt, then 1 s, 2 s, 4 s … 30 s, each randomly shortened by up to half.

    They are random because all clients lose a hub at the same moment and must not all reconnect at the same moment.
    """

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures = 0

    def wait(self, lasted: int, chance: float) -> int:
        """The delay in microseconds after a connection that was ready for `lasted`; `chance` is a random number from 0 to 1."""
        if lasted >= SETTLED:
            self._failures = 0
        self._failures += 1
        if self._failures == 1:
            return 0
        longest = exponential(self._failures - 1, MINIMUM, MAXIMUM)
        return longest - int(longest * chance / 2)


def close_of(code: int | None, reason: str) -> Close | None:
    """The hub's definition of a close frame; None if it is not one of the hub's."""
    alike = [close for close in CLOSES if close.code == code]
    return next((close for close in alike if close.reason == reason), alike[0] if len(alike) == 1 else None)


def final_error(close: Close | None, address: str) -> PenstockError | None:
    """The error to raise if reconnecting would fail for the same reason; None if reconnecting may help."""
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
    """When requests may be sent, in microseconds: at once, and after a refusal one by one, with the gap that the hub requires.

    Requests that were refused together must not be repeated together: all but one would be refused again, and the hub closes the
    connection of a client that continues to do so.
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
