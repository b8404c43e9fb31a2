"""Messages as a command shows them: for people, as lines of JSON, or their data alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import penstock
from penstock.cli.output import paint, printable, say, say_bytes, say_json_line
from penstock.cli.wording import moment

if TYPE_CHECKING:
    import argparse
    from datetime import datetime

    from penstock.client.message import IncomingMessage
    from penstock.client.queue import QueueTask

FORMATS = ("text", "json", "raw")


def add_format(parser: argparse.ArgumentParser) -> None:
    """The flag that chooses."""
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="text for people, json: a document on each line, raw: the data alone (default: text)",
    )


class Printer:
    """Shows messages in one format."""

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
    """What goes with the data, on one line."""
    words = [paint(f"{message_id}  {moment(at)}", "faint")]
    words += [paint(f"{name}={printable(value)}", "cyan") for name, value in facts.items()]
    words += [paint(f"attempt={attempt}", "yellow")] if attempt > 1 else []
    words += [f"{printable(name)}={printable(value)}" for name, value in sorted(attributes.items())]
    return "  ".join(words)


def _say(heading: str, data: bytes) -> None:
    lines = printable(_text(data), keep_lines=True).removesuffix("\n").split("\n")
    say("\n".join([heading, *(f"  {line}" for line in lines)]))


def task_document(task: QueueTask | penstock.QueueMessage, created: datetime) -> dict[str, Any]:
    """A message of a work queue for a program."""
    return {
        "id": task.message_id,
        "created": created,
        **_named("payload", task.payload),
        "headers": dict(task.headers),
        "priority": task.priority,
        "retry_count": task.retry_count,
        "max_retries": task.max_retries,
    }


def _named(name: str, payload: object) -> dict[str, object]:
    """A payload under its name; bytes that are no text have another name, and are in base64."""
    if not isinstance(payload, bytes):
        return {name: payload}
    try:
        return {name: payload.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(payload).decode()}


def _data(payload: object) -> bytes:
    """A payload as bytes: what is neither bytes nor text is written as JSON."""
    if isinstance(payload, bytes):
        return payload
    return (payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)).encode()


def _text(data: bytes) -> str:
    """Data for people."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"(base64) {base64.b64encode(data).decode()}"
