"""A broker in somebody's own process, with everything that can be asked of it: what `server` is for a process of its own."""

from __future__ import annotations

from penstock import __version__
from penstock.api.rules import LateRules, Rules, unavailable
from penstock.api.service import Service
from penstock.broker.aio import AsyncBroker
from penstock.broker.broker import Broker
from penstock.values.projects import Projects


def embedded_service(broker: Broker) -> Service:
    """The operations of a broker, for the running event loop. Close the service, then its `aio`, then the broker."""
    aio, projects = AsyncBroker(broker), Projects()
    return Service(aio, projects, LateRules(lambda: _rules(aio, projects)), version=__version__)


def _rules(aio: AsyncBroker, projects: Projects) -> Rules:
    try:
        # Here, because a broker without schemas and transforms needs no protobuf, and need not wait for it.
        from penstock.google.rules import pubsub_rules  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("google"):
            raise
        return unavailable()
    return pubsub_rules(aio, projects)
