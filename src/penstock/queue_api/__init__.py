"""The queue API: work queues for the clients of specification 003, over HTTP, WebSocket, RESP3 and SynapRPC."""

from dataclasses import replace

from penstock.api.queues import ProjectQueues, Queues
from penstock.http.routes import Route
from penstock.queue_api.http import command_route
from penstock.queue_api.resp3 import Resp3Server
from penstock.queue_api.rest import rest_routes
from penstock.queue_api.socket_server import SocketLimits
from penstock.queue_api.synap_rpc import SynapRpcServer

__all__ = ["ProjectQueues", "Queues", "Resp3Server", "SocketLimits", "SynapRpcServer", "routes"]


EXPANSION = 4
"""How much larger than other requests those of this API may be: in a list of byte values a byte takes up to four characters, or
five with blanks, and in a JSON string up to six. 4 * 16 MiB is enough for 10 MiB in any of them."""


def routes(queues: Queues, max_request_bytes: int | None = None) -> list[Route]:
    """The routes of this API on the HTTP port; `max_request_bytes` is the limit of other APIs."""
    most = None if max_request_bytes is None else EXPANSION * max_request_bytes
    return [replace(route, max_bytes=most) for route in (command_route(queues), *rest_routes(queues))]
