"""Why the hub closes a connection: a close code, a machine-readable reason, and whether reconnecting may help.

Codes from 4000 up are specific to the hub. If `may_reconnect` is false, a client that reconnects is closed for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Close:
    """How a connection ends."""

    code: int
    reason: str
    meaning: str
    may_reconnect: bool


GOODBYE = Close(1000, "Client requested disconnect", "the client sent hub:disconnect", may_reconnect=False)
SILENT = Close(1000, "Heartbeat timeout", "the client was silent for the idle timeout", may_reconnect=True)
STOPPING = Close(1001, "server_shutdown", "the server is stopping; it sends hub:disconnect first", may_reconnect=True)
BROKEN_FRAME = Close(
    1002, "protocol_error", "a frame that RFC 6455 forbids: without a mask, of an unknown kind, out of turn", may_reconnect=False
)
NOT_UTF8 = Close(1007, "invalid_utf8", "a text that is not UTF-8", may_reconnect=False)
TOO_LARGE = Close(1009, "message_too_large", "a frame far above the limit, which is not read", may_reconnect=False)
FAILED = Close(1011, "internal_error", "an error inside the server", may_reconnect=True)
NOT_CONNECTED = Close(
    4000, "connect_timeout", "no hub:connect in time, nor another request if no token is required", may_reconnect=True
)
UNAUTHORIZED = Close(4001, "unauthorized", "no valid token, or one that expired and was not refreshed", may_reconnect=False)
REPLACED = Close(4002, "duplicate_connection", "another connection registered the same actor", may_reconnect=False)
SLOW_READER = Close(4003, "slow_reader", "the client did not read what was waiting for it", may_reconnect=True)
FLOODING = Close(4004, "rate_limited", "the client kept sending after it was refused", may_reconnect=True)
WRONG_VERSION = Close(4005, "version_mismatch", "the client speaks another major version", may_reconnect=False)

CLOSES = (
    GOODBYE,
    SILENT,
    STOPPING,
    BROKEN_FRAME,
    NOT_UTF8,
    TOO_LARGE,
    FAILED,
    NOT_CONNECTED,
    UNAUTHORIZED,
    REPLACED,
    SLOW_READER,
    FLOODING,
    WRONG_VERSION,
)
"""All close codes, for the documentation and for clients."""
