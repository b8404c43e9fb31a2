"""Messages that commands read and show: the flags and the loop of `pull` and `queue consume`, and the three formats."""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import penstock
from penstock.cli.arguments import duration, whole
from penstock.cli.output import complain, paint, say, say_bytes, say_json_line
from penstock.errors import PenstockError, Unavailable
from penstock.values.queue import task_name
from penstock.values.wording import moment, printable

if TYPE_CHECKING:
    import argparse
    from datetime import datetime

    from penstock.client.consumer import Consumer
    from penstock.client.message import IncomingMessage
    from penstock.client.queue import QueueTask

    M = TypeVar("M", bound=IncomingMessage)


FORMATS = ("text", "json", "raw")


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the format."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="text to read, json: a document on each line, raw: only the data (default: text)",
    )


class Printer:
    """Prints messages in one format."""

    def __init__(self, found: argparse.Namespace) -> None:
        self._format = found.format or ("json" if found.json else "text")

    def message(self, message: IncomingMessage) -> None:
        """A message of a subscription."""
        match self._format:
            case "raw":
                say_bytes(message.data)
            case "json":
                say_json_line(
                    {
                        "id": message.id,
                        "publish_time": message.publish_time,
                        **_named("data", message.data),
                        "attributes": dict(message.attributes),
                        "ordering_key": message.ordering_key,
                        "delivery_attempt": message.delivery_attempt,
                        "priority": message.priority,
                    }
                )
            case _:
                facts = {"key": message.ordering_key} if message.ordering_key else {}
                heading = _heading(message.id, message.publish_time, message.delivery_attempt, facts, message.attributes)
                _say(heading, message.data)

    def task(self, task: QueueTask | penstock.QueueMessage, created: datetime) -> None:
        """A message of a work queue."""
        match self._format:
            case "raw":
                say_bytes(_data(task.payload))
            case "json":
                say_json_line(task_document(task, created))
            case _:
                facts = {"priority": str(task.priority)}
                heading = _heading(task.message_id, created, task.retry_count + 1, facts, task.headers)
                _say(heading, _data(task.payload))


def _heading(message_id: str, at: datetime, attempt: int, facts: Mapping[str, str], attributes: Mapping[str, str]) -> str:
    """The fields beside the data, in one line."""
    words = [paint(f"{message_id}  {moment(at)}", "faint")]
    words += [paint(f"{name}={printable(value)}", "cyan") for name, value in facts.items()]
    words += [paint(f"attempt={attempt}", "yellow")] if attempt > 1 else []
    words += [f"{printable(name)}={printable(value)}" for name, value in sorted(attributes.items())]
    return "  ".join(words)


def _say(heading: str, data: bytes) -> None:
    say(f"{heading}\n{indented(data)}")


def indented(payload: object) -> str:
    """A payload in indented lines of its own."""
    lines = printable(_text(_data(payload)), keep_lines=True).removesuffix("\n").split("\n")
    return "\n".join(f"  {line}" for line in lines)


def task_document(task: QueueTask | penstock.QueueMessage, created: datetime) -> dict[str, Any]:
    """A message of a work queue, for programs."""
    return {
        "id": task.message_id,
        "created": created,
        **_named("payload", task.payload),
        "headers": dict(task.headers),
        "priority": task.priority,
        "retry_count": task.retry_count,
        "max_retries": task.max_retries,
    }


def payload_text(payload: object) -> str:
    """A payload on one line. A call of a task has Python's form, as in send_email(to="ann@example.com")."""
    name = task_name(payload)
    if not name:
        return _text(_data(payload))
    assert isinstance(payload, dict), "it has the name of a task"
    args, kwargs = payload.get("args"), payload.get("kwargs")
    words = [json.dumps(one, ensure_ascii=False) for one in args] if isinstance(args, list) else []
    if isinstance(kwargs, dict):
        words += [f"{key}={json.dumps(one, ensure_ascii=False)}" for key, one in kwargs.items()]
    return f"{name}({', '.join(words)})"


def _named(name: str, payload: object) -> dict[str, object]:
    """A payload under its key; bytes that are not text have another key, and are in base64."""
    if not isinstance(payload, bytes):
        return {name: payload}
    try:
        return {name: payload.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(payload).decode()}


def _data(payload: object) -> bytes:
    """A payload as bytes: anything but bytes and text is written as JSON."""
    if isinstance(payload, bytes):
        return payload
    return (payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)).encode()


def _text(data: bytes) -> str:
    """Data as readable text."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"(base64) {base64.b64encode(data).decode()}"


BATCH = 100
"""Messages leased at once: few enough to be shown before their leases expire."""


def add_consumption(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Add the flags for number and settlement; returns the group of flags that exclude each other."""
    parser.add_argument("--max", type=whole(1), metavar="N", help="stop after N messages (default: 10; with --follow: no limit)")
    parser.add_argument(
        "--wait", type=_wait, default=0, metavar="DURATION", help="wait this long for the first message (default: 0)"
    )
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--follow", action="store_true", help="receive until Ctrl-C")
    ways.add_argument("--no-ack", action="store_true", help="do not ack: messages are redelivered when their leases expire")
    return ways


def _wait(text: str) -> float:
    seconds = duration(text)
    if seconds > 60:
        raise argparse.ArgumentTypeError(f"{text!r} is more than a minute; --follow waits forever")
    return seconds


def _tell(error: PenstockError) -> None:
    """Print errors that pass and are not logged elsewhere: the client logs a lost connection, and a final error is raised."""
    if error.transient and not isinstance(error, Unavailable):
        complain(f"penstock: {error}; trying again")


async def follow(consumer: Consumer[M], found: argparse.Namespace, show: Callable[[M], None]) -> int:
    """Show messages as they arrive and ack each after showing it, until the limit is reached. The rest is released."""
    most = found.max
    consumer.set_options(
        flow_control=penstock.FlowControl(max_messages=BATCH if most is None else min(BATCH, most)),
        close_behavior=penstock.CloseBehavior.NACK,
    )
    consumer.on("error", _tell)
    done = 0
    async for message in consumer:
        show(message)
        message.ack()
        done += 1
        if done == most:
            break
    await consumer.close()
    return 0
