"""The rules of topics for messages: transforms, then the schema.

A topic without either skips this. The others use threads, because a schema may be large and a script slow: the messages of one
topic are processed in the order in which they were published, and only they wait for a slow one.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.keyed_threads import Call, KeyedThreads
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, ResourceExhausted, Unavailable
from penstock.extras import how_to_install
from penstock.values.descriptions import StreamDescription, TopicSettings
from penstock.values.message import StoredMessage
from penstock.values.stored_forms import (
    DELETED_SCHEMA,
    SCHEMA_PREFIX,
    SchemaRevision,
    SchemaUse,
    Script,
    TopicForm,
    accepted_revisions,
    schema_revisions,
    topic_form,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.core.stream import Stream
    from penstock.schemas import Schema
    from penstock.transforms import Chain

log = logging.getLogger("penstock.broker")

MAX_SPENT = 10 * SECOND
"""The time limit for all messages of one request."""
MAX_WAIT = 10.0
"""How many seconds a request may wait for earlier ones of its topic."""
MAX_SCRIPTS = 32
MAX_CHECKS = 4
"""How many topics and subscriptions are served at a time. Scripts mostly wait for the sandbox, which is fair."""
MAX_MADE = 10 * 1024 * 1024

Passed = list[StoredMessage | None]
"""The message to publish for each message, None if a transform drops it."""


class TopicRules:
    """The schemas and transforms of a broker's topics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.scripts = KeyedThreads("penstock-scripts", MAX_SCRIPTS)
        """For JavaScript of users, also of subscriptions."""
        self.checks = KeyedThreads("penstock-schemas", MAX_CHECKS)

    def needed(self, stream: Stream) -> bool:
        """Whether a topic has rules, or its earlier messages are still being processed."""
        return has_rules(stream) or self.scripts.is_busy(stream.number) or self.checks.is_busy(stream.number)

    def start(
        self, stream: Stream | StreamDescription, given: Sequence[StoredMessage], done: Callable[[Passed | PenstockError], None]
    ) -> Call:
        """Apply the rules, then call `done` in a thread with the messages to publish, or with the error that refuses them all.

        Messages of one topic are processed in the order of these calls, and `done` of one returns before the next is processed.
        Call it with the broker's lock held.
        """
        form = topic_form(stream.spec)
        revisions = self.accepted_revisions(form.schema) if form.schema is not None else []

        def work() -> None:
            outcome: Passed | PenstockError
            try:
                outcome = _passed(form, revisions, given)
            except PenstockError as error:
                outcome = error
            except Exception as error:  # noqa: BLE001  # the publisher has to get the error, and the next has its turn
                # The text of the error may contain a payload, so it is left out.
                trace = "".join(traceback.format_tb(error.__traceback__))
                log.error("schema and transforms of topic %r failed: %s at\n%s", stream.name, type(error).__name__, trace)
                outcome = Unavailable(
                    "the schema or the transforms of the topic failed", hint="see the server's log for the reason"
                )
            done(outcome)

        threads = self.scripts if form.scripts else self.checks
        for others in (self.scripts, self.checks):
            if others.is_busy(stream.number):
                threads = others  # also if the topic has no rules now: no message overtakes an earlier one
        return threads.start(stream.number, work, done)

    def passed(self, stream: StreamDescription, given: Sequence[StoredMessage]) -> Passed:
        """Return the message to publish for each message, None for a dropped one; an error refuses them all. Blocks."""
        outcomes: list[Passed | PenstockError] = []
        ended = threading.Event()

        def done(outcome: Passed | PenstockError) -> None:
            outcomes.append(outcome)
            ended.set()

        with self._broker.lock:
            call = self.start(stream, given, done)
        if not ended.wait(MAX_WAIT):
            call.give_up(MAX_WAIT)
            ended.wait()
        if isinstance(outcomes[0], PenstockError):
            raise outcomes[0]
        return outcomes[0]

    async def check_scripts(self, project: str, scripts: tuple[Script, ...]) -> None:
        """Refuse functions that do not compile."""
        if scripts:
            # One at a time for each project: functions that never ran before may be slow.
            await self.scripts.run(project, MAX_WAIT, chain_of, scripts)

    def accepted_revisions(self, use: SchemaUse) -> list[SchemaRevision]:
        """The revisions of the schema that a topic accepts, newest first."""
        body = self._broker.catalog.documents.get(f"{SCHEMA_PREFIX}{use.schema}")
        if use.schema == DELETED_SCHEMA or body is None:
            raise FailedPrecondition("the topic's schema was deleted", hint="give the topic another schema, or none")
        return accepted_revisions(schema_revisions(body), use)

    def close(self) -> None:
        """Refuse waiting and new calls; running calls finish by themselves."""
        self.scripts.close()
        self.checks.close()


def has_rules(stream: TopicSettings) -> bool:
    """Whether a topic has a schema or transforms."""
    return bool(stream.spec) and topic_form(stream.spec).has_rules


@lru_cache(maxsize=1_000)
def chain_of(scripts: tuple[Script, ...]) -> Chain:
    """The functions of a topic or subscription, checked. Blocks."""
    from penstock.transforms import Step, compile_chain  # noqa: PLC0415  # few programs need it

    return compile_chain([Step(one.code, one.function_name, one.disabled) for one in scripts])


def replaced(message: StoredMessage, data: bytes, attributes: dict[str, str]) -> StoredMessage:
    """A message with other data and attributes."""
    size = len(data) + len(message.key.encode())
    size += sum(len(key.encode()) + len(value.encode()) for key, value in attributes.items())
    return msgspec.structs.replace(message, data=data, attributes=attributes or None, size=size)


def _passed(form: TopicForm, revisions: Sequence[SchemaRevision], given: Sequence[StoredMessage]) -> Passed:
    """Transform messages, then check them against the topic's schema. Blocks."""
    chain = chain_of(form.scripts) if form.scripts else None
    passed: Passed = []
    until, size = monotonic() + MAX_SPENT, 0
    for message in given:
        if monotonic() > until:
            raise ResourceExhausted(
                f"schema and transforms of the topic took more than {MAX_SPENT // SECOND} s for this request",
                hint="publish fewer messages at once, or make the transforms faster",
            )
        made: StoredMessage | None = message
        if chain:
            known = {"ordering_key": message.key} if message.key else {}
            changed = chain.apply(message.data, message.attributes or {}, known)
            made = replaced(message, changed.data, changed.attributes) if changed is not None else None
        if made is not None and form.schema is not None:
            made = _marked(made, _fitting(made.data, form.schema.encoding, revisions), form.schema.encoding)
        size += made.size if made is not None else 0
        if size > MAX_MADE:
            raise InvalidArgument(f"the topic's transforms made more than {MAX_MADE} bytes of this request")
        passed.append(made)
    return passed


def _fitting(data: bytes, encoding: str, revisions: Sequence[SchemaRevision]) -> SchemaRevision:
    """The newest revision that a message conforms to."""
    problem: InvalidArgument | None = None
    for revision in revisions:
        try:
            check_message(revision.kind, revision.definition, data, encoding)
        except InvalidArgument as error:
            problem = problem or error
        else:
            return revision
    raise problem or InvalidArgument("the topic accepts no revision of its schema")


def compiled_schema(kind: str, definition: str) -> Schema:
    """The checker of a schema. Slow for a new definition. FailedPrecondition if protobuf is not installed."""
    try:
        from penstock.schemas import SchemaKind, compile_schema  # noqa: PLC0415  # few programs need it
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("google"):
            raise
        raise FailedPrecondition("schemas need protobuf, which is not installed here", hint=how_to_install("server")) from None
    return compile_schema(SchemaKind(kind), definition)


def check_message(kind: str, definition: str, data: bytes, encoding: str) -> None:
    """InvalidArgument if a message does not conform to a schema. Blocks."""
    schema = compiled_schema(kind, definition)
    from penstock.schemas import Encoding  # noqa: PLC0415  # it is there: the line above has used it

    schema.validate(data, Encoding(encoding))


def _marked(message: StoredMessage, revision: SchemaRevision, encoding: str) -> StoredMessage:
    """A message with the name of its schema in its attributes, as Google's clients expect."""
    return replaced(
        message,
        message.data,
        {
            **(message.attributes or {}),
            "googclient_schemaencoding": encoding,
            "googclient_schemaname": revision.name,
            "googclient_schemarevisionid": revision.revision_id,
        },
    )
