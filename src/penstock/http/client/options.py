"""How the HTTP client behaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """Durations are seconds."""

    connect_timeout: float = 30
    http_version: Literal["HTTP_2", "HTTP_1_1"] = "HTTP_2"
    """`HTTP_2` is offered over TLS; a target that does not support it, or has no TLS, gets HTTP/1.1."""
    body_limit: int = 64 * 1024
    """Bytes of an answer's body that are read."""
    per_target: int = 256
    """Concurrent requests to one target (scheme, host, port)."""
