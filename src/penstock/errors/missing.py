"""What the call names does not exist."""

from __future__ import annotations

from typing import ClassVar

from penstock.errors.root import PenstockError
from penstock.errors.short_repr import kept, shown


class NotFound(PenstockError):
    """Something the call names does not exist."""

    code = 5
    reason = "not_found"
    kind: ClassVar[str] = "Resource"
    hint = "create it first, or look for a typing error in the name"

    def __init__(self, name: object) -> None:
        super().__init__(kept(name))
        self.name = kept(name)

    def __str__(self) -> str:
        return f"{self.kind} not found: {shown(self.name, bare=True)}"


class TopicNotFound(NotFound):
    """No topic of that name."""

    reason = "topic_not_found"
    kind = "Topic"


class SubscriptionNotFound(NotFound):
    """No subscription of that name."""

    reason = "subscription_not_found"
    kind = "Subscription"


class SnapshotNotFound(NotFound):
    """No snapshot of that name."""

    reason = "snapshot_not_found"
    kind = "Snapshot"


class QueueNotFound(NotFound):
    """No queue of that name."""

    reason = "queue_not_found"
    kind = "Queue"


class MessageNotFound(NotFound):
    """No such message is waiting, leased or dead in that queue."""

    reason = "message_not_found"
    kind = "Message"
    hint = "it was settled already, purged, or never belonged to this queue"


class ConsumerNotFound(NotFound):
    """That consumer does not hold the message, or never consumed."""

    reason = "consumer_not_found"
    kind = "Consumer"
    hint = "settle with the consumer_id that consumed the message, or leave consumer_id out"


class SchemaNotFound(NotFound):
    """No schema, or no revision of a schema, of that name."""

    reason = "schema_not_found"
    kind = "Schema"


class TokenNotFound(NotFound):
    """No token of that id."""

    reason = "token_not_found"
    kind = "Token"
    hint = "`penstock token list` shows those there are"


class CursorNotFound(NotFound):
    """No cursor of that name."""

    reason = "cursor_not_found"
    kind = "Cursor"


class PartNotFound(NotFound):
    """No part of that name is staged for the write."""

    reason = "part_not_found"
    kind = "Staged part"
    hint = "stage it again: it is kept for a day after the last part came, and until its write is committed or aborted"


class ActorNotFound(NotFound):
    """Nobody is registered at the hub by that address."""

    reason = "actor_not_found"
    kind = "Actor"
    hint = "it is not connected now, or its address is another; `penstock hub actors` shows who is there"
