"""What a hub needs of a connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.hub.core.close_codes import Close


class Socket(Protocol):
    """One WebSocket, seen from the side that sends. All methods belong to the event loop and return at once, save `drained`."""

    def room(self) -> int:
        """How many bytes may be written now without piling up inside the transport; 0 or less when it is full."""

    def write(self, frames: Sequence[tuple[int, tuple[bytes, ...]]]) -> None:
        """Write text frames, all of them by one call of the system: each its length in bytes and the parts it is made of."""

    async def drained(self) -> None:
        """Return when there is room again; ConnectionError when the connection is gone."""

    def close(self, close: Close) -> None:
        """Say why, and end the connection; cut it when that takes longer than a moment. Safe twice."""
