"""The commands of the binary APIs, for clients of RESP3 and SynapRPC.

Arguments are bytes, text or numbers, by position or by name (`QPUBLISH q payload 9 3`, `QPUBLISH q payload PRIORITY 9`): clients
use both. Answers are plain values; the protocol of the API encodes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from penstock.api.queues import ProjectQueues
from penstock.errors import InvalidArgument, Unimplemented
from penstock.queue_api import replies
from penstock.queue_api.topics import ProjectTopics
from penstock.values.queue import NewMessage

MAX_ARGUMENTS = 32
MAX_WORD = 200
"""How much of an argument is read where a word is expected."""

Value = bytes | str | int | float | bool | None
Args = Sequence[Value]
Named = dict[str, Value]
Run = Callable[[ProjectQueues, "Arguments"], Awaitable[object]]


class Ok:
    """The answer of a command without a result."""


OK = Ok()


class Arguments:
    """The arguments of one command: read in order, then by name."""

    def __init__(self, given: Args, usage: str) -> None:
        self._given = list(given)
        self._usage = usage
        self._next = 0

    def text(self, name: str) -> str:
        return as_text(self.value(name), name)

    def value(self, name: str) -> Value:
        if self._next >= len(self._given):
            raise InvalidArgument(f"{name} is missing", hint=f"usage: {self._usage}")
        self._next += 1
        return self._given[self._next - 1]

    def options(self, by_position: Sequence[str], by_name: Sequence[str] = ()) -> Named:
        """The remaining arguments: values in the order of `by_position`, then pairs of a name and a value.

        Names are in capitals.
        """
        found: Named = {}
        known = {*by_position, *by_name}
        for name in by_position:
            if self._next >= len(self._given) or _is_name(self._given[self._next], known):
                break
            found[name] = self._given[self._next]
            self._next += 1
        while self._next < len(self._given):
            word = as_text(_cut(self._given[self._next]), "an option").upper()
            if word not in known:
                raise InvalidArgument.of(
                    "an option", word, f"one of {', '.join(sorted(known))}" if known else "no more", self._usage
                )
            self._next += 1
            found[word] = self.value(word)
        return found


_SETTINGS = {
    "MAX_DEPTH": "max_depth",
    "ACK_DEADLINE": "ack_deadline_secs",
    "MAX_RETRIES": "max_retries",
    "PRIORITY": "default_priority",
    "PREFETCH": "default_prefetch",
    "TTL": "message_ttl",
    "MIN_BACKOFF": "minimum_backoff",
    "MAX_BACKOFF": "maximum_backoff",
}
_DURATIONS = {"ACK_DEADLINE", "TTL", "MIN_BACKOFF", "MAX_BACKOFF"}


def _settings(args: Arguments) -> dict[str, Any]:
    """The given settings of a queue, by the queue's names for them."""
    options = args.options(("MAX_DEPTH", "ACK_DEADLINE"), [*_SETTINGS])
    given: dict[str, Any] = {
        _SETTINGS[key]: as_number(value, key) if key in _DURATIONS else as_integer(value, key) for key, value in options.items()
    }
    if given.get("max_depth") == 0:  # clients send this for the default
        del given["max_depth"]
    backoff = {name: given.pop(name) for name in ("minimum_backoff", "maximum_backoff") if name in given}
    return given | {"retry_policy": backoff} if backoff else given


async def _create(queues: ProjectQueues, args: Arguments) -> Ok:
    await queues.create(args.text("queue"), _settings(args))
    return OK


async def _update(queues: ProjectQueues, args: Arguments) -> Ok:
    await queues.update_queue(args.text("queue"), _settings(args))
    return OK


async def _delete(queues: ProjectQueues, args: Arguments) -> int:
    return int(await queues.delete(args.text("queue")))


async def _list(queues: ProjectQueues, _: Arguments) -> list[str]:
    return await queues.list_queues()


async def _publish(queues: ProjectQueues, args: Arguments) -> str:
    name, payload = args.text("queue"), args.value("payload")
    options = args.options(("PRIORITY", "MAX_RETRIES"), ("RETRIES", "TTL", "DELAY"))
    retries = options.get("MAX_RETRIES", options.get("RETRIES"))
    message = NewMessage(
        payload.encode() if isinstance(payload, str) else payload,
        as_integer(options["PRIORITY"], "PRIORITY") if "PRIORITY" in options else None,
        as_number(options["TTL"], "TTL") if "TTL" in options else None,
        None,
        as_integer(retries, "MAX_RETRIES") if retries is not None else None,
        as_number(options["DELAY"], "DELAY") if "DELAY" in options else None,
    )
    return (await queues.publish(name, message)).message_id


async def _consume(queues: ProjectQueues, args: Arguments) -> object:
    name = args.text("queue")
    options = args.options(("CONSUMER", "TIMEOUT"), ("ACK_DEADLINE", "PREFETCH"))
    consumer = as_text(options["CONSUMER"], "CONSUMER") if "CONSUMER" in options else None
    found = await queues.lease(
        name,
        consumer or None,
        wait=as_number(options.get("TIMEOUT", 0), "TIMEOUT"),
        ack_deadline=as_number(options["ACK_DEADLINE"], "ACK_DEADLINE") if "ACK_DEADLINE" in options else None,
        prefetch=as_integer(options["PREFETCH"], "PREFETCH") if "PREFETCH" in options else None,
    )
    return found[0] if found else None


async def _ack(queues: ProjectQueues, args: Arguments) -> Ok:
    queues.ack(args.text("queue"), args.text("message_id"))
    return OK


async def _nack(queues: ProjectQueues, args: Arguments) -> Ok:
    name, message_id = args.text("queue"), args.text("message_id")
    options = args.options(("REQUEUE",))
    queues.nack(name, message_id, as_flag(options.get("REQUEUE", True), "REQUEUE"))
    return OK


async def _extend(queues: ProjectQueues, args: Arguments) -> Ok:
    await queues.extend_message(args.text("queue"), args.text("message_id"), as_number(args.value("seconds"), "seconds"))
    return OK


async def _stats(queues: ProjectQueues, args: Arguments) -> object:
    return msgspec.to_builtins(replies.stats(await queues.queue_stats(args.text("queue"))))


async def _consumers(queues: ProjectQueues, args: Arguments) -> object:
    name = args.text("queue")
    options = args.options(("MAX_MESSAGES",))
    return msgspec.to_builtins(await queues.queue_consumers(name, as_integer(options.get("MAX_MESSAGES", 100), "MAX_MESSAGES")))


async def _purge(queues: ProjectQueues, args: Arguments) -> int:
    return await queues.purge_queue(args.text("queue"))


async def _create_room(queues: ProjectQueues, args: Arguments) -> Ok:
    room = args.text("room")
    args.options(("MAX_EVENTS",))
    await ProjectTopics(queues).create(room)
    return OK


async def _get_or_create_room(queues: ProjectQueues, args: Arguments) -> str:
    return "CREATED" if await ProjectTopics(queues).create(args.text("room")) else "EXISTS"


async def _delete_room(queues: ProjectQueues, args: Arguments) -> int:
    return int(await ProjectTopics(queues).delete(args.text("room")))


async def _rooms(queues: ProjectQueues, _: Arguments) -> list[str]:
    return ProjectTopics(queues).list()


async def _publish_event(queues: ProjectQueues, args: Arguments) -> int:
    room, event, data = args.text("room"), args.text("event"), as_json(args.value("data"), "data")
    return (await ProjectTopics(queues).publish_event(room, event, data)).offset


async def _read_room(queues: ProjectQueues, args: Arguments) -> object:
    room = args.text("room")
    options = args.options(("SUBSCRIBER", "OFFSET", "LIMIT"))
    first, limit = as_integer(options.get("OFFSET", 0), "OFFSET"), as_integer(options.get("LIMIT", 100), "LIMIT")
    return msgspec.to_builtins((await ProjectTopics(queues).read(room, first, limit)).events)


async def _room_stats(queues: ProjectQueues, args: Arguments) -> object:
    return msgspec.to_builtins(ProjectTopics(queues).stats(args.text("room")))


async def _publish_to_topic(queues: ProjectQueues, args: Arguments) -> int:
    topic, payload = args.text("topic"), as_json(args.value("payload"), "payload")
    return (await ProjectTopics(queues).publish(topic, payload)).subscribers_matched


async def _channels(queues: ProjectQueues, args: Arguments) -> list[str]:
    if (word := as_text(_cut(args.value("CHANNELS")), "CHANNELS").upper()) != "CHANNELS":
        raise InvalidArgument.of("PUBSUB", word, "CHANNELS")
    return ProjectTopics(queues).list()


_USAGE = "[max_depth] [ack_deadline] [MAX_RETRIES n] [PRIORITY n] [PREFETCH n] [TTL s] [MIN_BACKOFF s] [MAX_BACKOFF s]"
COMMANDS: dict[str, tuple[Run, str]] = {
    "QCREATE": (_create, f"QCREATE queue {_USAGE}"),
    "QUPDATE": (_update, f"QUPDATE queue {_USAGE}"),
    "QDELETE": (_delete, "QDELETE queue"),
    "QLIST": (_list, "QLIST"),
    "QPUBLISH": (_publish, "QPUBLISH queue payload [priority] [max_retries] [TTL s] [DELAY s]"),
    "QCONSUME": (_consume, "QCONSUME queue [consumer] [timeout] [ACK_DEADLINE s] [PREFETCH n]"),
    "QACK": (_ack, "QACK queue message_id"),
    "QNACK": (_nack, "QNACK queue message_id [requeue]"),
    "QEXTEND": (_extend, "QEXTEND queue message_id seconds"),
    "QSTATS": (_stats, "QSTATS queue"),
    "QCONSUMERS": (_consumers, "QCONSUMERS queue [max_messages]"),
    "QPURGE": (_purge, "QPURGE queue"),
    "SCREATE": (_create_room, "SCREATE room [max_events]"),
    "SGETORCREATE": (_get_or_create_room, "SGETORCREATE room"),
    "SDELETE": (_delete_room, "SDELETE room"),
    "SLIST": (_rooms, "SLIST"),
    "SPUBLISH": (_publish_event, "SPUBLISH room event data"),
    "SREAD": (_read_room, "SREAD room [subscriber] [offset] [limit]"),
    "SSTATS": (_room_stats, "SSTATS room"),
    "PUBLISH": (_publish_to_topic, "PUBLISH topic payload"),
    "TOPICS": (_rooms, "TOPICS"),
    "PUBSUB": (_channels, "PUBSUB CHANNELS"),
}


async def run(queues: ProjectQueues, command: str, args: Args) -> object:
    known = COMMANDS.get(command)
    if known is None:
        raise Unimplemented(f"unknown command {command[:100]!r}", hint=f"known commands: {', '.join(COMMANDS)}")
    function, usage = known
    most = MAX_ARGUMENTS if "[" in usage else usage.count(" ")
    if len(args) > most:
        raise InvalidArgument(f"{command} has {len(args)} arguments, expected at most {most}", hint=f"usage: {usage}")
    return await function(queues, Arguments(args, usage))


def as_text(value: Value, name: str) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InvalidArgument.of(name, _cut(value), "UTF-8 text") from None
    if not isinstance(value, str):
        raise InvalidArgument.of(name, value, "text")
    return value


def as_integer(value: Value, name: str) -> int:
    """Parse a whole number, or its text."""
    if isinstance(value, bytes | str) and len(value) <= 20:
        try:
            return int(value)
        except ValueError:
            pass
    elif isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidArgument.of(name, _cut(value), "a whole number")


def as_number(value: Value, name: str) -> float:
    """Parse a number, or its text."""
    if isinstance(value, bytes | str) and len(value) <= 40:
        try:
            return float(value)
        except ValueError:
            pass
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise InvalidArgument.of(name, _cut(value), "a number")


def as_flag(value: Value, name: str) -> bool:
    """Parse a boolean, in all the ways that clients write it."""
    value = _cut(value)
    word = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    match word.lower():
        case "true" | "1" | "yes":
            return True
        case "false" | "0" | "no":
            return False
    raise InvalidArgument.of(name, value, "true, false, 1 or 0")


def as_json(value: Value, name: str) -> object:
    if not isinstance(value, bytes | str):
        raise InvalidArgument.of(name, value, "the text of a JSON value")
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgument.of(name, _cut(value), "the text of a JSON value") from None


def _cut(value: Value) -> Value:
    """A value for an error message or a lookup: cut if it is longer than any known word."""
    return value[:MAX_WORD] if isinstance(value, bytes | str) else value


def _is_name(value: Value, known: set[str]) -> bool:
    value = _cut(value)
    return (isinstance(value, bytes) and value.decode(errors="replace").upper() in known) or (
        isinstance(value, str) and value.upper() in known
    )
