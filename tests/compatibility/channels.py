"""Connections to a server, one class for each protocol, that send recorded bytes and return what the server answers.

They are made of sockets, MessagePack and grpcio alone and import nothing of Penstock, so they work with every version of it.
`exchange` sends one request and returns the given number of replies as they are on the wire; `read` turns a reply into plain
values. Texts of errors are for people and may be reworded: `read` keeps that there is one, not what it says.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import struct
from typing import Any, Protocol, Self

import grpc
import msgspec
from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.protobuf import empty_pb2
from google.protobuf.json_format import MessageToDict
from google.pubsub_v1.types import pubsub, schema

SECONDS = 60.0
TEXT = "(text)"
"""What stands for a text that may be reworded."""

pack = msgspec.msgpack.encode


class Ports(Protocol):
    """Where a server listens."""

    port: int
    grpc_port: int | None
    native_port: int | None
    resp_port: int | None
    rpc_port: int | None


class Channel:
    """One connection."""

    def exchange(self, request: bytes, replies: int) -> list[bytes]:
        """Send a request and return as many replies."""
        raise NotImplementedError

    @staticmethod
    def read(reply: bytes, request: bytes) -> Any:
        """The plain values of a reply, without what may change between versions."""
        raise NotImplementedError

    def close(self) -> None:
        """End the connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SocketChannel(Channel):
    """A connection of bytes."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self._stream = self._socket.makefile("rb")

    def exchange(self, request: bytes, replies: int) -> list[bytes]:
        self._socket.sendall(request)
        return [self._reply() for _ in range(replies)]

    def _reply(self) -> bytes:
        raise NotImplementedError

    def _take(self, size: int) -> bytes:
        taken = self._stream.read(size)
        if len(taken) < size:
            raise EOFError("the server closed the connection")
        return taken

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


class FrameChannel(SocketChannel):
    """Frames of MessagePack behind their length."""

    def _reply(self) -> bytes:
        header = self._take(4)
        return header + self._take(int.from_bytes(header, "little"))


class NativeChannel(FrameChannel):
    """The native protocol."""

    def __init__(self, ports: Ports) -> None:
        assert ports.native_port is not None
        super().__init__(ports.native_port)

    @staticmethod
    def read(reply: bytes, request: bytes) -> Any:
        """An array; of `Refused` and `Ended` the reason, and how many fields it has."""
        found = msgspec.msgpack.decode(reply[4:])
        if found[0] in {1, 3} and len(found) == 6 and found[2] is not None:
            kind, call, reason, fields, _, text = found
            return [kind, call, reason, len(fields or []), TEXT if text else None]
        return found


class RpcChannel(FrameChannel):
    """SynapRPC."""

    def __init__(self, ports: Ports) -> None:
        assert ports.rpc_port is not None
        super().__init__(ports.rpc_port)

    @staticmethod
    def read(reply: bytes, request: bytes) -> Any:
        """An array of the call and its result; of an error its first word."""
        call, result = msgspec.msgpack.decode(reply[4:])
        return [call, {"Err": result["Err"].split()[0]} if "Err" in result else result]


class RespChannel(SocketChannel):
    """RESP3."""

    def __init__(self, ports: Ports) -> None:
        assert ports.resp_port is not None
        super().__init__(ports.resp_port)

    def _reply(self) -> bytes:
        line = self._stream.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind in b"$=" and rest != b"-1":
            return line + self._take(int(rest) + 2)
        if kind in b"*~%" and rest != b"-1":
            return line + b"".join(self._reply() for _ in range(int(rest) * (2 if kind == b"%" else 1)))
        return line

    @staticmethod
    def read(reply: bytes, request: bytes) -> Any:
        """The lines of a reply: types, lengths and values; of an error its first word."""
        if reply.startswith(b"-"):
            return reply.split()[0].decode()
        return reply.decode().split("\r\n")


class HubChannel(SocketChannel):
    """The hub's WebSocket: a request is the text of a frame, a reply too."""

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports.port)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{ports.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        status = self._stream.readline()
        assert b" 101 " in status, status
        while self._stream.readline() != b"\r\n":
            pass

    def exchange(self, request: bytes, replies: int) -> list[bytes]:
        size = len(request)
        length = struct.pack("!B", 0x80 | size) if size < 126 else struct.pack("!BH", 0x80 | 126, size)
        # A mask of zeros leaves the text as it is.
        return super().exchange(b"\x81" + length + bytes(4) + request, replies)

    def _reply(self) -> bytes:
        while True:
            first, second = self._take(2)
            size = second
            if size == 126:
                (size,) = struct.unpack("!H", self._take(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._take(8))
            text = self._take(size)
            if first == 0x81:
                return text
            if first & 0x0F == 0x8:
                raise EOFError(f"the server closed the connection: {text!r}")

    @staticmethod
    def read(reply: bytes, request: bytes) -> Any:
        """The object of a frame."""
        found = json.loads(reply)
        if found["type"] == "hub:error":
            found["payload"] = {key: TEXT if key in {"message", "resolution"} else each for key, each in found["payload"].items()}
        return found


class HttpChannel(Channel):
    """HTTP with JSON: a request is `METHOD PATH`, a line break and the body; a reply is the status, a line break and the body."""

    def __init__(self, ports: Ports) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", ports.port, timeout=SECONDS)

    def exchange(self, request: bytes, replies: int) -> list[bytes]:
        head, _, body = request.partition(b"\n")
        method, path = head.decode().split()
        self._connection.request(method, path, body or None, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        return [b"%d\n%s" % (answer.status, answer.read())]

    @staticmethod
    def read(reply: bytes, request: bytes) -> Any:
        """Status and values."""
        status, _, body = reply.partition(b"\n")
        found = json.loads(body) if body else None
        if int(status) >= 400 and isinstance(found, dict):
            error = found.get("error")
            found = {**found, "error": {**error, "message": TEXT} if isinstance(error, dict) else TEXT}
            if found.get("hint") is not None:
                found["hint"] = TEXT
            if isinstance(found["error"], dict):
                found["error"].pop("details", None)
        return [int(status), found]

    def close(self) -> None:
        self._connection.close()


PUBLISHER, SUBSCRIBER = "/google.pubsub.v1.Publisher/", "/google.pubsub.v1.Subscriber/"
SCHEMAS, IAM = "/google.pubsub.v1.SchemaService/", "/google.iam.v1.IAMPolicy/"
ANSWERS: dict[str, Any] = {
    PUBLISHER + "CreateTopic": pubsub.Topic,
    PUBLISHER + "UpdateTopic": pubsub.Topic,
    PUBLISHER + "GetTopic": pubsub.Topic,
    PUBLISHER + "ListTopics": pubsub.ListTopicsResponse,
    PUBLISHER + "ListTopicSubscriptions": pubsub.ListTopicSubscriptionsResponse,
    PUBLISHER + "Publish": pubsub.PublishResponse,
    PUBLISHER + "DeleteTopic": empty_pb2.Empty,
    SUBSCRIBER + "CreateSubscription": pubsub.Subscription,
    SUBSCRIBER + "GetSubscription": pubsub.Subscription,
    SUBSCRIBER + "ListSubscriptions": pubsub.ListSubscriptionsResponse,
    SUBSCRIBER + "Pull": pubsub.PullResponse,
    SUBSCRIBER + "StreamingPull": pubsub.StreamingPullResponse,
    SUBSCRIBER + "Acknowledge": empty_pb2.Empty,
    SUBSCRIBER + "ModifyAckDeadline": empty_pb2.Empty,
    SUBSCRIBER + "Seek": pubsub.SeekResponse,
    SUBSCRIBER + "CreateSnapshot": pubsub.Snapshot,
    SUBSCRIBER + "GetSnapshot": pubsub.Snapshot,
    SUBSCRIBER + "ListSnapshots": pubsub.ListSnapshotsResponse,
    SCHEMAS + "CreateSchema": schema.Schema,
    SCHEMAS + "GetSchema": schema.Schema,
    SCHEMAS + "ValidateMessage": schema.ValidateMessageResponse,
    IAM + "SetIamPolicy": policy_pb2.Policy,
    IAM + "GetIamPolicy": policy_pb2.Policy,
    IAM + "TestIamPermissions": iam_policy_pb2.TestIamPermissionsResponse,
}


class GrpcChannel(Channel):
    """gRPC: a request is the method's path, a line break and the message; a reply is the status, a line break and the message.

    The first request of a StreamingPull opens the stream, later ones are sent on it; each reply is one response.
    """

    def __init__(self, ports: Ports) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{ports.grpc_port}", [("grpc.use_local_subchannel_pool", 1)])

    def exchange(self, request: bytes, replies: int) -> list[bytes]:
        path, _, message = request.partition(b"\n")
        method = path.decode()
        try:
            if method.endswith("/StreamingPull"):
                call = self._channel.stream_stream(method)(iter([message]), timeout=SECONDS)
                found = [b"OK\n" + next(call) for _ in range(replies)]
                call.cancel()
                return found
            return [b"OK\n" + self._channel.unary_unary(method)(message, timeout=SECONDS)]
        except grpc.RpcError as error:
            return [f"{error.code().name}\n".encode()]

    @staticmethod
    def read(reply: bytes, request: bytes) -> Any:
        """Status and fields."""
        status, _, message = reply.partition(b"\n")
        if status != b"OK":
            return [status.decode(), None]
        kind = ANSWERS[request.partition(b"\n")[0].decode()]
        parsed = kind.pb(kind.deserialize(message)) if hasattr(kind, "deserialize") else kind.FromString(message)
        return ["OK", MessageToDict(parsed)]

    def close(self) -> None:
        self._channel.close()


CHANNELS: dict[str, type[Any]] = {
    "native": NativeChannel,
    "resp3": RespChannel,
    "synap_rpc": RpcChannel,
    "grpc": GrpcChannel,
    "hub": HubChannel,
    "http": HttpChannel,
}
