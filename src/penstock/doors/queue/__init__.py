"""The queue door: work queues for the clients of specification 003, over HTTP, WebSocket, RESP3 and SynapRPC."""

from penstock.api.queues import ProjectQueues, Queues
from penstock.doors.http import Route
from penstock.doors.queue.http import command_route
from penstock.doors.queue.resp3 import Resp3Door
from penstock.doors.queue.rest import rest_routes
from penstock.doors.queue.rpc import RpcDoor
from penstock.doors.queue.sockets import SocketLimits

__all__ = ["ProjectQueues", "Queues", "Resp3Door", "RpcDoor", "SocketLimits", "routes"]


def routes(queues: Queues) -> list[Route]:
    """Everything that this door serves on the HTTP port."""
    return [command_route(queues), *rest_routes(queues)]
