"""Delivers messages by HTTP (specification 001, "HTTP Mediator"): checks the breaker, calls, and repeats the call if useful.

    deliver ──> breaker ──open──> outcome
                   └──> call ──> judged ──retryable, fewer than 3 calls──> pause ──> breaker …
                                    └──> outcome

Each call is judged by itself, and the breaker records its outcome. The outcome of an attempt is that of its last call, even if
the breaker refuses the next one. A target that asks for a pause (`Retry-After`) pauses its breaker: all its messages wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, MutableMapping
from urllib.parse import urlsplit

import msgspec

from penstock.clock import Clock, steady
from penstock.durations import SECOND
from penstock.http.client.target import MAX_LENGTH
from penstock.http.client.transport import Answer, Call, Failure, FailureKind, Transport
from penstock.router.core.circuit import Breaker, State
from penstock.router.core.message import HTTP, Pointer, RoutedMessage
from penstock.router.core.outcome import DELIVERED, TRIES, Disposition, Health, Outcome, judge
from penstock.router.core.signature import message_headers, standard_headers, standard_key
from penstock.router.options import RouterOptions

log = logging.getLogger("penstock.router")

GLOBAL = "http-mediator"
"""The name of the breaker, if there is one for all targets."""
MALFORMED = "malformed"
"""The name of the breaker of all targets that are not URLs."""
KEPT_URLS = 10_000
KEPT_TOKENS = 1_000
KEPT_TOKEN = 8_192
"""The length limit of cached tokens in characters: messages may come from anyone, and be large."""
IDLE_BREAKER = 3600 * SECOND

Done = Callable[[RoutedMessage, int, Outcome, int], None]
"""Receives the outcome of an attempt: the message, the number of calls, the outcome, and the present (steady) time."""

_encode = msgspec.json.Encoder().encode
_NOTHING = msgspec.Raw(b"null")


class ThinBody(msgspec.Struct, rename="camel"):
    """What a target receives."""

    message_id: str


class FullBody(msgspec.Struct, rename="camel", omit_defaults=True):
    """The same with the message's content."""

    message_id: str
    message_group_id: str
    payload: msgspec.Raw = msgspec.Raw(b"")


class Delivery(msgspec.Struct, eq=False):
    """One attempt to deliver a message, from its first call."""

    item: RoutedMessage
    mediator: Mediator
    done: Done
    breaker: Breaker
    epoch: int
    """The breaker's epoch when the call was made."""
    headers: bytes
    body: bytes
    calls: int = 1
    call: Call | None = None
    """The running call."""
    timer: asyncio.TimerHandle | None = None
    """Starts the next call."""
    last: Outcome | None = None
    """The outcome of the last call, while waiting for the next one."""

    def cancel(self) -> None:
        """Cancel it; `done` is not called any more."""
        if self.timer is not None:
            self.timer.cancel()
        if self.call is not None:
            self.call.cancel()
            self.breaker.record(Health.UNKNOWN, self.mediator.steady(), self.epoch)
        self.item.delivery = None

    def answered(self, found: Answer | Failure) -> None:
        """A call has ended: the attempt ends with it, or calls again after a pause."""
        self.call = None
        now, breaker = self.mediator.steady(), self.breaker
        outcome = DELIVERED.get(found.status) if type(found) is Answer and not found.body else None
        if outcome is None:
            outcome = judge(found, self.mediator.clock.now)
        if breaker.is_clean and outcome.disposition is Disposition.DELIVERED:  # then recording would change nothing else
            breaker.succeeded += 1
            breaker.used_at = now
        elif self._calls_again(outcome, now):
            return
        item = self.item
        item.delivery = None
        self.done(item, self.calls, outcome, now)

    def _calls_again(self, outcome: Outcome, now: int) -> bool:
        """Record the outcome of a call; True if the next one follows after a pause."""
        mediator, breaker = self.mediator, self.breaker
        if breaker.record(outcome.health, now, self.epoch):
            mediator.changed(self.item.pointer.target, breaker)
        if outcome.error:
            breaker.error = outcome.error
        if outcome.is_pause:
            breaker.pause(now + outcome.effective_delay * SECOND)
        if not outcome.is_retryable or self.calls >= TRIES or mediator.is_stopping:
            return False
        self.last = outcome
        self.timer = mediator.loop.call_later(mediator.options.retry_pause * self.calls, self._again)
        return True

    def _again(self) -> None:
        mediator = self.mediator
        self.timer = None
        now = mediator.steady()
        wait = self.breaker.may(now)
        if wait:
            assert self.last is not None
            self.item.delivery = None
            self.done(self.item, self.calls, msgspec.structs.replace(self.last, delay=_seconds(wait)), now)
            return
        self.calls += 1
        self.epoch = self.breaker.epoch
        # Signed again: the first call may have taken longer than targets accept the time of a signature.
        self.headers = mediator.headers(self.item.pointer, self.body) or self.headers
        try:
            self.call = mediator.transport.post(
                self.item.pointer.target, self.headers, self.body, mediator.options.request_timeout, self.answered
            )
        except Exception as error:
            log.exception("the call for message %r failed", self.item.pointer.message_id)
            self.answered(Failure(FailureKind.UNKNOWN, f"the call failed unexpectedly: {type(error).__name__}"))


def endpoint(url: str, *, has_path: bool = True) -> str:
    """The scheme, host and port of a target, with or without its path; never a user or a query. `MALFORMED` if it is no URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MALFORMED
    if len(url) > MAX_LENGTH or not parts.netloc:
        return MALFORMED
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()
    return f"{origin}{parts.path or '/'}" if has_path else origin


def _seconds(wait: int) -> int:
    return max(-(-wait // SECOND), 1)


_OPEN = judge(Failure(FailureKind.CIRCUIT_OPEN, "the target fails too often: its circuit breaker is open"), int)
_PAUSED = judge(Failure(FailureKind.CIRCUIT_OPEN, "the target asked for a pause: it is not called before that is over"), int)
_BAD_HEADER = judge(Failure(FailureKind.MALFORMED, "the message's id or token has characters that no header may have"), int)


class Mediator:
    """Delivers for all pools of a router. Belongs to one event loop."""

    def __init__(
        self, transport: Transport, options: RouterOptions, clock: Clock, breakers: MutableMapping[str, Breaker] | None = None
    ) -> None:
        """`breakers`: where breakers are kept, by name."""
        self.transport = transport
        self.options = options
        self.clock = clock
        self.steady = steady(clock)
        self.loop = asyncio.get_running_loop()
        self.is_stopping = False
        self.breakers: MutableMapping[str, Breaker] = {} if breakers is None else breakers
        """By target: scheme, host and port."""
        self.changed: Callable[[str, Breaker], None] = lambda _target, _breaker: None
        """Called when a breaker changes its state."""
        self._by_url: dict[str, Breaker] = {}
        self._tokens: dict[str, bytes | None] = {"": b""}
        self._key = standard_key(options.signing_secret) if options.signing_secret else None
        self._is_thin = options.payload == "thin"
        self._is_plain = self._key is None

    def deliver(self, item: RoutedMessage, done: Done, now: int) -> Outcome | None:
        """Deliver a message: an outcome without a call is returned; otherwise `done` is called with the outcome."""
        pointer = item.pointer
        if pointer.mediation_type != HTTP:
            return judge(Failure(FailureKind.UNSUPPORTED, f"the mediation type {pointer.mediation_type!r} is not HTTP"), int)
        if self._is_thin:
            body = _encode(ThinBody(pointer.message_id))
        else:
            body = _encode(FullBody(pointer.message_id, pointer.group, pointer.payload if bytes(pointer.payload) else _NOTHING))
        headers = self._tokens.get(pointer.auth_token) if self._is_plain and not pointer.signing_secret else None
        if headers is None:
            headers = self.headers(pointer, body)
            if headers is None:
                return _BAD_HEADER
        breaker = self._by_url.get(pointer.target)
        if breaker is None:
            breaker = self.breaker(pointer.target)
        if not breaker.is_clean and (wait := breaker.may(now)):
            return msgspec.structs.replace(_PAUSED if breaker.state is State.CLOSED else _OPEN, delay=_seconds(wait))
        try:
            delivery = item.delivery = Delivery(item, self, done, breaker, breaker.epoch, headers, body)
            delivery.call = self.transport.post(pointer.target, headers, body, self.options.request_timeout, delivery.answered)
        except Exception:
            item.delivery = None
            breaker.record(Health.UNKNOWN, now, breaker.epoch)  # otherwise a half-open breaker would wait for it forever
            raise
        return None

    def headers(self, pointer: Pointer, body: bytes) -> bytes | None:
        """The header lines of a message; None if a value would break out of its line."""
        try:
            lines = self._tokens[pointer.auth_token]
        except KeyError:
            lines = self._token_line(pointer.auth_token)
        if lines is None or (self._key is None and not pointer.signing_secret):
            return lines
        if not pointer.message_id.isprintable() or not pointer.message_id.isascii():
            return None
        now = self.clock.now()
        if pointer.signing_secret:
            lines += message_headers(pointer.signing_secret, body, now)
        if self._key is not None:
            lines += standard_headers(self._key, pointer.message_id, body, now)
        return lines

    def breaker(self, url: str) -> Breaker:
        try:
            return self._by_url[url]
        except KeyError:
            pass
        name = self.breaker_name(url)
        found = self.breakers.get(name)
        if found is None:
            found = self.breakers[name] = Breaker()
        if len(self._by_url) >= KEPT_URLS:
            self._by_url.clear()
        if name != MALFORMED:
            self._by_url[url] = found
        return found

    def breaker_name(self, url: str) -> str:
        """The name of the breaker of a target, by `breaker_scope`."""
        scope = self.options.breaker_scope
        return GLOBAL if scope == "global" else endpoint(url, has_path=scope == "endpoint")

    def forget_idle(self, now: int) -> None:
        """Forget breakers that were not used for an hour, unless their target asked for a longer pause."""
        idle = [
            name
            for name, breaker in self.breakers.items()
            if breaker.used_at < now - IDLE_BREAKER and breaker.paused_until <= now
        ]
        for name in idle:
            del self.breakers[name]
        if idle:
            self._by_url.clear()

    def _token_line(self, token: str) -> bytes | None:
        line = b"Authorization: Bearer %b\r\n" % token.encode() if token.isascii() and token.isprintable() else None
        if len(self._tokens) >= KEPT_TOKENS:
            self._tokens = {"": b""}
        if len(token) <= KEPT_TOKEN:
            self._tokens[token] = line
        return line
