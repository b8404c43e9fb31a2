"""Push: messages are POSTed to the endpoint of their subscription, and the status of the answer settles them.

Every subscription with an endpoint has a worker while the server runs. It leases as many messages as its endpoint is trusted with
(see `core.push_window`), POSTs each in a task of its own, and acks it or nacks it with the reason. It is notified by
its subscription and never polls.

The worker reads the subscription's settings before every round, so another endpoint, or pull instead of push, counts from the
next message on; a POST that is under way is waited for, and its message settled. A lease lasts longer than a POST may take, so
a slow answer is a failure before it could be a second delivery. Leases of a run that was killed are released at the start: who
held them was this server.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from penstock.broker import lookup
from penstock.broker.async_consumer import StreamConsumer
from penstock.broker.catalog import Catalog
from penstock.broker.settlement import ACK, nack, new_deadline
from penstock.broker.subscription_rules import SubscriptionRules
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import BrokerClosed, FailedPrecondition, NotFound, PenstockError
from penstock.google import messages
from penstock.google.core.fields import timestamp
from penstock.google.core.push import PushWindow, push_request
from penstock.google.core.push_endpoints import Endpoints
from penstock.google.oidc import TokenIssuer
from penstock.google.push_client import Answer, Outcome, PushClient
from penstock.google.resources import Message, Resources
from penstock.http.monitoring.samples import Metric, Sample
from penstock.http.refusal import code_location
from penstock.ids import message_id
from penstock.values import resource_names as names
from penstock.values.descriptions import QueueDescription
from penstock.values.lease import Lease
from penstock.values.policy import MAX_COUNT

log = logging.getLogger("penstock.pubsub.push")

CONSUMER = "push"
"""The worker's name as a consumer. It is the same in every run, so the next one finds the leases of a killed one."""
MAX_WINDOW = 500
MAX_TOTAL = 1_000
"""How many POSTs may be outstanding for one subscription, and for all: each is a connection, and a server has not many more."""
MAX_BYTES = 32 * 1024 * 1024
"""Bytes that one worker holds in memory for outstanding POSTs; a larger message is pushed alone."""
MARGIN = 30 * SECOND
"""How much longer than the timeout of its POST a lease lasts."""
RETRY_SECONDS = 1.0

_LABELS = ("project", "subscription")
_RUNNING = Metric("penstock_subscription_pushes_running", "gauge", "POSTs that have no answer yet.", _LABELS)
_ENDED = {
    Outcome.ACKED: Metric(
        "penstock_subscription_pushes_acked_total", "counter", "POSTs whose answer acknowledged the message.", _LABELS
    ),
    Outcome.REFUSED: Metric(
        "penstock_subscription_pushes_refused_total", "counter", "POSTs that were answered with another status.", _LABELS
    ),
    Outcome.TIMED_OUT: Metric(
        "penstock_subscription_pushes_timed_out_total", "counter", "POSTs without an answer within the ack deadline.", _LABELS
    ),
    Outcome.UNREACHABLE: Metric(
        "penstock_subscription_pushes_unreachable_total", "counter", "POSTs that found no endpoint that speaks HTTP.", _LABELS
    ),
}


class Pushers:
    """The workers of all push subscriptions. Start it once, in the loop; stopping is always safe."""

    def __init__(self, resources: Resources, rules: SubscriptionRules, issuer: TokenIssuer, endpoints: Endpoints) -> None:
        self.resources = resources
        self.rules = rules
        self.issuer = issuer
        self.endpoints = endpoints
        self.is_stopping = False
        self._workers: dict[int, _Worker] = {}
        """By number of the subscription: it differs after it was deleted and created again."""
        self._client: PushClient | None = None
        self._outstanding = 0
        self._waiting: set[_Worker] = set()
        """Workers without room, because all together have too much outstanding."""

    def start(self) -> None:
        """Push for every push subscription, now and in the future."""
        self._client = PushClient(self.endpoints)
        self.resources.changed.append(self._look)
        for queue in lookup.subscriptions(self.resources.broker):
            self._look(queue.name)

    async def stop(self, grace_seconds: float) -> None:
        """Start no more POSTs, wait for running ones within the grace period, release the rest. Can be called twice."""
        self.is_stopping = True
        client, self._client = self._client, None
        if client is None:
            return
        self.resources.changed.remove(self._look)
        workers = [*self._workers.values()]
        for worker in workers:
            worker.stop()
        posts = [post for worker in workers for post in worker.posts]
        if posts:
            _, late = await asyncio.wait(posts, timeout=grace_seconds)
            for post in late:
                post.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for worker in workers:
            worker.finish()
        await client.close()

    def collect(self) -> Iterator[Sample]:
        """The metrics of all workers, for `/metrics`."""
        for worker in list(self._workers.values()):
            name = self.resources.name(names.SUBSCRIPTIONS, worker.name)
            labels = (name.project, name.id)
            yield Sample(_RUNNING, labels, len(worker.posts))
            for outcome, metric in _ENDED.items():
                yield Sample(metric, labels, worker.ended[outcome])

    @property
    def client(self) -> PushClient:
        """The HTTP client; there is one from start to stop."""
        assert self._client is not None, "start it first"
        return self._client

    def room(self, worker: _Worker) -> int:
        """How many more POSTs a worker may start. One is always allowed, so that no worker waits for another's endpoint."""
        free = MAX_TOTAL - self._outstanding
        if free <= 0:
            self._waiting.add(worker)
        return max(min(worker.window.size - len(worker.posts), free), 0 if worker.posts else 1)

    def take(self) -> None:
        self._outstanding += 1

    def give_back(self) -> None:
        self._outstanding -= 1
        waiting, self._waiting = self._waiting, set()
        for worker in waiting:
            worker.wake()

    def drop(self, number: int) -> None:
        """A worker has ended. If its subscription is pushed again, it gets a new one."""
        self._workers.pop(number, None)

    def _look(self, key: str) -> None:
        """A subscription may have been created, changed or deleted."""
        for worker in self._workers.values():
            if worker.name == key:
                worker.wake()
        queue = lookup.find_subscription(self.resources.broker, key)
        if queue is None or queue.detached or queue.number in self._workers:
            return
        if self.resources.pushes(queue):
            self._workers[queue.number] = worker = _Worker(self, key)
            worker.start()


class _PushRules:
    """The rules of pushed deliveries: only transforms."""

    def __init__(self, rules: SubscriptionRules) -> None:
        self.transforms, self.ready = rules.transforms, rules.ready

    def check_pulled(self, queue: QueueDescription) -> None:
        """Always allowed: the subscription is pushed."""

    def in_use(self, number: int) -> AbstractContextManager[None]:
        return nullcontext()


class _Worker(StreamConsumer):
    """Pushes the messages of one subscription."""

    def __init__(self, pushers: Pushers, key: str) -> None:
        super().__init__(
            pushers.resources.aio,
            Catalog.subscription,
            key,
            self,
            rules=_PushRules(pushers.rules),
            identity=CONSUMER,
            prefetch=MAX_COUNT,
            prefetch_bytes=MAX_BYTES,
            batch=MAX_WINDOW,
            batch_bytes=MAX_BYTES,
        )
        self._pushers = pushers
        self._resources = pushers.resources
        self._endpoint = ""
        self._is_open = False
        """Whether push to the endpoint is allowed. If not, messages wait: attempts would be used up."""
        self._full_name = str(pushers.resources.name(names.SUBSCRIPTIONS, key))
        self.window = PushWindow(MAX_WINDOW)
        """The window of the endpoint; another endpoint starts with a new one."""
        self._is_resting = False
        """An internal error occurred recently."""
        self._timer: asyncio.TimerHandle | None = None
        self.posts: set[asyncio.Task[None]] = set()
        self.ended: Counter[Outcome] = Counter()

    def start(self) -> None:
        """Push until the subscription is not a push subscription any more, is deleted, or the server stops."""
        super().start()
        self.release()  # leases of a killed server's worker

    def finish(self) -> None:
        """Requeue the remaining messages, without counting an attempt."""
        self.stop()
        self.release()
        self._pushers.drop(self.number)

    # ── for the consumer ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def look(self) -> bool:
        """Start as many POSTs as there is room for."""
        try:
            return super().look()
        except Exception as error:  # noqa: BLE001  # the worker's top: a fault must not end push for good
            self._break(error)
            return True

    @property
    def room(self) -> int:
        if self._is_resting:
            return 0
        queue = self.current()
        if queue is None or queue.detached:
            return 1  # taking reports the problem
        form = self._resources.form_of(queue)
        endpoint = form.push_config.push_endpoint
        if not endpoint:
            if not self.posts:
                self.finish()
            return 0
        if endpoint != self._endpoint:
            self._turn_to(endpoint)
        if not self._is_open:
            return 0
        rest = self.window.rest(monotonic())
        if rest:
            self._wake_in(rest / SECOND)
            return 0
        self.ack_deadline = queue.policy.ack_deadline + MARGIN
        return self._pushers.room(self)

    def deliver(self, queue: QueueDescription, leases: list[Lease]) -> None:
        form = self._resources.form_of(queue)
        if self._transforms(queue):
            # Transforms took time, and the POST needs its full lease.
            gone = self.settle(leases, new_deadline(queue.policy.ack_deadline + MARGIN))
            leases = [lease for lease in leases if lease not in gone]
        for lease in leases:
            self._begin(form, lease)

    def fail(self, error: PenstockError) -> None:
        """The subscription is gone, or a temporary error occurred."""
        if isinstance(error, BrokerClosed | NotFound | FailedPrecondition):
            for post in self.posts:
                post.cancel()
            self.finish()
        else:
            log.warning("push of %r had an error and continues: %s", self.name, error)
            self._rest()

    def _break(self, error: BaseException) -> None:
        log.error("push of %r failed with %s and continues, at\n%s", self.name, type(error).__name__, code_location(error))
        self._rest()

    def _rest(self) -> None:
        """Retry after a while, and not before."""
        self._is_resting = True
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._rested)

    def _rested(self) -> None:
        self._is_resting = False
        self.wake()

    def end(self, error: PenstockError | None) -> None:
        """It ends only by `finish`."""

    def _wake_in(self, seconds: float) -> None:
        if self._timer is None:  # every publish calls this, and one timer is enough
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wake_up)

    def _wake_up(self) -> None:
        self._timer = None
        self.wake()

    def _turn_to(self, endpoint: str) -> None:
        """Push to this endpoint from now on, if the operator allows it."""
        self._endpoint, self.window = endpoint, PushWindow(MAX_WINDOW)
        self._is_open = self._pushers.endpoints.allow(endpoint)
        if not self._is_open:
            log.warning("push of %r waits: the setting push_allow does not cover its endpoint", self.name)

    # ── pushing ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, form: Message, lease: Lease) -> None:
        post = asyncio.create_task(self._push(form, lease, self.window))
        self.posts.add(post)
        self._pushers.take()
        post.add_done_callback(self._end)

    def _end(self, post: asyncio.Task[None]) -> None:
        self.posts.discard(post)
        self._pushers.give_back()
        self.wake()

    async def _push(self, form: Message, lease: Lease, window: PushWindow) -> None:
        """POST one message, and settle it by the answer."""
        begun = window.round
        try:
            answer = await self._post(form, lease)
        except Exception as error:  # noqa: BLE001  # a delivery's top: whatever went wrong, the message returns
            log.error(
                "a push of %r failed inside the server with %s at\n%s", self.name, type(error).__name__, code_location(error)
            )
            answer = Answer(Outcome.UNREACHABLE, "the push failed inside the server")
        self.ended[answer.outcome] += 1
        if answer.outcome is Outcome.ACKED:
            window.succeeded(len(self.posts))
            self._resources.touch(self.number)
            self.settle([lease], ACK)
        else:
            window.failed(begun, monotonic(), is_paced=form.HasField("retry_policy"))
            self.settle([lease], nack(error=answer.reason))

    async def _post(self, form: Message, lease: Lease) -> Answer:
        config, policy = form.push_config, self.queue.policy
        attempt = lease.attempt if policy.dead_letter_topic is not None else None
        request = push_request(config, self._shown(lease), self._full_name, attempt)
        token = None
        if config.HasField("oidc_token"):
            account = config.oidc_token
            audience = account.audience or config.push_endpoint
            token = await self._pushers.issuer.token(self._full_name.split("/")[1], account.service_account_email, audience)
        return await self._pushers.client.post(config.push_endpoint, request, token, policy.ack_deadline / SECOND)

    def _shown(self, lease: Lease) -> Any:
        message = lease.message
        return messages.PubsubMessage(
            data=message.data,
            attributes=message.attributes or {},
            message_id=message_id(message.publish_at, self.queue.stream, lease.offset),
            publish_time=timestamp(message.origin_at or message.publish_at),
            ordering_key=message.key,
        )
