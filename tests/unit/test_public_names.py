"""The names that issue 2 and the decisions promise exist exactly as written, with docstrings and type hints."""

import inspect
import typing
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from types import ModuleType

import pytest

import penstock
from penstock import (
    Broker,
    DeadLetterPolicy,
    FlowControl,
    Message,
    MessageQueue,
    QueueConfig,
    QueueManager,
    RetryPolicy,
    SubscriptionOptions,
    client,
    errors,
)
from penstock.testing import ManualClock

MESSAGE_QUEUE = {
    "register_topic": "topic_name metadata",
    "unregister_topic": "topic_name",
    "topic_exists": "topic_name",
    "get_topic": "topic_name",
    "get_all_topics": "",
    "register_subscription": "subscription_name topic_name options",
    "unregister_subscription": "subscription_name",
    "subscription_exists": "subscription_name",
    "get_subscription": "subscription_name",
    "get_subscriptions_for_topic": "topic_name",
    "get_all_subscriptions": "",
    "publish": "topic_name messages",
    "pull": "subscription_name max_messages",
    "ack": "ack_id",
    "nack": "ack_id",
    "modify_ack_deadline": "ack_id seconds",
    "ack_many": "ack_ids",
    "nack_many": "ack_ids",
    "seek": "subscription *time *offset *snapshot",
    "create_snapshot": "name subscription",
    "peek": "subscription max_messages",
    "pause": "subscription",
    "resume": "subscription",
    "stats": "subscription",
    "explain": "subscription message_id",
    "close": "",
}
QUEUE_MANAGER = {
    "create": "queue config settings",
    "publish": "queue payload *priority *ttl *headers *max_retries *delay *deliver_at *producer_id *sequence",
    "consume": "queue consumer_id timeout *ack_deadline *prefetch",
    "consume_many": "queue consumer_id *max_messages *timeout *ack_deadline *prefetch",
    "ack": "queue message_id consumer_id",
    "nack": "queue message_id requeue *consumer_id *error",
    "release_consumer": "queue consumer_id",
    "peek": "queue",
    "purge": "queue",
    "delete": "queue",
    "list": "",
    "stats": "queue",
    "consumers": "queue max_messages",
    "dead_letters": "queue limit *message_ids *max_bytes",
    "retry_dead_letter": "queue message_id",
    "purge_dead_letters": "queue message_ids",
    "redrive": "queue where limit *message_ids",
    "pause": "queue",
    "resume": "queue",
    "close": "",
}
PUBLIC_CLASSES = [getattr(penstock, name) for name in penstock.__all__ if name[0].isupper()]
ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.PenstockError)]


def parameters(function: Callable[..., object]) -> str:
    """The parameters after self, as the tables above write them: a star before what can only be given by name."""
    kept = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    return " ".join(("*" if one.kind is one.KEYWORD_ONLY else "") + one.name for one in kept)


def public_methods(kind: type) -> list[Callable[..., object]]:
    public = [value for name, value in vars(kind).items() if not name.startswith("_")]
    unwrapped = [value.fget if isinstance(value, property) else getattr(value, "__func__", value) for value in public]
    return [function for function in unwrapped if inspect.isfunction(function)]


METHODS = [*(function for kind in PUBLIC_CLASSES for function in public_methods(kind)), ManualClock.advance]


def test_both_faces_have_their_methods_and_parameters() -> None:
    assert {name: parameters(getattr(MessageQueue, name)) for name in MESSAGE_QUEUE} == MESSAGE_QUEUE
    assert {name: parameters(getattr(QueueManager, name)) for name in QUEUE_MANAGER} == QUEUE_MANAGER
    assert parameters(MessageQueue) == "*clock *data_dir *broker"
    assert parameters(QueueManager) == "*clock *data_dir *broker *defaults"


def test_defaults_are_those_that_are_written() -> None:
    def default(function: Callable[..., object], name: str) -> object:
        return inspect.signature(function).parameters[name].default

    assert default(QueueManager.consume, "consumer_id") == "default"
    assert default(QueueManager.consume, "timeout") == 0
    assert default(QueueManager.nack, "requeue") is True
    assert default(QueueManager.ack, "consumer_id") is None
    assert default(MessageQueue.peek, "max_messages") == 1
    for name in "priority ttl headers max_retries delay deliver_at producer_id sequence".split():
        assert default(QueueManager.publish, name) is None


def test_options_and_policies_have_their_fields() -> None:
    wanted = {
        SubscriptionOptions: "ack_deadline_seconds message_ordering retry_policy dead_letter_policy flow_control "
        "message_retention_duration retain_acked_messages filter max_messages max_bytes overflow exactly_once",
        RetryPolicy: "minimum_backoff maximum_backoff",
        DeadLetterPolicy: "dead_letter_topic max_delivery_attempts",
        FlowControl: "max_messages max_bytes allow_excess_messages",
    }
    assert {kind: [field.name for field in fields(kind)] for kind in wanted} == {
        kind: names.split() for kind, names in wanted.items()
    }
    Message(data=b"", attributes={}, ordering_key="", deliver_at=None, producer_id=None, sequence=None)


def test_the_calls_of_the_issue_run_as_they_are_written() -> None:
    queue = MessageQueue(clock=ManualClock())
    assert MessageQueue.get_instance() is MessageQueue.get_instance()
    MessageQueue.reset_instance()
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders", SubscriptionOptions(ack_deadline_seconds=30, message_ordering=True))
    ids = queue.publish("orders", [Message(data=b"x", attributes={"k": "v"}, ordering_key="user-1")])
    [m] = queue.pull("billing", max_messages=10)
    assert (m.id, m.data, m.attributes, m.ordering_key) == (ids[0], b"x", {"k": "v"}, "user-1")
    assert (m.delivery_attempt, m.length, m.publish_time.utcoffset()) == (1, 1, timedelta(0))
    queue.ack(m.ack_id)
    queue.close()

    qm = QueueManager(clock=ManualClock(), data_dir=None)
    qm.create("tasks", QueueConfig(max_depth=100_000, ack_deadline_secs=30, max_retries=3, default_priority=5))
    r = qm.publish("tasks", b"x", priority=8, ttl=60, headers={"source": "web"}, max_retries=None, delay=None)
    assert r.position == 1
    task = qm.consume("tasks", consumer_id="w1", ack_deadline=60, prefetch=10)
    assert task is not None
    assert task.message_id == r.message_id
    assert qm.nack("tasks", task.message_id, requeue=True).action == "requeued"
    assert len(qm.consume_many("tasks", max_messages=5)) == 1
    qm.ack("tasks", task.message_id)
    assert (qm.peek("tasks"), qm.purge("tasks"), qm.list(), qm.stats("tasks").acked_total) == (None, 0, ["tasks"], 1)
    assert (qm.dead_letters("tasks"), qm.purge_dead_letters("tasks")) == ([], 0)
    qm.delete("tasks")
    qm.close()


def test_every_public_class_and_method_has_a_docstring_of_its_own() -> None:
    # A dataclass without a docstring is given its signature for one.
    documented: list[type | Callable[..., object]] = [*PUBLIC_CLASSES, *ERRORS, ManualClock, *METHODS]
    docs = {one.__qualname__: (one.__doc__ or "").strip() for one in documented}

    assert [name for name, doc in docs.items() if not doc or doc.startswith(f"{name}(")] == []


def test_every_public_method_has_type_hints_that_resolve() -> None:
    for function in METHODS:
        hints = typing.get_type_hints(function)
        named = {one.name for one in inspect.signature(function).parameters.values() if one.name not in {"self", "cls"}}

        assert hints.keys() == named | {"return"}, function.__qualname__


@pytest.mark.parametrize("package", [penstock, client], ids=lambda package: package.__name__)
def test_public_names_are_found_before_they_are_loaded_and_others_are_not(package: ModuleType) -> None:
    assert set(package.__all__) <= set(dir(package))
    assert [name for name in package.__all__ if getattr(package, name, None) is None] == []
    with pytest.raises(AttributeError, match="has no attribute 'PubSup'"):
        _ = package.PubSup


COMMON_ERRORS = """PenstockError InvalidArgument NotFound TopicNotFound SubscriptionNotFound QueueNotFound MessageNotFound
AlreadyExists FailedPrecondition PermissionDenied Unauthenticated ResourceExhausted QueueFull Unavailable
ServerUnreachable""".split()


def test_the_common_errors_are_those_of_the_package_itself() -> None:
    for name in COMMON_ERRORS:
        assert name in penstock.__all__
        assert getattr(penstock, name) is getattr(errors, name)


def test_a_shared_broker_is_a_public_name() -> None:
    with Broker(clock=ManualClock()) as broker:
        assert MessageQueue(broker=broker).broker is QueueManager(broker=broker).broker
