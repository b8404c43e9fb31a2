"""The audit log: a record in the event log for each action that cannot be undone."""

from __future__ import annotations

from penstock.broker.aio import AsyncBroker
from penstock.journal.core.events import Audited
from penstock.server.console.requests import Caller
from penstock.values.projects import Projects


class Audit:
    """Writes the records."""

    def __init__(self, aio: AsyncBroker, projects: Projects) -> None:
        self._aio, self._projects = aio, projects

    async def record(self, caller: Caller, action: str, name: str, affected: int) -> None:
        """Record an action of a caller on a resource of their project, and the number of messages. Durable on return."""
        broker = self._aio.broker
        resource = self._projects.scoped(caller.project, name)
        broker.record([Audited(broker.clock.now(), caller.principal.token_id, action, resource, affected)])
        await self._aio.durable()
