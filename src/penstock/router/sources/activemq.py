"""Messages of an ActiveMQ queue, by STOMP 1.2 with individual acknowledgements.

Its URI is `activemq://[user:password@]host[:port][,host…]/QUEUE[?option=value…]`.

    MESSAGE ──> ready ──poll──> held ──┬── ack      ACK
                  ^               │    ├── nack 0   ready again, in its old place: it never left
                  └───────────────┘    └── nack n   the same after the delay, which it waits for here; a long one:
                                                    SEND of a copy with AMQ_SCHEDULED_DELAY, confirmed, then ACK
    disconnect, ours or the server's: everything without an ACK is in the queue again, in order

How ActiveMQ behaves, and the consequences:
- STOMP's own NACK dead-letters a message at once: it is never used.
- A scheduled SEND in a transaction is scheduled after the commit: a crash between would lose the message, whose ACK was in the
  same transaction. So the copy is confirmed before the original is acked: a crash between gives both, with the same `broker_id`.
- A server without `schedulerSupport` delivers such a copy at once. The copy carries its due time and lacks the scheduler's mark:
  so it is recognized, kept here until then, and no more copies are made.
- There is only one subscription: with two, messages of both are redelivered out of order. `prefetch` is its size, and cannot
  change while messages are held; a router that stops polling and holds nothing gives up the subscription and its messages.
- The server looks for messages to push, at most 200, only when something happens in the queue. So a poll that waits while
  messages are held triggers it: it opens and closes a subscription that matches nothing.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from secrets import token_hex
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from penstock.clock import Clock
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, InvalidArgument, Unavailable
from penstock.router.core.config import QueueConfig
from penstock.router.core.message import SourceMessage
from penstock.router.core.outcome import MAX_DELAY
from penstock.router.core.tracker import LateAcks
from penstock.router.source import QueueDepth, SourceContext
from penstock.router.sources.stomp import (
    Frame,
    Login,
    NotStomp,
    StompConnection,
    escape,
    frame,
    header,
    headers,
    open_connection,
    unescape,
)

PORT: Final = 61613
TLS_PORT: Final = 61614
PREFETCH: Final = 5_000
MOST_PREFETCH: Final = 100_000

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:\s]+)(?::(\d{1,5}))?")
_NO_QUEUE: Final = re.compile(r"[,*>?\x00-\x1f\x7f]")
"""Separators of several queues, and characters that a name cannot have."""
_SWITCH: Final = {"true": True, "false": False}


class Address(msgspec.Struct, frozen=True):
    """The parts of a queue's URI."""

    hosts: tuple[tuple[str, int], ...]
    queue: str
    login: Login
    prefetch: int = PREFETCH
    """How many unsettled messages the server may have pushed."""
    is_exclusive: bool = False
    """Only one router at a time gets messages; the next takes over, in order, when it is gone."""
    has_tls: bool = False
    ca: str = ""
    """A file of certificates to trust; "": those that the machine trusts."""


def parse_address(uri: str) -> Address:
    """The parts of a URI; InvalidArgument, without its password, if it is not valid."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise _wrong("something else") from None
    if parts.fragment or parts.scheme.lower() != "activemq":
        raise _wrong("something else")
    options = _options(parts.query)
    has_tls = _switch(options, "tls")
    if "ca" in options and not has_tls:
        raise InvalidArgument.of("ca of an ActiveMQ URI", options["ca"], "tls=true beside it")
    user, _, places = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    login = Login(unquote(name), unquote(password))
    if any(character in login.user + login.password for character in "\r\n\0"):
        raise InvalidArgument("the user or the password in an ActiveMQ URI holds a control character")
    queue = unquote(parts.path.removeprefix("/"))
    if not queue or _NO_QUEUE.search(queue):
        raise InvalidArgument.of("the queue in an ActiveMQ URI", queue, "the name of one queue", hint=_WANTED)
    return Address(
        tuple(_place(place, TLS_PORT if has_tls else PORT) for place in places.split(",")),
        queue,
        login,
        _prefetch(options.get("prefetch", str(PREFETCH))),
        _switch(options, "exclusive"),
        has_tls,
        options.get("ca", ""),
    )


def _place(text: str, port: int) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    number = int(found[2] or port) if found is not None else 0
    if found is None or not 1 <= number <= 65535:
        raise InvalidArgument.of("a host in an ActiveMQ URI", text, "a host, or a host and a port of 1 to 65535", hint=_WANTED)
    return found[1].strip("[]"), number


def _options(query: str) -> dict[str, str]:
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise _wrong("options that cannot be read") from None
    if unknown := options.keys() - {"prefetch", "exclusive", "tls", "ca"}:
        raise InvalidArgument.of("an option of an ActiveMQ URI", min(unknown), "prefetch, exclusive, tls or ca", hint=_WANTED)
    return options


def _switch(options: dict[str, str], name: str) -> bool:
    value = options.get(name, "false")
    if value not in _SWITCH:
        raise InvalidArgument.of(f"{name} of an ActiveMQ URI", value, "true or false")
    return _SWITCH[value]


def _prefetch(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MOST_PREFETCH):
        raise InvalidArgument.of("prefetch of an ActiveMQ URI", text, f"1 to {MOST_PREFETCH:,}")
    return int(text)


def _wrong(found: str) -> InvalidArgument:
    return InvalidArgument(f"the URI of an ActiveMQ queue is {found}", hint=_WANTED)


_WANTED = "expected activemq://user:password@host:61613/QUEUE; several hosts are separated by commas"


MARK: Final = "\npenstock-"
"""A header of every copy."""
ID: Final = "penstock-id"
"""The message's id before it was copied."""
_COUNT: Final = "penstock-count"
_DUE: Final = "penstock-due"
"""When it may be delivered, in microseconds since 1970."""
_SCHEDULED: Final = "scheduledJobId"
"""A header of the server's scheduler; a message with it is not scheduled again, so copies must not keep it."""
_NOT_COPIED: Final = {
    *("ack", "content-length", "destination", "message-id", "receipt", "redelivered", "subscription", "timestamp", "transaction"),
    *(ID, _COUNT, _DUE, _SCHEDULED, "persistent", "AMQ_SCHEDULED_DELAY"),
}


def copied(received: SourceMessage, head: str, due: int, now: int) -> dict[str, str]:
    """The headers of the copy that ActiveMQ's scheduler keeps until it is due: those of the message, and ours."""
    original = headers(head)
    fields = {name: value for name, value in original.items() if name not in _NOT_COPIED}
    if "content-length" in original:  # a message without it is text, and stays so
        fields["content-length"] = str(len(received.body))
    return fields | {
        "persistent": "true",
        "AMQ_SCHEDULED_DELAY": str(max(due - now, 0) // 1000),
        ID: escape(received.broker_id),
        _COUNT: str(received.count),
        _DUE: str(due),
    }


def recognize(received: SourceMessage, head: str, now: int) -> int:
    """Restore the id and the count of the original in a copy. Returns when it is due if it was not scheduled; 0 otherwise."""
    found = headers(head)
    if original := found.get(ID):
        received.broker_id = unescape(original)
    received.count += _number(found, _COUNT, 1) - 1
    return 0 if _SCHEDULED in found else min(_number(found, _DUE, 0), now + MAX_DELAY * SECOND)


def _number(found: dict[str, str], name: str, otherwise: int) -> int:
    """The number in a header that any client may have written."""
    text = found.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else otherwise


IDLE: Final = 1.0
"""Seconds without a poll after which the subscription is given up."""
MORE_AFTER_SECONDS: Final = 0.01
"""Seconds that a poll waits before it makes the server look for more messages."""
FLUSH_LIMIT: Final = 10.0
SHORT_DELAY: Final = 60
"""Delays of up to this many seconds are waited for here. A copy loses its place in the queue: if the router restarts, and knows
nothing of it, later messages would come first. Up to `prefetch` messages may wait; then the server pushes no more."""

_numbers = count(1)
"""Numbers connections and subscriptions."""


class _Receipt(msgspec.Struct, gc=False, eq=False):
    """The data needed to settle a delivery."""

    life: int
    """The number of the connection that it came by."""
    place: int
    """Its number among the deliveries of that connection."""
    message_id: str
    """The server's message id, unchanged: a copy has another one."""
    ack: str
    head: str


class ActiveMqSource:
    """One queue of an ActiveMQ server."""

    lease_seconds: float | None = None

    def __init__(self, address: Address, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._destination = escape(f"/queue/{address.queue}")
        self._late_acks = LateAcks()
        self._owed: dict[str, int] = {}
        """Messages that were nacked, perhaps without the server knowing it: when they are due."""
        self._may_move = True
        """Whether the server schedules copies, as far as we know."""
        self._connection: StompConnection | None = None
        self._connecting = asyncio.Lock()
        self._stopped = asyncio.Event()
        self._stopped.set()
        self._problem = "it was not started"
        self._polls: deque[asyncio.Future[None]] = deque()
        self._confirmed = asyncio.Event()
        self._forget()

    def _forget(self) -> None:
        """Reset for a new connection: the messages of the last one are in the queue again."""
        self._life = next(_numbers)
        self._arrived = 0
        self._subscription: str | None = None
        self._ready: deque[SourceMessage] = deque()
        self._returned: list[tuple[int, SourceMessage]] = []
        self._held: dict[str, _Receipt] = {}
        self._kept: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        """Messages that wait here, until when, and the timers that wake them."""
        self._moving: dict[str, int] = {}
        """Messages whose copy is not confirmed yet, and when they are due."""
        self._acks: list[_Receipt] = []
        self._asked: list[_Receipt] = []
        """Acks that were sent and are not confirmed; one group at a time, the next waits for the answer."""
        self._will_send = False
        self._may_have_more = False
        self._idle: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Connect, and subscribe."""
        self._stopped.clear()
        await self._connect()

    async def stop(self) -> None:
        """Disconnect; the server releases unacked messages by itself."""
        self._stopped.set()
        self._problem = "it was stopped"
        for poll in self._polls:
            if not poll.done():
                poll.set_result(None)
        await self.flush()
        connection = self._connection
        if connection is None:
            return  # a connection that is being opened is closed when it is open
        try:
            await connection.ask("DISCONNECT", {})
        except Unavailable:
            pass  # the server notices that the connection is closed
        finally:
            connection.close()
            self._lost(self._problem)

    @property
    def is_healthy(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def poll(self, want: int, wait: float) -> Sequence[SourceMessage]:
        """Messages that were pushed, or arrive while the poll waits."""
        if self._stopped.is_set():
            return []
        if self._connection is None:
            try:
                await self._connect()
            except Unavailable:
                if not self._stopped.is_set():
                    raise
            if self._stopped.is_set():
                return []
        if self._subscription is None:
            self._subscribe()
        if not self._ready and not self._returned and wait > 0:
            await self._wait(wait)
            if self._connection is None and not self._stopped.is_set():
                raise Unavailable(f"the connection to ActiveMQ is lost: {self._problem}")
        self._watch_idle()
        return [] if self._stopped.is_set() else self._hand_out(want)

    async def _wait(self, wait: float) -> None:
        """Return when there are messages, or there is nothing to wait for."""
        loop = asyncio.get_running_loop()
        poll: asyncio.Future[None] = loop.create_future()
        self._polls.append(poll)
        over = loop.call_later(wait, lambda: None if poll.done() else poll.set_result(None))
        dry = loop.call_later(MORE_AFTER_SECONDS, self._nudge) if self._may_have_more and (self._held or self._kept) else None
        try:
            await poll
        finally:
            over.cancel()
            if dry is not None:
                dry.cancel()
            self._polls.remove(poll)

    def _hand_out(self, want: int) -> list[SourceMessage]:
        ready, returned, held = self._ready, self._returned, self._held
        found: list[SourceMessage] = []
        while len(found) < want and (ready or returned):
            received = heappop(returned)[1] if returned else ready.popleft()
            receipt: _Receipt = received.receipt
            if self._late_acks.take(receipt.message_id):
                self._ack(receipt)
                continue
            held[receipt.message_id] = receipt
            found.append(received)
        self._wake()
        return found

    def _wake(self) -> None:
        """Wake one poll at a time: when it has taken its share it wakes the next."""
        if self._ready or self._returned:
            for poll in self._polls:
                if not poll.done():
                    poll.set_result(None)
                    return

    def ack(self, received: SourceMessage) -> None:
        """Ack at the server, together with others of this turn; if the delivery is of an earlier connection, when redelivered."""
        receipt: _Receipt = received.receipt
        held = self._held.pop(receipt.message_id, None)
        if held is not None:
            self._ack(held)
        elif receipt.life != self._life:
            self._late_acks.add(receipt.message_id, self._clock.now())

    def nack(self, received: SourceMessage, delay: int) -> None:
        """Keep the message here and deliver it again, or have the server schedule a copy."""
        receipt: _Receipt = received.receipt
        held = self._held.pop(receipt.message_id, None)
        due = self._clock.now() + delay * SECOND if delay > 0 else 0
        if held is None:
            if due and receipt.life != self._life:
                self._owed[receipt.message_id] = due
            return
        again = SourceMessage(received.broker_id, received.body, held, received.count + 1)
        if not due:
            self._return(again)
        elif self._may_move and delay > SHORT_DELAY:
            self._move(again, due)
        else:
            self._keep(again, due)

    def extend(self, received: SourceMessage, seconds: int) -> None:
        """Nothing to do: messages are ours while we are connected."""

    def set_lease(self, seconds: int) -> None:
        """Nothing to do: there are no leases."""

    async def flush(self) -> None:
        """Return when the server has confirmed everything, or the connection is lost."""
        try:
            async with asyncio.timeout(FLUSH_LIMIT):
                while self._acks or self._asked or self._moving:
                    self._confirmed.clear()
                    await self._confirmed.wait()
        except TimeoutError:
            pass  # given up, as `Source` allows: it is remembered

    async def send(self, body: bytes, group: str) -> str:
        """Put a message on the queue. The group is in the body; the queue has one order for all groups."""
        connection = self._connection
        if connection is None:
            raise Unavailable(f"no connection to ActiveMQ: {self._problem}")
        broker_id = token_hex(16)  # only consumers learn the server's own id of the message
        fields = {"destination": self._destination, "persistent": "true", "content-length": str(len(body)), ID: broker_id}
        if (problem := await connection.ask("SEND", fields, body)) is not None:
            if not connection.is_open:
                raise Unavailable(f"the connection to ActiveMQ is lost: {problem}")
            raise FailedPrecondition(f"ActiveMQ does not let the queue {self._address.queue!r} be written to: {problem}")
        return broker_id

    async def depth(self) -> QueueDepth | None:
        """None: ActiveMQ does not report it by STOMP."""
        return None

    async def _connect(self) -> None:
        """Connect to the first host that answers."""
        async with self._connecting:
            if self._connection is not None or self._stopped.is_set():
                return
            address, tls = self._address, _tls(self._address)
            problem: Unavailable | None = None
            for host, port in address.hosts:
                try:
                    connection = await open_connection(
                        host,
                        port,
                        login=address.login,
                        tls=tls,
                        on_messages=self._take,
                        on_lost=self._lost,
                    )
                except Unavailable as error:
                    problem = error
                    continue
                break
            else:
                assert problem is not None
                raise problem
            if self._stopped.is_set():
                connection.close()
                return
            self._connection = connection
            await self._confirm_subscription(connection)

    async def _confirm_subscription(self, connection: StompConnection) -> None:
        """Subscribe, and wait for the server's answer."""
        try:
            problem = await connection.ask("SUBSCRIBE", self._subscription_fields())
        except BaseException as error:
            connection.close()
            self._lost(str(error))
            raise
        if self._connection is None:
            raise Unavailable(f"the connection to ActiveMQ is lost: {self._problem}")
        if problem is not None:
            connection.close()
            self._lost(problem)
            raise FailedPrecondition(f"ActiveMQ does not let the queue {self._address.queue!r} be read: {problem}")

    def _subscribe(self) -> None:
        assert self._connection is not None
        self._connection.write(frame("SUBSCRIBE", self._subscription_fields()))

    def _subscription_fields(self) -> dict[str, str]:
        """The fields of a new subscription, never one that was given up: messages on their way to that are not ours."""
        self._subscription = f"[{next(_numbers)}]"  # none is a prefix of another
        self._watch_idle()
        fields = {
            "id": self._subscription,
            "destination": self._destination,
            "ack": "client-individual",
            "activemq.prefetchSize": str(self._address.prefetch),
        }
        return {**fields, "activemq.exclusive": "true"} if self._address.is_exclusive else fields

    def _watch_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE, self._give_up)

    def _give_up(self) -> None:
        """Polling has stopped: let the server push to other consumers, and release the messages it pushed."""
        if self._connection is None or self._subscription is None:
            return
        if self._polls or self._held or self._kept or self._moving:
            self._watch_idle()
            return
        self._connection.write(frame("UNSUBSCRIBE", {"id": self._subscription}))
        self._subscription = None
        self._ready.clear()
        self._returned.clear()

    def _nudge(self) -> None:
        self._may_have_more = False
        if self._connection is not None:
            fields = {"id": "nudge", "destination": self._destination, "selector": "1=0", "activemq.prefetchSize": "1"}
            self._connection.write(frame("SUBSCRIBE", fields) + frame("UNSUBSCRIBE", {"id": "nudge"}))

    def _take(self, frames: list[Frame]) -> None:
        mark = f"\nsubscription:{self._subscription}"
        for head, body in frames:
            if mark not in head:
                continue  # of a subscription that was given up: it is in the queue again
            message_id, ack = header(head, "\nmessage-id:"), header(head, "\nack:")
            if message_id is None or ack is None:
                raise NotStomp("a message without an id came from the server")
            self._arrived += 1
            receipt = _Receipt(self._life, self._arrived, message_id, ack, head)
            received = SourceMessage(unescape(message_id), body, receipt, 2 if "\nredelivered:" in head else 1)
            if MARK in head or self._owed:
                self._take_again(received)
            else:
                self._ready.append(received)
        self._may_have_more = True
        self._wake()

    def _take_again(self, received: SourceMessage) -> None:
        """A message that was nacked is redelivered: it may be a copy, and may be early."""
        receipt: _Receipt = received.receipt
        now = self._clock.now()
        due = recognize(received, receipt.head, now)
        self._may_move = self._may_move and due <= now
        due = self._owed.pop(receipt.message_id, due)
        if due > now:
            self._keep(received, due)
        else:
            self._ready.append(received)

    def _keep(self, received: SourceMessage, due: int) -> None:
        """Keep a message until it is due; for the server it is being processed."""
        wait = max(due - self._clock.now(), 0) / SECOND
        timer = asyncio.get_running_loop().call_later(wait, self._release, received)
        self._kept[received.receipt.message_id] = due, timer

    def _release(self, received: SourceMessage) -> None:
        del self._kept[received.receipt.message_id]
        self._return(received)

    def _return(self, received: SourceMessage) -> None:
        heappush(self._returned, (received.receipt.place, received))
        self._wake()

    def _move(self, received: SourceMessage, due: int) -> None:
        """Have the server keep a copy until it is due."""
        assert self._connection is not None
        receipt: _Receipt = received.receipt
        fields = {
            **copied(received, receipt.head, due, self._clock.now()),
            "destination": self._destination,
            "receipt": self._connection.receipt(partial(self._moved, received, due)),
        }
        self._moving[receipt.message_id] = due
        self._connection.write(frame("SEND", fields, received.body))

    def _moved(self, received: SourceMessage, due: int, problem: str | None) -> None:
        if not self.is_healthy:
            return  # unknown: `_lost` remembers it
        del self._moving[received.receipt.message_id]
        if problem is None:
            self._ack(received.receipt)
        else:
            self._may_move = False
            self._keep(received, due)

    def _ack(self, receipt: _Receipt) -> None:
        self._acks.append(receipt)
        if not self._will_send and not self._asked:
            self._will_send = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        """Send the acks of one turn, or of the time that the server took for the last ones."""
        self._will_send = False
        if self._connection is None or self._asked or not self._acks:
            return
        self._asked, self._acks = self._acks, []
        acks = "\n\n\0ACK\nid:".join([receipt.ack for receipt in self._asked])
        self._connection.write(f"ACK\nid:{acks}\nreceipt:{self._connection.receipt(self._confirm)}\n\n\0".encode())

    def _confirm(self, problem: str | None) -> None:
        if self._connection is None or not self._connection.is_open:
            return  # unknown: `_lost` remembers them
        if problem is not None:
            self._connection.abort(problem)
            return
        self._asked = []
        self._send()
        self._confirmed.set()

    def _lost(self, problem: str) -> None:
        """Remember settlements that the server may have missed, and forget messages that it will push again."""
        now = self._clock.now()
        for receipt in (*self._asked, *self._acks):
            self._late_acks.add(receipt.message_id, now)
        owed = self._owed | self._moving | {message_id: due for message_id, (due, _) in self._kept.items()}
        self._owed = {message_id: due for message_id, due in owed.items() if due > now}
        for _, timer in self._kept.values():
            timer.cancel()
        if self._idle is not None:
            self._idle.cancel()
        self._connection = None
        self._problem = problem
        self._forget()
        self._confirmed.set()
        for poll in self._polls:
            if not poll.done():
                poll.set_result(None)


def _tls(address: Address) -> ssl.SSLContext | None:
    try:
        return ssl.create_default_context(cafile=address.ca or None) if address.has_tls else None
    except OSError as error:
        raise FailedPrecondition(f"the certificates in {address.ca!r} cannot be used: {error}") from None


def open_source(config: QueueConfig, context: SourceContext) -> ActiveMqSource:
    """The source of an `activemq:` URI."""
    return ActiveMqSource(parse_address(config.uri), context.clock)
