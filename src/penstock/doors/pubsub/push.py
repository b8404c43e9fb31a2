"""Push: messages are POSTed to the endpoint of their subscription, and the status of the answer settles them.

Every subscription with an endpoint has a worker while the server runs. It leases as many messages as its endpoint is trusted with
(see `core.push_window`), POSTs each in a task of its own, and acks it or gives it back with the reason. It waits for the bell of
its subscription and never looks without cause.

The worker reads the subscription's settings before every round, so another endpoint, or pull instead of push, counts from the
next message on; a POST that is under way is waited for, and its message settled. A lease lasts longer than a POST may take, so
a slow answer is a failure before it could be a second delivery. Leases of a run that was killed are given back at the start: who
held them was this server.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from penstock.broker.aio import Bell
from penstock.broker.core.leases import Lease
from penstock.broker.core.queue import Queue
from penstock.broker.settlement import Settlement, release
from penstock.clock import monotonic
from penstock.doors.http import where
from penstock.doors.monitoring.samples import Metric, Sample
from penstock.doors.pubsub import messages
from penstock.doors.pubsub.core import names
from penstock.doors.pubsub.core.endpoints import Endpoints
from penstock.doors.pubsub.core.periods import timestamp
from penstock.doors.pubsub.core.push import push_request
from penstock.doors.pubsub.core.push_window import PushWindow
from penstock.doors.pubsub.inspection import Inspection
from penstock.doors.pubsub.oidc import TokenIssuer
from penstock.doors.pubsub.push_client import Answer, Outcome, PushClient
from penstock.doors.pubsub.resources import Message, Resources
from penstock.durations import SECOND
from penstock.errors import BrokerClosed, PenstockError
from penstock.ids import message_id

log = logging.getLogger("penstock.pubsub.push")

CONSUMER = "push"
"""The worker's name as a consumer. The same in every run: so the next one finds what a killed one held."""
MAX_WINDOW = 500
MAX_TOTAL = 1_000
"""How many POSTs may be outstanding for one subscription, and for all: each is a connection, and a server has not many more."""
MAX_BYTES = 32 * 1024 * 1024
"""How much one worker holds in memory for POSTs that are outstanding; a larger message goes alone."""
MARGIN = 30 * SECOND
"""How much longer than its POST a lease lasts."""
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
    """The workers of all push subscriptions. Start once, on the loop; stop is always safe."""

    def __init__(self, resources: Resources, inspection: Inspection, issuer: TokenIssuer, endpoints: Endpoints) -> None:
        self.resources = resources
        self.inspection = inspection
        self.issuer = issuer
        self.endpoints = endpoints
        self.is_stopping = False
        self._workers: dict[int, tuple[_Worker, asyncio.Task[None]]] = {}
        """By the number of the subscription: one that is deleted and made again is another."""
        self._client: PushClient | None = None
        self._outstanding = 0
        self._waiting: set[Bell] = set()
        """Who had no room because all together have too much outstanding."""

    def start(self) -> None:
        """Push for every subscription that asks for it, now and from now on."""
        self._client = PushClient(self.endpoints)
        self.resources.changed.append(self._look)
        with self.resources.broker.lock:
            keys = list(self.resources.broker.catalog.subscriptions)
        for key in keys:
            self._look(key)

    async def stop(self, grace_seconds: float) -> None:
        """Begin no POST, wait for those under way within the grace, give back what is left. Safe to call twice."""
        self.is_stopping = True
        client, self._client = self._client, None
        if client is None:
            return
        self.resources.changed.remove(self._look)
        tasks = [task for _, task in self._workers.values()]
        for worker, _ in self._workers.values():
            worker.bell.ring()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await client.close()

    def collect(self) -> Iterator[Sample]:
        """The numbers of all workers, for `/metrics`."""
        for worker, _ in list(self._workers.values()):
            name = self.resources.name(names.SUBSCRIPTIONS, worker.key)
            labels = (name.project, name.id)
            yield Sample(_RUNNING, labels, len(worker.posts))
            for outcome, metric in _ENDED.items():
                yield Sample(metric, labels, worker.ended[outcome])

    @property
    def client(self) -> PushClient:
        """What POSTs; there is one from start to stop."""
        assert self._client is not None, "start it first"
        return self._client

    def room(self, worker: _Worker) -> int:
        """How many more POSTs a worker may begin. One is always possible, so that nobody waits for another's endpoint."""
        free = MAX_TOTAL - self._outstanding
        if free <= 0:
            self._waiting.add(worker.bell)
        return max(min(worker.window.size - len(worker.posts), free), 0 if worker.posts else 1)

    def take(self) -> None:
        """A POST begins."""
        self._outstanding += 1

    def give_back(self) -> None:
        """A POST has ended."""
        self._outstanding -= 1
        waiting, self._waiting = self._waiting, set()
        for bell in waiting:
            bell.ring()

    def forget(self, number: int) -> None:
        """A worker ends, at once and for good: should its subscription be pushed again, it gets another."""
        del self._workers[number]

    def _look(self, key: str) -> None:
        """A subscription may have been made, changed or deleted."""
        broker = self.resources.broker
        with broker.lock:
            queue = broker.catalog.subscriptions.get(key)
            is_wanted = queue is not None and not queue.detached and self.resources.pushes(queue)
        for worker, _ in self._workers.values():
            if worker.key == key:
                worker.bell.ring()
        if queue is not None and is_wanted and queue.number not in self._workers:
            worker = _Worker(self, key, queue)
            task = asyncio.create_task(worker.run(), name=f"push to {key}")
            self._workers[queue.number] = worker, task


class _Worker:
    """Pushes the messages of one subscription."""

    def __init__(self, pushers: Pushers, key: str, queue: Queue) -> None:
        self._pushers = pushers
        self._resources = pushers.resources
        self._broker, self._aio = pushers.resources.broker, pushers.resources.aio
        self._queue = queue
        self._endpoint = ""
        self._is_open = False
        """Whether push may go to the endpoint. If not, messages wait: trying would use up their attempts."""
        self.key = key
        self.name = str(pushers.resources.name(names.SUBSCRIPTIONS, key))
        self.bell = Bell()
        self.window = PushWindow(MAX_WINDOW)
        """What the endpoint has earned; another one begins anew."""
        self.posts: set[asyncio.Task[None]] = set()
        self.ended: Counter[Outcome] = Counter()

    async def run(self) -> None:
        """Push until the subscription is not pushed any more, is gone, or the server stops."""
        ring = self.bell.ring
        with self._broker.lock:
            self._give_back()
            self._broker.bells.hang(self._queue.number, ring)
        try:
            while await self._goes_on():
                pass
        finally:
            if self.posts:
                for post in self.posts:
                    post.cancel()
                await asyncio.wait(self.posts)
            with self._broker.lock:
                self._broker.bells.take_down(self._queue.number, ring)
                self._give_back()
            self._pushers.forget(self._queue.number)

    def _give_back(self) -> None:
        """Return what is leased to this worker, or was to that of the run before, without counting an attempt."""
        if self._broker.catalog.queues.get(self._queue.number) is self._queue:
            release(self._broker, self._queue, CONSUMER, self._broker.clock.now())

    async def _goes_on(self) -> bool:
        """One round; False when there will be no other."""
        try:
            return await self._round()
        except BrokerClosed:
            return False
        except PenstockError as error:
            log.warning("push of %r stumbled and goes on: %s", self.key, error)
        except Exception as error:  # noqa: BLE001  # the worker's top: a fault in one round must not end push for good
            log.error("push of %r failed with %s and goes on, at\n%s", self.key, type(error).__name__, where(error))
        self.bell.clear()
        await self.bell.wait(RETRY_SECONDS)
        return True

    async def _round(self) -> bool:
        """Begin as many POSTs as there is room and reason for, or wait."""
        self.bell.clear()
        queue, pushers = self._queue, self._pushers
        with self._broker.lock:
            if self._broker.catalog.queues.get(queue.number) is not queue or queue.detached:
                return False
            form = self._resources.form_of(queue)
        if pushers.is_stopping or not form.push_config.push_endpoint:
            if not self.posts:
                return False
            await self.bell.wait()
            return True
        self._turn_to(form.push_config.push_endpoint)
        if not self._is_open:
            await self.bell.wait()
            return True
        rest, room = self.window.rest(monotonic()), pushers.room(self)
        if rest or room <= 0:
            await self.bell.wait(rest / SECOND if rest else None)
            return True
        leases = self._lease(room)
        if leases:
            for lease in await self._inspected(leases):
                self._begin(form, lease)
        elif queue.absent is not None:
            await self._aio.call(self._broker.load, queue)
        else:
            await self.bell.wait()
        return True

    def _turn_to(self, endpoint: str) -> None:
        """Push to this endpoint from now on, if the operator allows it."""
        if endpoint == self._endpoint:
            return
        self._endpoint, self.window = endpoint, PushWindow(MAX_WINDOW)
        self._is_open = self._pushers.endpoints.allow(endpoint)
        if not self._is_open:
            log.warning("push of %r waits: the setting push_allow does not cover its endpoint", self.key)

    def _lease(self, want: int) -> list[Lease]:
        now, queue = self._aio.advance(), self._queue
        with self._broker.lock:
            _, leases = self._broker.grant(
                lambda _catalog, _name: queue,
                self.key,
                want,
                now,
                ack_deadline=queue.policy.ack_deadline + MARGIN,
                consumer=CONSUMER,
                prefetch_bytes=MAX_BYTES,
            )
        return leases

    async def _inspected(self, leases: list[Lease]) -> list[Lease]:
        """What the subscription's transforms leave of these deliveries, with leases that have not aged meanwhile."""
        ready = await self._pushers.inspection.deliver(self._queue, leases, MAX_BYTES)
        if ready is leases:
            return leases
        span = self._queue.policy.ack_deadline + MARGIN
        return [lease for lease in ready if self._settle(lease, lambda queue, live, now: queue.extend(live, now + span, now))]

    def _begin(self, form: Message, lease: Lease) -> None:
        post = asyncio.create_task(self._push(form, lease, self.window))
        self.posts.add(post)
        self._pushers.take()
        post.add_done_callback(self._end)

    def _end(self, post: asyncio.Task[None]) -> None:
        self.posts.discard(post)
        self._pushers.give_back()
        self.bell.ring()

    async def _push(self, form: Message, lease: Lease, window: PushWindow) -> None:
        """One message: POST it, and settle it by the answer."""
        begun = window.round
        try:
            answer = await self._post(form, lease)
        except Exception as error:  # noqa: BLE001  # a delivery's top: whatever went wrong, the message goes back
            log.error("a push of %r failed inside the server with %s at\n%s", self.key, type(error).__name__, where(error))
            answer = Answer(Outcome.UNREACHABLE, "the push failed inside the server")
        self.ended[answer.outcome] += 1
        if answer.outcome is Outcome.ACKED:
            window.succeeded(len(self.posts))
            self._resources.touch(self._queue.number)
            self._settle(lease, Queue.ack)
        else:
            window.failed(begun, monotonic(), is_paced=form.HasField("retry_policy"))
            self._settle(lease, partial(Queue.nack, error=answer.reason))

    async def _post(self, form: Message, lease: Lease) -> Answer:
        config, policy = form.push_config, self._queue.policy
        attempt = lease.attempt if policy.dead_letter_topic is not None else None
        request = push_request(config, self._shown(lease), self.name, attempt)
        token = None
        if config.HasField("oidc_token"):
            account = config.oidc_token
            audience = account.audience or config.push_endpoint
            token = await self._pushers.issuer.token(self.name.split("/")[1], account.service_account_email, audience)
        return await self._pushers.client.post(config.push_endpoint, request, token, policy.ack_deadline / SECOND)

    def _shown(self, lease: Lease) -> Any:
        message = lease.message
        return messages.PubsubMessage(
            data=message.data,
            attributes=message.attributes or {},
            message_id=message_id(message.publish_at, self._queue.stream, lease.offset),
            publish_time=timestamp(message.origin_at or message.publish_at),
            ordering_key=message.key,
        )

    def _settle(self, lease: Lease, verb: Settlement) -> bool:
        """Apply a verb to a delivery; False when it is not live any more: its subscription was deleted, moved or emptied."""
        now, queue = self._aio.advance(), self._queue
        with self._broker.lock:
            live = queue.find(lease.offset, lease.attempt, lease.epoch)
            if live is not None:
                self._broker.settle(queue, [live], now, verb)
        return live is not None
