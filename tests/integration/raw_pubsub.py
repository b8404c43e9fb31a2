"""A client of the Google Pub/Sub API in raw protobuf messages, on a connection of its own: it sends what a test gives it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import grpc

from penstock.google import messages

CALL_SECONDS = 30.0

_PATHS = {path.rpartition("/")[2]: path for path in messages.METHODS}


class RawClient:
    """Calls by name: `client.call("Publish", messages.PublishRequest(…))`. Use it as a context manager."""

    def __init__(self, address: str, *, token: str | None = None, certificate: bytes | None = None) -> None:
        # Channels to one address share their connection unless told otherwise; here each client is somebody else.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        if certificate is not None:
            self.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(certificate), options)
        else:
            self.channel = grpc.insecure_channel(address, options)
        self.metadata = [("authorization", f"Bearer {token}")] if token is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def call(self, name: str, request: Any, *, timeout: float = CALL_SECONDS) -> Any:
        """Make a call and return its answer."""
        path = _PATHS[name]
        answer = self.channel.unary_unary(path)(request.SerializeToString(), timeout=timeout, metadata=self.metadata)
        return messages.METHODS[path].response.FromString(answer)

    def code(self, name: str, request: Any) -> grpc.StatusCode:
        """Make a call and return its status."""
        try:
            self.call(name, request)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return grpc.StatusCode.OK

    def pair(self, name: str, *, project: str = "test", **fields: Any) -> tuple[str, str]:
        """A new topic and a subscription to it."""
        topic, subscription = f"projects/{project}/topics/{name}", f"projects/{project}/subscriptions/{name}"
        self.call("CreateTopic", messages.Topic(name=topic))
        self.call("CreateSubscription", messages.Subscription(name=subscription, topic=topic, **fields))
        return topic, subscription

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Publish, one message for each body."""
        self.call("Publish", messages.PublishRequest(topic=topic, messages=[{"data": body} for body in bodies]))

    def pull(self, subscription: str, count: int = 100) -> list[Any]:
        """One Pull."""
        answer = self.call("Pull", messages.PullRequest(subscription=subscription, max_messages=count))
        return list(answer.received_messages)

    def stream(self, subscription: str, *more: Any, **fields: Any) -> RawStream:
        """Open a StreamingPull; nothing is read until the test reads."""
        fields.setdefault("stream_ack_deadline_seconds", 600)
        opening = messages.StreamingPullRequest(subscription=subscription, **fields)
        return RawStream(self.channel.stream_stream(_PATHS["StreamingPull"]), [opening, *more], self.metadata)


class RawStream:
    """One StreamingPull. Iterate over it for its answers."""

    def __init__(self, method: Any, requests: list[Any], metadata: Any) -> None:
        self._over = threading.Event()
        self.call = method(self._send(requests), metadata=metadata)

    def __iter__(self) -> Iterator[Any]:
        return (messages.StreamingPullResponse.FromString(answer) for answer in self.call)

    def _send(self, requests: list[Any]) -> Iterator[bytes]:
        for request in requests:
            yield request.SerializeToString()
        self._over.wait()  # the stream stays open until the test has seen enough

    def take(self, count: int) -> list[Any]:
        """The next deliveries, at least so many."""
        found: list[Any] = []
        for answer in self:
            found += answer.received_messages
            if len(found) >= count:
                break
        return found

    def end(self, within: float = CALL_SECONDS) -> grpc.StatusCode:
        """Read until the server ends the stream; returns its status."""
        timer = threading.Timer(within, self.call.cancel)
        timer.start()
        try:
            for _ in self.call:
                pass
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        finally:
            timer.cancel()
            self._over.set()
        return grpc.StatusCode.OK

    def cancel(self) -> None:
        """Break off."""
        self.call.cancel()
        self._over.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


def resident_megabytes(process_id: int) -> float:
    """How much memory a process takes."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the process is gone")
