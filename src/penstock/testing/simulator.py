"""A deterministic simulator: hours of producers, consumers, failures, crashes and time in milliseconds, from one number.

    from penstock import ReceivedMessage
    from penstock.testing import Report, Simulation

    billed: dict[str, bytes] = {}

    def bill(message: ReceivedMessage) -> None:  # the code under test: to return is to ack, to raise is to nack
        billed[message.attributes["number"]] = message.data

    def check(report: Report) -> None:  # what must be true at the end
        assert all(message.attributes["number"] in billed for message in report.acked)

    for seed in range(20):
        Simulation(seed=seed, crashes=0, handler=bill, check=check).run()

A run draws a schedule from its seed: producers publish, consumers pull, work slowly or quickly, ack, nack, lose their answer,
forget what they held, extend their leases; time passes; the broker crashes and comes back with what was on disk, without the
acks and leases of its last moments. Every delivery is held against a small model of the truth: nothing is lost or changed,
nothing comes back after its ack, no key is overtaken or overlaps, attempts are counted and bounded, backoff is kept, a dead
letter has its reason. What fails raises `SimulationFailed`, whose text is the line that repeats the run.

There is no wall clock, no sleeping and no global randomness in it: the same simulation gives the same trace, anywhere.
"""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.api.message_queue import MessageQueue
from penstock.broker.broker import Broker
from penstock.durations import DAY, SECOND, instant, micros
from penstock.errors import InvalidAckId
from penstock.testing.clock import ManualClock
from penstock.values.filter import Filter
from penstock.values.message import Message
from penstock.values.policy import DeadLetterPolicy, Policy, RetryPolicy, SubscriptionOptions, subscription_policy
from penstock.values.subscription import ReceivedMessage

TOPIC = "work"
SUBSCRIPTION = "worker"
GRAVEYARD = "graveyard"

Handler = Callable[[ReceivedMessage], object]
Producer = Callable[[int, random.Random, datetime], Message]

OPTIONS = SubscriptionOptions(
    message_ordering=True, retry_policy=RetryPolicy(1, 8), dead_letter_policy=DeadLetterPolicy("dead", max_delivery_attempts=5)
)
_ACTIONS = {"publish": 20, "pull": 25, "work": 35, "wait": 12, "forget": 4, "extend": 4}
_PATIENCE = 2_000
"""How often the end of a run tries to deliver the remaining messages."""


def produce(number: int, chance: random.Random, now: datetime) -> Message:
    """The default messages of a simulation: numbered; some with a key, some urgent, some delayed."""
    return Message(
        b"message %d" % number,
        {"number": str(number)},
        ordering_key=chance.choice(["", "a", "b", "c"]),
        priority=chance.choice([5, 5, 5, 9, 0]),
        deliver_at=now + timedelta(seconds=chance.randrange(1, 20)) if chance.randrange(8) == 0 else None,
    )


class SimulationFailed(AssertionError):
    """A run broke a guarantee. `line` repeats the run, `problem` is the broken guarantee, `trace` what led to it."""

    def __init__(self, line: str, problem: str, trace: tuple[str, ...] = ()) -> None:
        super().__init__(line, problem, trace)
        self.line = line
        self.problem = problem
        self.trace = trace

    def __str__(self) -> str:
        return f"{self.line}  # {self.problem}"


@dataclass(frozen=True, slots=True)
class Report:
    """The events of a run that kept every guarantee."""

    acked: tuple[Message, ...]
    dead: tuple[Message, ...]
    deliveries: int
    crashes: int
    trace: tuple[str, ...]
    """One line for each event, with the seconds since the start."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The description of a run. Everything but the seed has a default; equal descriptions are equal runs.

    `handler` gets each delivery that a consumer handles: if it returns, the message is acked, if it raises, nacked; an
    AssertionError fails the run. Without a handler, chance decides. As in production, it may be called more than once for a
    message. `produce(number, chance, now)` creates the messages, `check(report)` checks the end, `broker` builds the broker. With
    `crashes=0` the broker is in memory, which is faster; two crashes at the same moment are one.
    """

    seed: int
    steps: int = 200
    consumers: int = 3
    crashes: int = 2
    handler: Handler | None = None
    produce: Producer = produce
    check: Callable[[Report], object] | None = None
    options: SubscriptionOptions = OPTIONS
    broker: Callable[..., Broker] = Broker

    def run(self) -> Report:
        """Run it. Raises SimulationFailed if a guarantee is broken."""
        with TemporaryDirectory(prefix="penstock-simulation-") as folder:
            run = _Run(self, Path(folder))
            try:
                report = run.all()
                if self.check is not None:
                    self.check(report)
            except Exception as error:  # whatever the error, the line that repeats the run must be shown
                problem = " ".join(str(error).split()) if isinstance(error, AssertionError) else " ".join(repr(error).split())
                raise SimulationFailed(f"{self}.run()", problem or "the check failed", tuple(run.trace)) from error
            finally:
                run.queue.broker.close()
        return report

    def __repr__(self) -> str:
        given = [(field, getattr(self, field.name)) for field in fields(self)]
        shown = [f"{field.name}={_shown(value)}" for field, value in given if field.name == "seed" or value != field.default]
        return f"Simulation({', '.join(shown)})"


def _shown(value: object) -> str:
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else repr(value)


class _Truth:
    """The expected state of the broker, as simply as possible; a crash resets it to what was on disk."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.published: dict[str, Message] = {}
        self.keys: dict[str, list[str]] = {}
        self.attempts: dict[str, int] = {}
        self.leases: dict[str, tuple[str, int]] = {}
        self.due: dict[str, int] = {}
        self.settled: dict[str, str] = {}

    def publish(self, message_id: str, message: Message) -> None:
        _require(message_id not in self.published, f"{message_id} was assigned to two messages")
        self.published[message_id] = message
        if message.deliver_at is not None:
            self.due[message_id] = instant(message.deliver_at, "deliver_at")
        if self._policy.ordered and message.ordering_key:
            self.keys.setdefault(message.ordering_key, []).append(message_id)

    def deliver(self, received: ReceivedMessage, now: int) -> None:
        self.expire(now)
        name = received.id
        _require(name in self.published, f"{name} was delivered and never published")
        _require(name not in self.settled, f"{name} was delivered after it was {self.settled.get(name)}")
        _require(name not in self.leases, f"{name} was delivered while it was leased")
        _require(now >= self.due.get(name, 0), f"{name} was delivered before its time")
        message, attempt = self.published[name], self.attempts.get(name, 0) + 1
        given = (message.data, dict(message.attributes), message.ordering_key or None, message.priority)
        _require((received.data, received.attributes, received.ordering_key, received.priority) == given, f"{name} was changed")
        _require(received.delivery_attempt == attempt, f"{name} has attempt {received.delivery_attempt}, expected {attempt}")
        limit = self._policy.max_attempts
        _require(limit is None or attempt <= limit, f"{name} has attempt {attempt} of {limit}")
        for other in self.keys.get(message.ordering_key, ()):
            _require(other == name or other not in self.leases, f"{name} and {other} of one key were leased at the same time")
        for other in self.keys.get(message.ordering_key, ()):
            if other == name:
                break
            _require(other in self.settled or self.published[other].ttl is not None, f"{name} overtook {other} of its key")
        self.attempts[name] = attempt
        self.leases[name] = received.ack_id, now + self._policy.ack_deadline

    def expire(self, now: int) -> None:
        for name, (_, deadline) in list(self.leases.items()):
            if deadline <= now:
                self._fail(name, deadline)

    def is_live(self, received: ReceivedMessage, now: int) -> bool:
        self.expire(now)
        return self.leases.get(received.id, ("", 0))[0] == received.ack_id

    def ack(self, name: str) -> None:
        del self.leases[name]
        self.settled[name] = "acked"

    def nack(self, name: str, now: int) -> None:
        self._fail(name, now)

    def extend(self, name: str, span: int) -> None:
        held, deadline = self.leases[name]
        self.leases[name] = held, deadline + span

    def settled_as(self, fate: str) -> tuple[str, ...]:
        return tuple(name for name in self.published if self.settled.get(name) == fate)

    def _fail(self, name: str, at: int) -> None:
        del self.leases[name]
        attempt = self.attempts[name]
        if attempt == self._policy.max_attempts:
            self.settled[name] = "dead"
        else:
            self.due[name] = at + self._policy.delay(attempt)


class _Run:
    """One run, in progress."""

    def __init__(self, plan: Simulation, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._chance = random.Random(plan.seed)
        self._taste = random.Random(f"messages of {plan.seed}")
        self._clock = ManualClock()
        self._start = self._clock.now()
        self._place = 0
        self.trace: list[str] = []
        self.queue = self._open()
        self._policy = subscription_policy(plan.options, durable=self.queue.broker.is_durable)
        self._filter = Filter.parse(plan.options.filter)
        self._truth = _Truth(self._policy)
        self._on_disk = self._truth
        self._held: list[list[ReceivedMessage]] = [[] for _ in range(plan.consumers)]
        self._deliveries = 0
        self._crashes = 0
        self._doom: int | None = None

    def all(self) -> Report:
        self.queue.register_topic(TOPIC)
        self.queue.register_subscription(SUBSCRIPTION, TOPIC, self._plan.options)
        if self._policy.dead_letter_topic is not None:
            self.queue.register_topic(self._policy.dead_letter_topic)
            self.queue.register_subscription(GRAVEYARD, self._policy.dead_letter_topic)
        crashes = sorted(self._chance.sample(range(self._plan.steps), min(self._plan.crashes, self._plan.steps)))
        for step in range(self._plan.steps):
            if step in crashes:
                self._save()
                self._doom = min(step + self._chance.randrange(6), self._plan.steps - 1)
            (action,) = self._chance.choices([*_ACTIONS], [*_ACTIONS.values()])
            getattr(self, f"_{action}")()
            if self._doom == step:
                self._crash()
        self._drain()
        self._check_counters()
        self._check_graveyard()
        acked, dead = (tuple(self._truth.published[name] for name in self._truth.settled_as(fate)) for fate in ("acked", "dead"))
        return Report(acked, dead, self._deliveries, self._crashes, tuple(self.trace))

    def _publish(self) -> None:
        first = len(self._truth.published)
        messages = [
            self._plan.produce(number, self._taste, self._clock.time)
            for number in range(first, first + self._chance.randrange(1, 4))
        ]
        ids = self.queue.publish(TOPIC, messages)
        _require(len(ids) == len(messages), f"{len(messages)} messages were published, and {len(ids)} ids came back")
        for message_id, message in zip(ids, messages, strict=True):
            self._truth.publish(message_id, message)
            if not self._filter.matches(message.attributes):
                self._truth.settled[message_id] = "refused by the filter"
            self._note("publish", message_id)
        if self._doom is not None:
            # A confirmed publish takes everything before it to the disk.
            self._save()

    def _pull(self) -> None:
        consumer = self._chance.randrange(self._plan.consumers)
        self._held[consumer] += self._pulled(self._chance.randrange(1, 5), f"consumer {consumer}")

    def _work(self) -> None:
        """A consumer handles a message that it holds, perhaps long after the lease has expired; some answers are lost."""
        if (delivery := self._taken()) is not None:
            is_done = self._handle(delivery)
            if self._chance.randrange(20) == 0:
                self._note("lose the answer", delivery.id)
            else:
                self._settle(delivery, is_done=is_done)

    def _forget(self) -> None:
        if (delivery := self._taken()) is not None:
            self._note("forget", delivery.id)

    def _extend(self) -> None:
        held = [delivery for deliveries in self._held for delivery in deliveries]
        if held:
            delivery, seconds = self._chance.choice(held), self._chance.randrange(1, 30)
            if self._answer(delivery, "extend", lambda ack_id: self.queue.modify_ack_deadline(ack_id, seconds)):
                self._truth.extend(delivery.id, micros(seconds, "seconds"))

    def _wait(self) -> None:
        seconds = self._chance.choice([0.1, 1, 1, 3, 10, 15])
        self._clock.advance(seconds)
        self._note("wait", f"{seconds} s")

    def _save(self) -> None:
        """Copy the directory as it is now, for the coming crash. Until then only acks, leases and time can be lost."""
        if not self.queue.broker.is_durable:
            return
        # Once for the events, and again after the maintenance that follows: then the files are quiet.
        self.queue.broker.sync()
        self.queue.broker.sync()
        shutil.rmtree(self._path(self._place + 1), ignore_errors=True)
        shutil.copytree(self._path(self._place), self._path(self._place + 1))
        self._on_disk = copy.deepcopy(self._truth)

    def _crash(self) -> None:
        """The broker crashes; another one opens the directory. The consumers live on, with their messages."""
        self._doom = None
        self._crashes += 1
        self.queue.broker.close()
        self._place += 1
        self._note("crash", f"{len(self._on_disk.settled)} were settled on disk")
        self._truth = self._on_disk
        self.queue = self._open()

    def _drain(self) -> None:
        """Only the handler fails from now on: everything deliverable is delivered and settled."""
        pause = (self._policy.ack_deadline + max(self._policy.backoff or (0,))) / SECOND
        until = max([self._clock.now(), *self._truth.due.values()]) + DAY
        for _ in range(_PATIENCE):
            deliveries = self._pulled(100, "the last consumer")
            for delivery in deliveries:
                self._settle(delivery, is_done=self._handle(delivery, may_fail=False))
            if not deliveries:
                if self._clock.now() >= until or self.queue.stats(SUBSCRIPTION).backlog == 0:
                    break
                self._clock.advance(pause)
        self._truth.expire(self._clock.now())

    def _check_counters(self) -> None:
        stats = self.queue.stats(SUBSCRIPTION)
        excused = stats.discarded_total + stats.ttl_expired_total + stats.retired_total
        open_ends = [name for name in self._truth.published if name not in self._truth.settled]
        if stats.backlog:
            raise AssertionError(f"{stats.backlog} messages were never settled, however long one waited: {open_ends[:3]}")
        _require(len(open_ends) <= excused, f"{len(open_ends)} messages were lost: {open_ends[:3]}")
        for fate, counted in (("acked", stats.acked_total), ("dead", stats.dead_lettered_total - stats.ttl_expired_total)):
            truth = len(self._truth.settled_as(fate))
            _require(counted == truth or excused > 0, f"{counted} are counted as {fate}, expected {truth}")

    def _check_graveyard(self) -> None:
        if self._policy.dead_letter_topic is None:
            return
        found: list[str] = []
        while letters := self.queue.pull(GRAVEYARD, 100):
            for letter in letters:
                told = letter.attributes
                source, reason = told.get("penstock.source_message_id", ""), told.get("penstock.reason", "")
                message = self._truth.published.get(source)
                _require(
                    bool(reason) and told.get("penstock.source") == SUBSCRIPTION,
                    f"dead letter {letter.id} has no reason or source",
                )
                _require(message is not None and letter.data == message.data, f"dead letter {letter.id} is not what it was")
                if message is None or message.ttl is None:
                    _require(
                        told.get("penstock.attempts") == str(self._policy.max_attempts), f"{source} died before its last attempt"
                    )
                    found.append(source)
                self.queue.ack(letter.ack_id)
        wanted = [name for name in self._truth.settled_as("dead") if self._truth.published[name].ttl is None]
        _require(sorted(found) == sorted(wanted), f"{len(found)} dead letters were found, expected {len(wanted)}")

    def _pulled(self, most: int, who: str) -> list[ReceivedMessage]:
        deliveries = self.queue.pull(SUBSCRIPTION, most)
        for delivery in deliveries:
            self._note(f"deliver to {who}, attempt {delivery.delivery_attempt}", delivery.id)
            self._truth.deliver(delivery, self._clock.now())
        self._deliveries += len(deliveries)
        return deliveries

    def _taken(self) -> ReceivedMessage | None:
        """Take a message away from a consumer."""
        places = [(consumer, index) for consumer, held in enumerate(self._held) for index in range(len(held))]
        if not places:
            return None
        consumer, index = self._chance.choice(places)
        return self._held[consumer].pop(index)

    def _handle(self, delivery: ReceivedMessage, *, may_fail: bool = True) -> bool:
        if self._plan.handler is None:
            return not may_fail or self._chance.randrange(4) != 0
        try:
            self._plan.handler(delivery)
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001  # to fail is a handler's right; it becomes a nack
            self._note(f"fail with {error!r}", delivery.id)
            return False
        return True

    def _settle(self, delivery: ReceivedMessage, *, is_done: bool) -> None:
        if is_done:
            if self._answer(delivery, "ack", self.queue.ack):
                self._truth.ack(delivery.id)
        elif self._answer(delivery, "nack", self.queue.nack):
            self._truth.nack(delivery.id, self._clock.now())

    def _answer(self, delivery: ReceivedMessage, verb: str, call: Callable[[str], None]) -> bool:
        """Settle or extend; True if it was accepted, which must be the case exactly if the lease was live."""
        is_live = self._truth.is_live(delivery, self._clock.now())
        try:
            call(delivery.ack_id)
        except InvalidAckId:
            _require(not is_live, f"{verb} of the live delivery {delivery.ack_id} was refused")
            self._note(f"{verb} too late", delivery.id)
            return False
        _require(is_live, f"{verb} of the delivery {delivery.ack_id}, which was over, was taken")
        self._note(verb, delivery.id)
        return True

    def _open(self) -> MessageQueue:
        data_dir = self._path(self._place) if self._plan.crashes else None
        return MessageQueue(broker=self._plan.broker(clock=self._clock, data_dir=data_dir))

    def _path(self, place: int) -> Path:
        return self._folder / f"broker-{place}"

    def _note(self, what: str, whom: str) -> None:
        self.trace.append(f"{(self._clock.now() - self._start) / SECOND:10.1f}  {what}: {whom}")


def _require(is_kept: bool, problem: str) -> None:
    if not is_kept:
        raise AssertionError(problem)
