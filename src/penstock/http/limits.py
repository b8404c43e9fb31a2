"""How much, how many and how slow: the limits of the HTTP port."""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.errors import InvalidArgument

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one client may cost. Seconds are real time; every wait on a client has one of these limits."""

    max_request_bytes: int = 32 * MEBIBYTE
    """A body, after decompression. A message of 10 MiB in base64 is 13.4 MiB."""
    max_bodies_bytes: int = 256 * MEBIBYTE
    """All bodies together, after decompression, beside the first 16 KiB of each. One body may always pass, of any size."""
    max_connections: int = 10_000
    """Beyond it a new connection is closed at once."""
    max_line_bytes: int = 8190
    max_field_bytes: int = 8190
    max_fields: int = 100
    """The head: its first line, each header, and their number."""
    head_seconds: float = 10.0
    """A head must be complete this long after it, or the connection, began."""
    body_seconds: float = 30.0
    """A body must be complete this long after its head, and one second more for each `min_body_rate` bytes received."""
    min_body_rate: int = 16 * 1024
    body_wait_seconds: float = 15.0
    """A body that finds no room in `max_bodies_bytes` is refused after it."""
    body_stall_seconds: float = 5.0
    """While bodies wait for room, one that holds room and grows by less than `min_body_rate` for this long is cut."""
    idle_seconds: float = 75.0
    """A kept-alive connection without a request is closed after it."""
    write_seconds: float = 30.0
    """A client that takes nothing of what waits for it is cut after it."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InvalidArgument.of(field.name, value, "a number above 0")
