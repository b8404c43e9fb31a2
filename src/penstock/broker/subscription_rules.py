"""The rules of subscriptions for deliveries, for all APIs: transforms, and no pull from push subscriptions.

For a subscription with neither, they cost one look-up in a cache. Transforms run in threads, those of one subscription one at a
time: only its own messages wait for a slow one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.settlement import ACK, GIVE_BACK, NACK, live_leases, settle_leases
from penstock.broker.topic_rules import MAX_SPENT, chain_of, replaced
from penstock.clock import monotonic
from penstock.durations import to_datetime
from penstock.errors import FailedPrecondition, TransformFailed
from penstock.ids import message_id
from penstock.values.descriptions import QueueDescription
from penstock.values.lease import Lease
from penstock.values.stored_forms import Script, subscription_form


def _never_expires(_: int) -> AbstractContextManager[None]:
    return nullcontext()


class SubscriptionRules:
    """`penstock.broker.consumer.DeliveryRules` of subscriptions.

    `in_use`: a context that is entered while a subscription, by its number, is used; by default use is not recorded.
    """

    def __init__(self, broker: Broker, in_use: Callable[[int], AbstractContextManager[None]] = _never_expires) -> None:
        self._broker = broker
        self.in_use = in_use

    def check_pulled(self, queue: QueueDescription) -> None:
        """Refuse a push subscription."""
        if subscription_form(queue.spec).push_endpoint:
            raise FailedPrecondition(
                f"subscription {queue.name!r} pushes to an endpoint and cannot be pulled",
                hint="clear its push_config with ModifyPushConfig first",
            )

    def transforms(self, queue: QueueDescription) -> bool:
        """Whether deliveries of a subscription must be transformed first."""
        return bool(subscription_form(queue.spec).scripts)

    async def ready(self, queue: QueueDescription, leases: list[Lease], max_bytes: int) -> list[Lease]:
        """Return the leases to deliver, at most `max_bytes`, but at least one message.

        A lease is acked if a transform drops its message, and nacked if the transform fails. Leases without room, or not
        transformed in time, are requeued without counting an attempt.
        """
        scripts = subscription_form(queue.spec).scripts
        if not scripts:
            return leases
        try:
            done = await self._broker.rules.scripts.run(queue.number, None, _transformed, scripts, queue, leases, max_bytes)
        except BaseException:
            settle_leases(self._broker, queue.number, leases, GIVE_BACK)
            raise
        for verb, ended in ((ACK, done.dropped), (NACK, done.failed), (GIVE_BACK, done.rest)):
            settle_leases(self._broker, queue.number, ended, verb)
        if queue.policy.ordered:
            # A message after one that is redelivered is redelivered after it.
            return live_leases(self._broker, queue.number, done.ready)
        return done.ready


@dataclass(slots=True)
class _Outcome:
    """The results of transforms of deliveries."""

    ready: list[Lease] = field(default_factory=list)
    dropped: list[Lease] = field(default_factory=list)
    failed: list[Lease] = field(default_factory=list)
    rest: list[Lease] = field(default_factory=list)


def _transformed(scripts: tuple[Script, ...], queue: QueueDescription, leases: list[Lease], max_bytes: int) -> _Outcome:
    """Apply a subscription's transforms to deliveries, within the limits of room and time. Blocks."""
    done, chain, until = _Outcome(), chain_of(scripts), monotonic() + MAX_SPENT
    for index, lease in enumerate(leases):
        if index and monotonic() > until:
            done.rest += leases[index:]
            break
        message = lease.message
        known = {
            "message_id": message_id(message.publish_at, queue.stream, lease.offset),
            "publish_time": to_datetime(message.publish_at).isoformat().replace("+00:00", "Z"),
            "ordering_key": message.key,
        }
        try:
            changed = chain.apply(message.data, message.attributes or {}, known)
        except TransformFailed:
            done.failed.append(lease)
            continue
        if changed is None:
            done.dropped.append(lease)
            continue
        made = replaced(message, changed.data, changed.attributes)
        if made.size > max_bytes and done.ready:
            done.rest += leases[index:]
            break
        max_bytes -= made.size
        done.ready.append(msgspec.structs.replace(lease, message=made))
    return done
