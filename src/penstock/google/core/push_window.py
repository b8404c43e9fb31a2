"""How many pushes an endpoint is trusted with at once, and how long it is left alone after failures."""

from __future__ import annotations

from penstock.google.core.push import MIN_BACKOFF, backoff


class PushWindow:
    """Begins with one push at a time, doubles with every round of successes, halves with every round that has a failure.

    A round are the pushes that are under way together: when an endpoint dies with a hundred of them outstanding, that is one
    failure and not a hundred. Says how many and how long; never waits.
    """

    __slots__ = ("_failures", "_most", "_rests_until", "_round", "size")

    def __init__(self, most: int) -> None:
        self._most = most
        self._failures = 0
        self._rests_until = 0
        self._round = 0
        self.size = 1
        """How many pushes may be outstanding."""

    @property
    def round(self) -> int:
        """The round of a push that begins now; its end is told with it."""
        return self._round

    def rest(self, now: int) -> int:
        """For how many microseconds nothing is pushed; 0: go on."""
        return max(0, self._rests_until - now)

    def succeeded(self, outstanding: int) -> None:
        """A push was accepted while so many were outstanding, itself among them."""
        self._failures = self._rests_until = 0
        if 2 * outstanding >= self.size:  # a window that is not used says nothing about a larger one
            self.size = min(self.size + 1, self._most)

    def failed(self, begun: int, now: int, *, is_paced: bool) -> None:
        """A push that began in the round `begun` failed. `is_paced`: each message waits by a retry policy of its own.

        Then the endpoint need not rest as well, or one bad message would hold up the good ones; but when nothing else succeeds
        in between, it is not asked more often than ten times a second, however many messages wait.
        """
        if begun != self._round:
            return
        self._round += 1
        self._failures += 1
        self.size = max(1, self.size // 2)
        if not is_paced:
            self._rests_until = now + backoff(self._failures)
        elif self._failures > 1:
            self._rests_until = now + MIN_BACKOFF
