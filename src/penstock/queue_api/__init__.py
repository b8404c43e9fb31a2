"""The queue door: work queues for the clients of specification 003, over HTTP, WebSocket, RESP3 and SynapRPC."""

from penstock.api.queues import ProjectQueues, Queues
from penstock.http import Route
from penstock.queue_api.http import command_route
from penstock.queue_api.resp3 import Resp3Door
from penstock.queue_api.rest import rest_routes
from penstock.queue_api.socket_server import SocketLimits
from penstock.queue_api.synap_rpc import RpcDoor

__all__ = ["ProjectQueues", "Queues", "Resp3Door", "RpcDoor", "SocketLimits", "routes"]


def routes(queues: Queues) -> list[Route]:
    """Everything that this door serves on the HTTP port."""
    return [command_route(queues), *rest_routes(queues)]
