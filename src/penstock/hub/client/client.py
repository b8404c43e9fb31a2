"""HubClient: publish and subscribe in real time, over a WebSocket that reconnects automatically."""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Raw

from penstock.errors import InvalidArgument, PenstockError, ServerUnreachable
from penstock.hub.client.core.subscription import Gap
from penstock.hub.client.link import HubLink, Token
from penstock.hub.client.messages import (
    MAX_WAITING,
    ConnectionNews,
    HubActor,
    HubMessage,
    HubMessages,
    HubTopic,
    HubTopicInfo,
    Key,
    Presence,
    Published,
    instant,
    metadata_of,
)
from penstock.hub.client.request import ConnectionBroken
from penstock.hub.core import messages as wire
from penstock.hub.core.messages import Envelope, Position
from penstock.hub.core.names import covers, is_address, is_pattern, is_topic
from penstock.wire.address import HINT as SERVER_HINT
from penstock.wire.address import Address, Servers, split_servers

DEFAULT_SERVER = "http://127.0.0.1:8085"
MESSAGE_TYPE = "message"
"""The default type of messages."""
MAX_ACKS = 1_000
"""The maximum number of messages that one request acknowledges."""
MAX_REMEMBERED = 10_000
"""How many acknowledged messages, and how many ack ids by message, are remembered: far more than are unacknowledged."""
MAX_TOPICS = 1_000
"""The number of topics whose matching subscriptions are cached."""


class HubClient:
    """An actor at a hub. Use it with `async with`, in one event loop.

    `server` is the address of a server, of the WebSocket itself, or of several nodes of a cluster. Without an `address`, the
    client uses the one in the token, or a random one. `token` is a string, or a function that returns one and is called for each
    connection. Every call takes at most `timeout` seconds, including the wait for a connection. `on_connection` is called when
    a connection is lost or established.
    """

    def __init__(
        self,
        server: Servers = DEFAULT_SERVER,
        *,
        address: str | None = None,
        token: Token = None,
        capabilities: Sequence[str] = ("client",),
        metadata: Mapping[str, object] | None = None,
        ttl: float = 300.0,
        timeout: float = 10.0,
        tls: ssl.SSLContext | None = None,
        on_connection: Callable[[ConnectionNews], object] | None = None,
    ) -> None:
        if isinstance(capabilities, str) or not capabilities:
            raise InvalidArgument.of("capabilities", capabilities, "one word or more, such as ('chat',)")
        if not 1 <= ttl <= 3600:
            raise InvalidArgument.of("ttl", ttl, "seconds from 1 to 3600")
        if not timeout > 0:
            raise InvalidArgument.of("timeout", timeout, "seconds, more than 0")
        self._link = HubLink(
            [hub_url(one) for one in _several(server)],
            self,
            address=None if address is None else checked_address(address),
            token=token,
            capabilities=capabilities,
            metadata=metadata or {},
            ttl=ttl,
            timeout=timeout,
            tls=tls,
            on_connection=on_connection,
        )
        self._timeout = timeout
        self._subscriptions: list[HubMessages] = []
        self._takers: dict[str | None, list[HubMessages]] = {}
        """The cached subscriptions that match a topic."""
        self._left: dict[str, HubMessages] = {}
        """Durable subscriptions without a reader, by pattern: the hub continues to deliver them until this connection ends."""
        self._acked: OrderedDict[Key, None] = OrderedDict()
        self._ack_ids: OrderedDict[Key, list[str]] = OrderedDict()
        """The ack ids of each message: one for each of its deliveries over this connection."""
        self._ack_again: list[str] = []
        self._is_paused = False
        self._room = asyncio.Event()

    # ── open and close ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> Self:
        """Connect and register. `async with` calls this."""
        await self._link.start()
        return self

    async def close(self) -> None:
        """Disconnect from the hub; iterators over messages end. Durable subscriptions stay at the hub. Safe to call twice."""
        for messages in self._subscriptions:
            messages.close()
        self._room.set()
        await self._link.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """The address of this client, by which others see it."""
        return self._link.address

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now. Calls wait for one, so there is no need to check before a call."""
        return self._link.is_ready

    # ── subscribing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def subscribe(
        self,
        topic: str,
        *,
        durable: bool = False,
        presence: bool = False,
        since: Position | None = None,
        on_gap: Callable[[Gap], object] | None = None,
        on_presence: Callable[[Presence], object] | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> HubMessages:
        """The messages of a topic, or of a pattern (`+` is any one level, a last `#` any number). Use it with `async with`.

        `durable`: messages that are published while this address is away wait for it, and each is redelivered until it is acked.
        `since`: start after this position. `presence`: be notified of other subscribers.
        """
        if not is_pattern(topic):
            raise InvalidArgument.of(
                "topic", topic, "a topic or a pattern", hint="letters, digits, _ - and /; a level may be +, the last one #"
            )
        if durable and since is not None:
            raise InvalidArgument(
                "durable and since are given together", hint="a durable subscription knows by itself where it is"
            )
        return HubMessages(
            self,
            topic,
            durable=durable,
            presence=presence or on_presence is not None,
            since=since,
            on_gap=on_gap,
            on_presence=on_presence,
            max_waiting=max_waiting,
        )

    def direct(self, *, max_waiting: int = MAX_WAITING) -> HubMessages:
        """The messages that others send to this address, and broadcasts. Use it with `async with`."""
        return HubMessages(self, None, max_waiting=max_waiting)

    async def unsubscribe(self, topic: str) -> None:
        """End a subscription. A durable one is deleted, with its messages."""
        await self._link.ask(wire.Unsubscribe(topic), wire.Unsubscribed, is_repeatable=True)
        for messages in [one for one in self._subscriptions if one.pattern == topic]:
            messages.close()
            self._forget(messages)
        self._left.pop(topic, None)
        await self.taken()

    async def ack(self, *messages: HubMessage) -> None:
        """Acknowledge messages of durable subscriptions."""
        self._link.check()
        keys = [message.key for message in messages]
        for key in keys:
            self._acked[key] = None
        _shorten(self._acked)
        for one in (*self._subscriptions, *self._left.values()):
            one.settled(keys)
        # Messages of earlier connections have no ack ids here: the hub redelivers them, and they are acknowledged then.
        ids = [ack_id for key in keys for ack_id in self._ack_ids.get(key, ())]
        for start in range(0, len(ids), MAX_ACKS):
            await self._link.ask(wire.Ack(None, tuple(ids[start : start + MAX_ACKS])), wire.Acked, is_repeatable=True)
        for key in keys:
            self._ack_ids.pop(key, None)

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def publish(
        self,
        topic: str,
        data: Any = None,
        *,
        type: str = MESSAGE_TYPE,  # noqa: A002  # the protocol's own word
        ttl: float | None = None,
    ) -> Published:
        """Send data, any JSON value, to all subscribers of a topic. The message expires after `ttl` seconds.

        If the client has to send it again after a lost connection, it is forwarded only once. If the topic has history, the
        message is safe on disk when this returns.
        """
        _check_topic(topic)
        command = wire.Publish(topic, _checked_type(type), _encoded(data))
        found = await self._link.ask(command, wire.Published, is_repeatable=True, ttl=ttl)
        message_id = "" if found.message_id is UNSET else found.message_id
        return Published(found.topic, found.subscriber_count, message_id, None if found.position is UNSET else found.position)

    async def send(
        self,
        to: str,
        data: Any = None,
        *,
        type: str = MESSAGE_TYPE,  # noqa: A002  # the protocol's own word
        ttl: float | None = None,
    ) -> None:
        """Send data to one actor. Raises ActorNotFound if no actor is registered by that address."""
        command = wire.Send(checked_address(to, "to"), _checked_type(type), _encoded(data))
        await self._link.ask(command, wire.Delivered, ttl=ttl)

    async def broadcast(
        self,
        data: Any = None,
        *,
        type: str = MESSAGE_TYPE,  # noqa: A002  # the protocol's own word
        capability: str | None = None,
        include_self: bool = False,
    ) -> int:
        """Send data to all actors, or to those with a capability; returns the number of recipients."""
        command = wire.Broadcast(_checked_type(type), _encoded(data), not include_self, capability)
        return (await self._link.ask(command, wire.BroadcastDone)).delivered_count

    # ── queries ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def discover(
        self,
        pattern: str | None = None,
        *,
        capabilities: Sequence[str] = (),
        metadata: Mapping[str, object] | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[HubActor]:
        """The actors whose address matches a pattern, with all of these capabilities and this metadata."""
        command = wire.Discover(pattern, tuple(capabilities), dict(metadata or {}), limit, offset)
        return _actors(await self._link.ask(command, wire.DiscoveryResult, is_repeatable=True))

    async def actors(self, *, limit: int = 100, offset: int = 0) -> list[HubActor]:
        """All registered actors, by address."""
        return _actors(await self._link.ask(wire.ListActors(limit, offset), wire.DiscoveryResult, is_repeatable=True))

    async def topics(self, prefix: str = "", *, limit: int = 100, offset: int = 0) -> list[HubTopic]:
        """The topics and patterns that have subscribers, by name."""
        found = await self._link.ask(wire.ListTopics(prefix, limit, offset), wire.TopicList, is_repeatable=True)
        return [HubTopic(one.topic, one.subscriber_count) for one in found.topics]

    async def topic_info(self, topic: str) -> HubTopicInfo:
        """Information about a topic."""
        _check_topic(topic)
        found = await self._link.ask(wire.TopicInfo(topic), wire.TopicFacts, is_repeatable=True)
        return HubTopicInfo(
            found.topic,
            found.subscriber_count,
            found.exact_count,
            found.history,
            None if found.position is UNSET else found.position,
            None if found.bound_to is UNSET else found.bound_to,
        )

    async def presence(self, topic: str) -> list[str]:
        """The addresses of the subscribers of exactly this topic or pattern."""
        return [*(await self._link.ask(wire.Presence(topic), wire.PresenceNews, is_repeatable=True)).actors]

    async def refresh_token(self, token: str) -> None:
        """Continue with another token of the same actor, before the last one expires."""
        await self._link.ask(wire.RefreshToken(token), wire.TokenRefreshed, is_repeatable=True)
        self._link.keep_token(token)

    # ── called by its subscriptions ──────────────────────────────────────────────────────────────────────────────────────

    async def attach(self, messages: HubMessages) -> None:
        """Start a subscription; returns when the hub has confirmed it."""
        self._link.check()
        alike = [one for one in self._subscriptions if one.pattern is not None and one.pattern == messages.pattern]
        if any(one.durable != messages.durable for one in alike):
            raise InvalidArgument(
                f"{messages.pattern!r} is subscribed to by this client already, durable and not",
                hint="give durable to both or to none, or use another client for one of them",
            )
        self._subscriptions.append(messages)
        self._takers.clear()
        if messages.pattern is None:
            messages.confirmed.set()
            return
        try:
            if self._link.is_ready:
                # If the connection breaks before the reply, the next connection subscribes.
                with suppress(ConnectionBroken):
                    await self._link.ask(
                        _subscribe(messages), wire.Subscribed, on_reply=lambda reply: self._confirm(messages, reply)
                    )
            async with asyncio.timeout(self._timeout):
                await messages.confirmed.wait()
            if error := messages.error or self._link.error:
                raise error
            if messages.wants_presence:
                await self._link.ask(
                    wire.Presence(messages.pattern), wire.PresenceNews, is_repeatable=True, on_reply=messages.presence_changed
                )
        except TimeoutError:
            self._forget(messages)
            raise ServerUnreachable(self._link.url, "there was no connection to subscribe on") from None
        except BaseException:
            self._forget(messages)
            if self._stands_alone(messages):
                if messages.durable:
                    self._leave(messages)
                else:
                    await self._link.tell(wire.Unsubscribe(messages.pattern))
            raise

    def _confirm(self, messages: HubMessages, reply: wire.Subscribed) -> None:
        messages.confirm(reply)
        left = self._left.pop(messages.pattern or "", None)
        if left is not None:
            self._takers.clear()
            messages.inherit(left)

    async def detach(self, messages: HubMessages) -> None:
        """End a subscription in this client. A durable one continues at the hub."""
        if messages not in self._subscriptions:
            return
        self._forget(messages)
        if self._stands_alone(messages):
            if messages.durable:
                self._leave(messages)
            elif self._link.is_ready:
                with suppress(PenstockError):  # if this fails, it ends with the connection
                    await self._link.ask(wire.Unsubscribe(messages.pattern), wire.Unsubscribed)
            else:
                await self._link.tell(wire.Unsubscribe(messages.pattern))
        await self.taken()

    def _stands_alone(self, messages: HubMessages) -> bool:
        """Whether a subscription is active at the hub, and no other subscription here has the same pattern."""
        return messages.progress.is_subscribed and all(one.pattern != messages.pattern for one in self._subscriptions)

    def _leave(self, messages: HubMessages) -> None:
        self._left[messages.pattern or ""] = messages
        self._takers.clear()

    async def taken(self) -> None:
        """Ask the hub to continue when enough messages were taken."""
        self._room.set()
        if self._is_paused and all(one.waiting <= one.max_waiting // 2 for one in self._subscriptions):
            self._is_paused = False
            await self._link.tell(wire.Resume())

    def _forget(self, messages: HubMessages) -> None:
        if messages in self._subscriptions:
            self._subscriptions.remove(messages)
            self._takers.clear()
            self._room.set()

    # ── called by its link ──────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, envelope: Envelope) -> None:
        """Handle a message or a change of presence."""
        if envelope.type == "hub:presence":
            with suppress(msgspec.MsgspecError):
                news = msgspec.json.decode(envelope.payload, type=wire.PresenceNews)
                for messages in self._subscriptions:
                    if messages.pattern == news.topic and messages.wants_presence:
                        messages.presence_changed(news)
            return
        metadata = metadata_of(envelope)
        takers = self._takers.get(metadata.topic)
        if takers is None:
            takers = self._find_takers(metadata.topic)
        is_done = metadata.message_id is not None and bool(self._acked) and metadata.key in self._acked
        if metadata.ack_id is not None:
            if is_done:
                # It was acknowledged before: over a lost connection, or as a message of another subscription.
                self._ack_again.append(metadata.ack_id)
            else:
                self._ack_ids.setdefault(metadata.key, []).append(metadata.ack_id)
                _shorten(self._ack_ids)
        for messages in takers:
            if not (is_done and messages.durable):
                messages.offer(envelope, metadata)

    async def settle(self) -> None:
        """Ask the hub to pause when too many messages wait; stop reading if that does not help."""
        if self._ack_again:
            ids, self._ack_again = self._ack_again, []
            await self._link.tell(wire.Ack(None, tuple(ids)))
        if not self._is_paused and any(one.waiting >= one.max_waiting for one in self._subscriptions):
            self._is_paused = True
            await self._link.tell(wire.Pause("messages come faster than they are taken"))
        # Keep reading while a caller waits for an answer, which may be behind these messages: it may be the caller that should
        # take them. Keep reading too while the connection is not ready: the replies that make it ready have to be read.
        while self._link.is_ready and not self._link.questions and any(one.is_full for one in self._subscriptions):
            self._room.clear()
            await self._room.wait()

    def asked(self) -> None:
        """Continue reading, since a caller waits for an answer."""
        self._room.set()

    async def greeted(self) -> None:
        """Renew all subscriptions on a new connection."""
        self._is_paused = False
        while waiting := [
            one for one in self._subscriptions if one.pattern is not None and one.error is None and not one.progress.is_subscribed
        ]:
            for refusal, messages in zip(
                await asyncio.gather(*map(self._resume, waiting), return_exceptions=True), waiting, strict=True
            ):
                if isinstance(refusal, PenstockError) and not refusal.transient:
                    messages.fail(refusal)
                elif refusal is not None:
                    raise refusal

    async def _resume(self, messages: HubMessages) -> None:
        await self._link.ask_now(_subscribe(messages), wire.Subscribed, messages.subscribed)
        if messages.wants_presence:
            await self._link.ask_now(wire.Presence(messages.pattern), wire.PresenceNews, messages.presence_changed)

    def refused(self, pattern: str, error: PenstockError) -> None:
        """The hub has ended a subscription without a request."""
        self._left.pop(pattern, None)
        for messages in self._subscriptions:
            if messages.pattern == pattern:
                messages.progress.broke()
                messages.fail(error)

    def broke(self) -> None:
        """The connection is lost; there may be another one."""
        self._is_paused = False
        self._ack_ids.clear()
        self._left.clear()
        self._takers.clear()
        for messages in self._subscriptions:
            messages.broke()

    def failed(self, error: PenstockError) -> None:
        """There will be no further connection."""
        self._room.set()
        for messages in self._subscriptions:
            messages.fail(error)

    def _find_takers(self, topic: str | None) -> list[HubMessages]:
        if len(self._takers) >= MAX_TOPICS:
            self._takers.clear()
        found = self._takers[topic] = [
            one
            for one in (*self._subscriptions, *self._left.values())
            if (topic is None and one.pattern is None)
            or (topic is not None and one.pattern is not None and covers(one.pattern, topic))
        ]
        return found


def _subscribe(messages: HubMessages) -> wire.Subscribe:
    since = messages.progress.ask()
    return wire.Subscribe(messages.pattern, messages.durable, messages.wants_presence, None if messages.durable else since)


def _shorten(remembered: OrderedDict[Key, Any]) -> None:
    while len(remembered) > MAX_REMEMBERED:
        remembered.popitem(last=False)


def _encoded(data: object) -> Raw:
    try:
        return Raw(msgspec.json.encode(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"data cannot be written as JSON: {error}", hint="send dicts, lists, texts, numbers, and such"
        ) from None


def _check_topic(topic: str) -> None:
    if not is_topic(topic):
        raise InvalidArgument.of("topic", topic, "one topic: letters, digits, _ - and /", hint="+ and # are for subscriptions")


def _checked_type(name: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 256 or name.startswith("hub:"):
        raise InvalidArgument.of(
            "type", name, "a word of 1 to 256 characters that does not begin with hub:", hint="as in 'order:created'"
        )
    return name


def _actors(found: wire.DiscoveryResult) -> list[HubActor]:
    return [HubActor(one.actor_address, one.capabilities, one.metadata, instant(one.registered_at)) for one in found.actors]


PATH = "/ws"
HINT = "http://HOST:8085 or https://HOST:8085, or the WebSocket itself: ws://HOST:8085/ws"


def _several(server: Servers) -> list[str]:
    try:
        return split_servers(server)
    except InvalidArgument as error:
        error.hint = HINT
        raise


def hub_url(server: object) -> str:
    """The WebSocket of a server: `http://host:8085` becomes `ws://host:8085/ws`."""
    if not isinstance(server, str) or not server.startswith(("ws://", "wss://")):
        try:
            address = Address.parse(server)
        except InvalidArgument as error:
            error.hint = (error.hint or "").replace(SERVER_HINT, HINT)  # the native port does not serve the hub
            raise
        if address.scheme not in {"http", "https"}:
            raise InvalidArgument.of("server", server, "the address of a server's HTTP port", hint=HINT)
        host = f"[{address.host}]" if ":" in address.host else address.host
        return f"{'wss' if address.has_tls else 'ws'}://{host}:{address.port}{PATH}"
    try:
        parts = urlsplit(server)
        is_whole = bool(parts.hostname) and parts.port != 0 and " " not in server
    except ValueError:
        parts, is_whole = None, False
    if parts is None or not is_whole:
        raise InvalidArgument.of("server", server, "the address of a hub", hint=HINT)
    if parts.username is not None or parts.query or parts.fragment:
        # These parts may contain a secret, so the error does not repeat them.
        raise InvalidArgument(
            f"server has more than a host, a port and a path (the host is {parts.hostname!r}), expected the address of a hub",
            hint=f"{HINT}; a token is given as token=…",
        )
    return server if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{PATH}"


def checked_address(address: object, name: str = "address") -> str:
    """The valid address of an actor. Raises InvalidArgument if it is not one."""
    if not isinstance(address, str) or not is_address(address):
        raise InvalidArgument.of(
            name,
            address,
            "an actor's address such as '@(browser/ui)'",
            hint="a kind and a name: lower-case letters, digits and -",
        )
    return address
