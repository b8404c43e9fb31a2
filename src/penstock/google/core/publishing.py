"""The limits of one Publish request."""

from __future__ import annotations

from penstock.values.message import PublishLimits

PUBLISH = PublishLimits(
    max_messages=1000,
    max_request_bytes=10 * 1024 * 1024,
    max_attributes=100,
    # Google's own clients write attributes of this prefix (a trace's context, for one).
    open_prefix="googclient_",
    one_key=True,
)
