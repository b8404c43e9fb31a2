"""Requests that the hub refuses: the answer is `hub:error` with a code, a message, a resolution, and details.

The codes are those of the specification (a bad topic and a missing type are `internal_error`). The exact cause is `reason` in the
details, a stable identifier for programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Code = Literal[
    "internal_error",
    "unauthorized",
    "rate_limited",
    "unknown_actor",
    "message_too_large",
    "message_expired",
    "timeout",
    "version_mismatch",
    "invalid_token",
    "BROADCAST_LIMIT_EXCEEDED",
]


class Refusal(Exception):
    """A request that is answered by `hub:error`. `retryable` means that the same request may succeed later."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        reason: str,
        resolution: str,
        retryable: bool = False,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message
        self.reason = reason
        self.resolution = resolution
        self.retryable = retryable
        self.details: dict[str, object] = {"reason": reason, "retryable": retryable, **(details or {})}
