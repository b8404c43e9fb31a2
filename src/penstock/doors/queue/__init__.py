"""The queue door: work queues for the clients of specification 003, over HTTP, WebSocket, RESP3 and SynapRPC."""

from penstock.doors.http import Route
from penstock.doors.queue.http import command_route
from penstock.doors.queue.queues import ProjectQueues, Queues
from penstock.doors.queue.rest import rest_routes

__all__ = ["ProjectQueues", "Queues", "routes"]


def routes(queues: Queues) -> list[Route]:
    """Everything that this door serves on the HTTP port."""
    return [command_route(queues), *rest_routes(queues)]
