"""The limits of the HTTP port: sizes, numbers and times."""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.errors import InvalidArgument

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of the HTTP port. Seconds are real time; every wait for a client has one of these limits."""

    max_request_bytes: int = 32 * MEBIBYTE
    """A body, after decompression. A message of 10 MiB in base64 is 13.4 MiB."""
    max_bodies_bytes: int = 256 * MEBIBYTE
    """All bodies together, after decompression, without the first 16 KiB of each. There is always room for one body."""
    max_connections: int = 10_000
    """Beyond it a new connection is closed at once."""
    max_line_bytes: int = 8190
    max_field_bytes: int = 8190
    max_fields: int = 100
    """Limits of the head: its first line, each header, and the number of headers."""
    head_seconds: float = 10.0
    """A head must be complete within this time after its first byte, or after the connection was opened."""
    body_seconds: float = 30.0
    """A body must be complete within this time after its head, plus one second for each `min_body_rate` bytes received."""
    min_body_rate: int = 16 * 1024
    body_wait_seconds: float = 15.0
    """A body is refused after waiting this long for room in `max_bodies_bytes`."""
    body_stall_seconds: float = 5.0
    """While bodies wait for room, one that holds room and grows slower than `min_body_rate` for this long is cut."""
    idle_seconds: float = 75.0
    """A kept-alive connection without a request is closed after this time."""
    write_seconds: float = 30.0
    """A client that reads nothing of what is sent to it is cut after this time."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InvalidArgument.of(field.name, value, "a number above 0")
