"""A broker in somebody's own process, with everything that can be asked of it: what `server` is for a process of its own."""

from __future__ import annotations

from penstock import __version__
from penstock.api.service import Service
from penstock.broker.aio import AsyncBroker
from penstock.broker.broker import Broker


def embedded_service(broker: Broker) -> Service:
    """The operations of a broker, for the running event loop. Close the service, then its `aio`, then the broker."""
    return Service(AsyncBroker(broker), version=__version__)
