"""Amazon SQS, and servers that speak its protocol (specification 001, "SQS Consumer" and "Visibility Timeout Control").

    poll    ReceiveMessage, a long poll of up to 20 s; after a batch that is neither empty nor full the next waits 100 ms
    ack     DeleteMessageBatch; if the receipt handle is no longer valid, the message is deleted as soon as it is redelivered
    nack    ChangeMessageVisibilityBatch to the delay
    extend  the same; SQS allows a message to be held for at most 12 hours in total

A FIFO queue keeps the order of its groups itself: it delivers no more of a group while messages of it are delivered. The group by
which the router orders is in the message's body. SQS continues a long poll whose caller has disconnected, and may deliver
messages to it: they stay hidden until their lease ends. So the router awaits its polls before it stops (`polls_at_server`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from secrets import token_hex
from typing import TypeVar

import msgspec

from penstock.backoff import exponential
from penstock.clock import Clock
from penstock.durations import SECOND
from penstock.errors import InvalidArgument, PenstockError, Unavailable
from penstock.router.core.config import QueueConfig
from penstock.router.core.message import SourceMessage
from penstock.router.core.tracker import LateAcks
from penstock.router.source import QueueDepth, SourceContext
from penstock.router.sources.sqs_api import BUSY, Refusal, SqsApi, address_of

BATCH = 10
"""The maximum number of entries in a call to SQS."""
CALLS = 8
"""The maximum number of running calls."""
PARTIAL_CALLS = 2
"""If at most this many calls are running, a batch that is not full is sent at once."""


class Entry(msgspec.Struct, gc=False, eq=False):
    """One message to settle."""

    broker_id: str
    receipt: str
    seconds: int = 0


class Outbox:
    """Collects the settlements of the source during a turn of the loop, and sends them in batches, several at a time.

        put ── waiting ──(a batch is full, or few calls are running)── running ── done

    Under load, batches fill up while earlier ones are running, so they are cheap; without load no entry waits. Only one entry of
    a message is sent at a time, and a later entry replaces one that waits: the server receives them in order.
    """

    def __init__(self, send: Callable[[list[Entry]], Awaitable[None]]) -> None:
        self._send = send
        self._waiting: dict[str, Entry] = {}
        self._under_way: dict[str, Entry] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._turn: asyncio.Handle | None = None
        self._flushers: list[asyncio.Future[None]] = []

    def __contains__(self, broker_id: str) -> bool:
        return broker_id in self._waiting or broker_id in self._under_way

    def put(self, entry: Entry) -> None:
        self._waiting[entry.broker_id] = entry
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._start)

    def drop(self, broker_id: str) -> None:
        """Do not send the entry of this message, if it still waits."""
        self._waiting.pop(broker_id, None)

    async def flush(self) -> None:
        """Return when all entries so far are done."""
        told = {*self._waiting.values(), *self._under_way.values()}
        while told:
            self._start(CALLS)
            progress = asyncio.get_running_loop().create_future()
            self._flushers.append(progress)
            await progress
            told &= {*self._waiting.values(), *self._under_way.values()}

    async def cancel(self) -> list[Entry]:
        left = [*self._under_way.values(), *self._waiting.values()]
        self._waiting.clear()
        calls = set(self._calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)
        self._under_way.clear()  # a call that was cancelled before it started could not
        return left

    def _start(self, partial_calls: int = PARTIAL_CALLS) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        while self._waiting and len(self._calls) < CALLS:
            batch = self._next()
            if not batch or (len(batch) < BATCH and len(self._calls) >= partial_calls):
                return
            for entry in batch:
                del self._waiting[entry.broker_id]
                self._under_way[entry.broker_id] = entry
            call = asyncio.get_running_loop().create_task(self._carry_out(batch))
            self._calls.add(call)
            call.add_done_callback(self._ended)

    def _next(self) -> list[Entry]:
        batch: list[Entry] = []
        for broker_id, entry in self._waiting.items():
            if broker_id not in self._under_way:
                batch.append(entry)
                if len(batch) == BATCH:
                    break
        return batch

    async def _carry_out(self, batch: list[Entry]) -> None:
        try:
            await self._send(batch)
        finally:
            for entry in batch:
                del self._under_way[entry.broker_id]

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._start()
        flushers, self._flushers = self._flushers, []
        for flusher in flushers:
            if not flusher.done():
                flusher.set_result(None)


T = TypeVar("T")

log = logging.getLogger("penstock.router")

POLL_SECONDS = 20
PARTIAL_PAUSE = 0.1
MAX_VISIBILITY = 43_200
MARGIN = 5
"""How many seconds an answer may have taken: SQS counts its 12 hours from before."""
TRIES = 4
FIRST_PAUSE, LONGEST_PAUSE = SECOND // 10, 2 * SECOND
STOP_SECONDS = 10
"""The time limit for sending the rest when the source stops: an unreachable server must not delay the router."""

_GROUP = re.compile(r"[!-~]{1,128}")
"""The group names that SQS accepts."""
_DEPTH = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")


def open_source(config: QueueConfig, context: SourceContext) -> SqsSource:
    """The source of an SQS queue; InvalidArgument if the configuration is not valid for SQS."""
    if not 1 <= config.visibility_timeout <= MAX_VISIBILITY:
        raise InvalidArgument.of("visibilityTimeout", config.visibility_timeout, f"1 to {MAX_VISIBILITY} seconds")
    address = address_of(config.uri, context.environment)
    api = SqsApi(address, context.environment, context.clock)
    return SqsSource(api, config, context.clock, max_messages=context.sqs_max_messages, wait_seconds=context.sqs_wait_seconds)


class _Message(msgspec.Struct, rename="pascal", gc=False):
    message_id: str
    receipt_handle: str
    body: str = ""
    attributes: dict[str, str] = {}


class _Messages(msgspec.Struct, rename="pascal"):
    messages: list[_Message] | None = None


class _Failed(msgspec.Struct, rename="pascal"):
    id: str
    code: str = ""
    sender_fault: bool = False


class _Settled(msgspec.Struct, rename="pascal"):
    failed: list[_Failed] | None = None


class _Attributes(msgspec.Struct, rename="pascal"):
    attributes: dict[str, str] = {}


class _Sent(msgspec.Struct, rename="pascal"):
    message_id: str


_sent = msgspec.json.Decoder(_Sent)
_messages = msgspec.json.Decoder(_Messages)
_settled = msgspec.json.Decoder(_Settled)
_attributes = msgspec.json.Decoder(_Attributes)


class _Held(msgspec.Struct, gc=False):
    """A message that is delivered and not settled."""

    receipt: str
    since: float


class SqsSource:
    """One SQS queue."""

    polls_at_server = True

    def __init__(
        self,
        api: SqsApi,
        config: QueueConfig,
        clock: Clock,
        *,
        max_messages: int = BATCH,
        wait_seconds: int = POLL_SECONDS,
    ) -> None:
        self.lease_seconds: float | None = float(config.visibility_timeout)
        self._api = api
        self._name = config.name
        self._visibility = config.visibility_timeout
        self._is_fifo = api.address.is_fifo
        self._clock = clock
        self._max_messages = max_messages
        self._wait_seconds = wait_seconds
        self._is_running = False
        self._is_healthy = False
        self._polls: set[asyncio.Task[list[SourceMessage]]] = set()
        self._pauses: deque[float] = deque()  # one for each partial batch: its poller does not poll before this time
        self._unanswered: list[str] = []
        self._held: dict[str, _Held] = {}  # in the order in which they were received
        self._late_acks = LateAcks()
        self._deletes = Outbox(self._delete)
        self._changes = Outbox(self._change)

    async def start(self) -> None:
        """Find the queue, and check that it can be used."""
        self._api.open()
        await self._attributes("QueueArn")
        self._is_running = True

    async def stop(self) -> None:
        """Cancel the polls, carry out the settlements, make unsettled messages visible, and close."""
        self._is_running = False
        polls = set(self._polls)
        for poll in polls:
            poll.cancel()
        if polls:
            await asyncio.wait(polls)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.flush()
                await self._give_back()
        except TimeoutError:
            log.warning("queue=%s problem=SQS did not get everything within %d s of stopping", self._name, STOP_SECONDS)
        await self._changes.cancel()
        for entry in await self._deletes.cancel():
            self._late_acks.add(entry.broker_id, self._clock.now())
        self._is_healthy = False
        self._api.close()

    @property
    def is_healthy(self) -> bool:
        return self._is_healthy

    async def poll(self, want: int, wait: float) -> Sequence[SourceMessage]:
        """Up to `want` messages, at most `max_messages`; none after `wait` seconds, rounded up, at most `wait_seconds`."""
        if not self._is_running or want < 1:
            return ()
        seconds = math.ceil(max(0, min(wait, self._wait_seconds)))
        poll = asyncio.get_running_loop().create_task(self._poll(min(want, self._max_messages), seconds))
        self._polls.add(poll)
        try:
            received = await poll
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and not caller.cancelling():
                return ()  # `stop` cancelled the poll, not its caller
            if poll.done() and not poll.cancelled() and poll.exception() is None:
                for unheard in poll.result():  # they arrived at the moment at which the caller was cancelled
                    self.nack(unheard, 0)
            raise
        finally:
            self._polls.discard(poll)
        return received if self._is_running else ()  # `stop` releases messages that arrive at the last moment

    def ack(self, received: SourceMessage) -> None:
        broker_id = received.broker_id
        held = self._held.pop(broker_id, None)
        if not self._is_running:
            self._late_acks.add(broker_id, self._clock.now())
            return
        self._changes.drop(broker_id)
        self._deletes.put(Entry(broker_id, received.receipt if held is None else held.receipt))

    def nack(self, received: SourceMessage, delay: int) -> None:
        """Make the message visible after this many seconds, 12 hours at most."""
        held = self._held.pop(received.broker_id, None)
        self._set_visibility(received, held, max(0, min(delay, _longest(held))))

    def extend(self, received: SourceMessage, seconds: int) -> None:
        """Keep the message hidden for this many seconds from now, within the limits of SQS."""
        held = self._held.get(received.broker_id)
        if (limit := _longest(held)) > 0:
            self._set_visibility(received, held, max(1, min(seconds, limit)))

    def set_lease(self, seconds: int) -> None:
        """Use another visibility timeout for later polls."""
        self.lease_seconds, self._visibility = float(seconds), seconds

    async def flush(self) -> None:
        """Return when all settlements so far are carried out, or given up."""
        await asyncio.gather(self._deletes.flush(), self._changes.flush())

    async def depth(self) -> QueueDepth | None:
        """The approximate number of messages that SQS reports."""
        found = await self._attributes(*_DEPTH)
        visible, not_visible, delayed = (int(found.get(name, 0)) for name in _DEPTH)
        return QueueDepth(visible, not_visible + delayed)

    async def send(self, body: bytes, group: str) -> str:
        """Put a message on the queue; for a FIFO queue in the group, so that SQS keeps the order of the router."""
        parameters: dict[str, object] = {"MessageBody": body.decode()}
        if self._is_fifo:
            is_usable = _GROUP.fullmatch(group) is not None
            parameters["MessageGroupId"] = group if is_usable else sha256(group.encode()).hexdigest()
            parameters["MessageDeduplicationId"] = token_hex()
        return _read(_sent, await self._call("SendMessage", **parameters)).message_id

    def _set_visibility(self, received: SourceMessage, held: _Held | None, seconds: int) -> None:
        if self._is_running:
            receipt = received.receipt if held is None else held.receipt
            self._changes.put(Entry(received.broker_id, receipt, seconds))

    async def _attributes(self, *names: str) -> dict[str, str]:
        return _read(_attributes, await self._call("GetQueueAttributes", AttributeNames=names)).attributes

    async def _call(self, action: str, **parameters: object) -> bytes:
        try:
            answer = await self._api.call(action, **parameters)
        except Refusal:
            self._is_healthy = True
            raise
        except PenstockError:
            self._is_healthy = False
            raise
        self._is_healthy = True
        return answer

    async def _poll(self, want: int, wait: int) -> list[SourceMessage]:
        loop = asyncio.get_running_loop()
        if self._pauses:
            await asyncio.sleep(self._pauses.popleft() - loop.time())
        messages = await self._receive(want, wait)
        now, received = loop.time(), []
        if 0 < len(messages) < want:
            self._pauses.append(now + PARTIAL_PAUSE)
        for message in messages:
            broker_id, receipt = message.message_id, message.receipt_handle
            if broker_id in self._deletes or self._late_acks.take(broker_id):
                self._deletes.put(Entry(broker_id, receipt))
                continue
            # Only the newest handle of a message is valid: an older delivery is settled with this one too.
            self._held.pop(broker_id, None)
            self._held[broker_id] = _Held(receipt, now)
            count = int(message.attributes.get("ApproximateReceiveCount", 1))
            received.append(SourceMessage(broker_id, message.body.encode(), receipt, count))
        return received

    async def _receive(self, want: int, wait: int) -> list[_Message]:
        parameters: dict[str, object] = {
            "MaxNumberOfMessages": want,
            "WaitTimeSeconds": wait,
            "VisibilityTimeout": self._visibility,
            "AttributeNames": ["ApproximateReceiveCount"],  # not every compatible server knows its newer name
        }
        if not self._is_fifo:
            return _read(_messages, await self._call("ReceiveMessage", **parameters)).messages or []
        # A lost answer hides its messages, and their groups, until the lease ends; for a repeated request with the same id, a
        # FIFO queue returns the same answer.
        attempt = self._unanswered.pop() if self._unanswered else token_hex()
        try:
            answer = await self._call("ReceiveMessage", **parameters, ReceiveRequestAttemptId=attempt)
            return _read(_messages, answer).messages or []
        except (Unavailable, asyncio.CancelledError):  # a cancelled poll may have been answered at that moment
            self._unanswered.append(attempt)
            raise

    async def _delete(self, entries: list[Entry]) -> None:
        for entry in await self._tell("DeleteMessageBatch", entries):
            self._late_acks.add(entry.broker_id, self._clock.now())

    async def _change(self, entries: list[Entry]) -> None:
        await self._tell("ChangeMessageVisibilityBatch", entries)

    async def _give_back(self) -> None:
        entries = [Entry(broker_id, held.receipt) for broker_id, held in self._held.items()]
        self._held.clear()
        if self._is_fifo:
            for start in range(0, len(entries), BATCH):
                await self._change(entries[start : start + BATCH])
            return
        for entry in entries:
            self._changes.put(entry)
        await self._changes.flush()

    async def _tell(self, action: str, entries: list[Entry]) -> list[Entry]:
        """Settle entries, and return those that the server refuses, or does not settle within several attempts."""
        refused: list[Entry] = []
        problem = ""
        for attempt in range(1, TRIES + 1):
            try:
                failed = await self._settle(action, entries)
            except Unavailable as error:
                problem = str(error)
            except Refusal as error:
                if len(entries) == 1:
                    problem = str(error)
                    break
                # An invalid entry must not keep the others from being settled.
                for entry in entries:
                    refused += await self._tell(action, [entry])
                return refused
            except PenstockError as error:
                problem = str(error)
                break
            else:
                refused += [entries[int(each.id)] for each in failed if not _passes(each)]
                problem = ", ".join(sorted({each.code for each in failed}))
                entries = [entries[int(each.id)] for each in failed if _passes(each)]
                if not entries:
                    break
            if attempt < TRIES:
                await asyncio.sleep(exponential(attempt, FIRST_PAUSE, LONGEST_PAUSE) / SECOND)
        if refused or entries:
            log.warning("queue=%s call=%s messages=%d problem=%s", self._name, action, len(refused) + len(entries), problem)
        return refused + entries

    async def _settle(self, action: str, entries: list[Entry]) -> list[_Failed]:
        rows: list[dict[str, object]] = [
            {"Id": str(number), "ReceiptHandle": entry.receipt} for number, entry in enumerate(entries)
        ]
        if action == "ChangeMessageVisibilityBatch":
            for row, entry in zip(rows, entries, strict=True):
                row["VisibilityTimeout"] = entry.seconds
        failed = _read(_settled, await self._call(action, Entries=rows)).failed or []
        if any(not each.id.isdecimal() or int(each.id) >= len(entries) for each in failed):
            raise Unavailable(f"SQS answers {action} for entries that it was not asked for")
        return failed


def _read(decoder: msgspec.json.Decoder[T], answer: bytes) -> T:
    try:
        return decoder.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unavailable(f"what SQS answers cannot be understood: {error}") from None


def _longest(held: _Held | None) -> int:
    """Seconds for which a message may still be hidden."""
    if held is None:
        return MAX_VISIBILITY
    return MAX_VISIBILITY - MARGIN - math.ceil(asyncio.get_running_loop().time() - held.since)


def _passes(failed: _Failed) -> bool:
    """Whether a retry may succeed."""
    return not failed.sender_fault or failed.code in BUSY
