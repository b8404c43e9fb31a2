"""Talking to a hub without a connection: sessions that say things, and what they hear."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

from penstock.durations import SECOND
from penstock.hub.core.effects import Append, Effect, Release, Retain, Verify
from penstock.hub.core.hub import Hub
from penstock.hub.core.identity import ANONYMOUS, Identity
from penstock.hub.core.messages import Message, Position
from penstock.hub.core.rules import Binding, HubRules
from penstock.hub.core.session import Session

HUB = "@(cloudflare/signal-hub)"
START = 1_700_000_000 * SECOND
MS = 1_000

Frame = dict[str, Any]
"""Any: what was on the wire, as JSON has it."""


class Talk:
    """A hub, a clock, and ids that are counted: id-1, id-2, … Wishes are carried out by the test, but for `Verify`."""

    def __init__(
        self,
        rules: HubRules | None = None,
        *,
        bindings: Sequence[Binding] = (),
        everything: Binding | None = None,
        original: bool = False,
    ) -> None:
        ids = count(1)
        self.now = START
        self.everything = everything or Binding("#", "hub", epoch="all")
        self.hub = Hub(
            rules or HubRules(rate=None),
            epoch="E",
            make_id=lambda: f"id-{next(ids)}",
            version="9.9",
            bindings=bindings,
            everything=self.everything,
            now=START,
        )
        self.original = original
        """Whether sessions speak the original's dialect, unless they say otherwise."""

    @property
    def ms(self) -> int:
        """The present instant as it is on the wire."""
        return self.now // MS

    # --- sessions -------------------------------------------------------------------------------------------------------------

    def open(self) -> Session:
        """A connection that has said nothing."""
        return self.hub.open(self.now)

    def meet(
        self, *, identity: Identity = ANONYMOUS, original: bool | None = None, resume: Session | None = None, **envelope: object
    ) -> Session:
        """A session that is connected, and may continue another; what it was told is forgotten."""
        session = self.open()
        is_original = self.original if original is None else original
        resumed = {} if resume is None else {"resume": resume.session_id}
        if is_original:
            envelope["metadata"] = {"protocolVersion": "0.1.0", "authToken": "bearer t", **resumed}
        effect = self.say(session, "hub:connect", None if is_original else {"version": "1.0", **resumed}, **envelope)
        assert isinstance(effect, Verify)
        self.hub.verified(session, effect, identity, self.now)
        self.forget(session)
        return session

    def connect(
        self,
        address: str = "@(browser/a)",
        *,
        ttl: float | None = None,
        capabilities: Sequence[str] = ("chat",),
        identity: Identity = ANONYMOUS,
        original: bool | None = None,
        resume: Session | None = None,
    ) -> Session:
        """A session that is registered; what it was told is forgotten."""
        session = self.meet(identity=identity, original=original, resume=resume)
        wanted: Frame = {"actorAddress": address, "capabilities": capabilities}
        self.say(session, "hub:register", wanted if ttl is None else wanted | {"ttl": ttl})
        assert session.actor is not None, self.heard(session)
        self.forget(session)
        return session

    def say(self, session: Session, kind: str, payload: object = None, **envelope: object) -> Effect | None:
        """A session says something. `sender` is its `from`."""
        if "sender" in envelope:
            envelope["from"] = envelope.pop("sender")
        return self.hub.receive(session, json.dumps({"type": kind, "payload": payload, **envelope}), self.now)

    def heard(self, session: Session) -> list[Frame]:
        """What a session was sent since this was asked last."""
        frames = session.outbox.take(1 << 40)
        texts = [b"".join(parts) for _, parts in frames]
        assert [length for length, _ in frames] == [len(text) for text in texts]
        assert session.is_dirty is (session in self.hub.dirty)
        if texts:
            self.hub.dirty.remove(session)  # there once, or nobody would have written it
            session.is_dirty = False
        return [json.loads(text) for text in texts]

    def forget(self, *sessions: Session) -> None:
        """Have sessions read what waits for them."""
        for session in sessions:
            self.heard(session)

    def ask(self, session: Session, kind: str, payload: object = None, **envelope: object) -> Frame:
        """The only thing that a session hears after it said something."""
        assert self.say(session, kind, payload, **envelope) is None
        (reply,) = self.heard(session)
        return reply

    def refused(self, session: Session, kind: str, payload: object = None, **envelope: object) -> Frame:
        """The payload of the only thing it hears: that it was refused. Whoever is refused is told what to do."""
        reply = self.ask(session, kind, payload, **envelope)
        assert (reply["type"], reply["from"]) == ("hub:error", HUB)
        error: Frame = reply["payload"]
        assert error["resolution"]
        assert isinstance(error["details"]["retryable"], bool)
        return error

    # --- what is often said ---------------------------------------------------------------------------------------------------

    def subscribe(self, session: Session, topic: str, **payload: object) -> Frame:
        """The payload of hub:subscribed."""
        reply = self.ask(session, "hub:subscribe", {"topic": topic, **payload})
        assert reply["type"] == "hub:subscribed", reply
        found: Frame = reply["payload"]
        return found

    def retain(self, session: Session, topic: str) -> Retain:
        """Subscribe durably, and let it succeed; what it was told is forgotten."""
        effect = self.say(session, "hub:subscribe", {"topic": topic, "durable": True})
        assert isinstance(effect, Retain)
        assert self.hub.retained(session, effect, self.now)
        self.forget(session)
        return effect

    def publish(self, session: Session, topic: str, data: object = None, **envelope: object) -> Effect | None:
        """Publish something of type `t`."""
        return self.say(session, "hub:publish", {"topic": topic, "type": "t", "data": data}, **envelope)

    def append(self, session: Session, topic: str, data: object = None, **envelope: object) -> Append:
        """Publish to a topic that has a log."""
        effect = self.publish(session, topic, data, **envelope)
        assert isinstance(effect, Append)
        return effect

    def release(self, session: Session, kind: str, payload: object = None, **envelope: object) -> Release:
        """Say something that ends durable subscriptions."""
        effect = self.say(session, kind, payload, **envelope)
        assert isinstance(effect, Release)
        return effect

    def messages(self, session: Session) -> list[object]:
        """The payloads of the messages that a session was forwarded; what else it was told is passed over."""
        return [frame["payload"] for frame in self.heard(session) if not frame["type"].startswith("hub:")]

    # --- time, and logs -------------------------------------------------------------------------------------------------------

    def later(self, span: int) -> None:
        """Time passes, and the hub looks after what is due."""
        self.now += span
        self.hub.sweep(self.now)

    def stored(self, binding: Binding, offset: int, topic: str | None, data: object = None, **fields: Any) -> Message:
        """A message as a log brings it. Any: the fields of a message."""
        fields.setdefault("message_id", f"m-{offset}")
        return Message(
            type="t",
            sender="@(x/y)",
            data=json.dumps(offset if data is None else data).encode(),
            published_at=self.now,
            topic=topic,
            position=Position(binding.epoch, offset),
            **fields,
        )

    def bring(self, binding: Binding, *messages: Message) -> None:
        """The log brings something new."""
        self.hub.forward(binding, messages, self.now)


def pick(frame: Frame, *names: str) -> Frame:
    """Some fields of a frame."""
    return {name: frame[name] for name in names if name in frame}
