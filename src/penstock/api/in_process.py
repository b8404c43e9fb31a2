"""The common part of `MessageQueue` and `QueueManager`: each opens its own broker, or shares one that its owner closes."""

from __future__ import annotations

import os
from typing import Self

from penstock.broker.broker import Broker
from penstock.clock import Clock
from penstock.errors import InvalidArgument


class InProcessApi:
    """An API over a broker. `broker` is the broker itself; use it to share it, for `history` and for `health`."""

    def __init__(
        self, *, clock: Clock | None = None, data_dir: str | os.PathLike[str] | None = None, broker: Broker | None = None
    ) -> None:
        if broker is not None and (clock is not None or data_dir is not None):
            raise InvalidArgument("broker is given together with clock or data_dir, expected one or the other")
        if broker is not None and not isinstance(broker, Broker):
            raise InvalidArgument.of("broker", broker, "a penstock.Broker")
        self._owns_broker = broker is None
        self.broker = broker or Broker(clock=clock, data_dir=data_dir)

    def _current(self) -> Broker:
        """The broker, checked to be open, after everything that is due is done."""
        self.broker.catch_up()
        self.broker.check_open()
        return self.broker

    def close(self) -> None:
        """Write everything to disk and close; a shared broker stays open."""
        if self._owns_broker:
            self.broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
