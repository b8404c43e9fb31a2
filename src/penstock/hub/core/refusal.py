"""What the hub does not do, and how it says so: `hub:error` with a code, a message, a way out, and details.

The codes are the specification's (a bad topic and a missing type are `internal_error`); what exactly was wrong is the `reason`
among the details, a stable word for programs.
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
    """A request that is answered by `hub:error`. `retryable` says whether the same request may succeed later."""

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
