"""The options of one router, independent of its configuration: set by its operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.http.client.transport import TransportOptions

BreakerScope = Literal["target", "endpoint", "global"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions(TransportOptions):
    """Durations are seconds."""

    fifo: Literal["strict", "batch"] = "strict"
    """`strict`: a failed message holds its group back until it is delivered or dead. `batch`: as specification 001 has it,
    within one batch."""
    payload: Literal["thin", "full"] = "thin"
    """`thin`: the target receives the message's id. `full`: also its content."""
    max_attempts: int | None = None
    """A message is dead after this many failed attempts; None: it is retried forever."""
    request_timeout: float = 900
    breaker_scope: BreakerScope = "target"
    """What shares a circuit breaker: scheme, host and port; the same with the path; or all targets."""
    allow_targets: tuple[str, ...] = ()
    """Hosts, addresses and networks (CIDR) that may be called though they are not public."""
    signing_secret: str | None = None
    """Signs every request by the Standard Webhooks scheme."""
    hold_limit: float = 60
    """A message that is retried within this time is held here; with a longer delay it returns to its queue."""
    retry_pause: float = 1.0
    """The pause between the first call of an attempt and the second; between the second and the third it is twice as long."""
    max_pools: int = 10_000
    pool_warning_threshold: int = 5_000
    sync_interval: float = 300
    large_batch: int = 200
    """How many messages to ask a queue for at a time; a server may return fewer (SQS: 10)."""
    is_development: bool = False
    """Serves the test targets and test messages."""
