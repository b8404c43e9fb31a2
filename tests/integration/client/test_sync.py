"""The client in blocking form: the same names, made from the same classes, usable from any thread."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import client, sync
from penstock.errors import AlreadyExists, FailedPrecondition, InvalidArgument

PATIENCE = 30


@pytest.fixture(params=["memory", pytest.param("disk", marks=pytest.mark.long), "server"])
def pubsub(request: pytest.FixtureRequest, tmp_path: Path, project: str) -> Iterator[Any]:
    if request.param == "server":
        with sync.PubSub(request.getfixturevalue("shared_server").url, project=project) as opened:
            yield opened
    else:
        with sync.PubSub(data_dir=tmp_path / "data" if request.param == "disk" else None) as opened:
            yield opened


@pytest.fixture
def subscription(pubsub: Any) -> Any:
    topic = pubsub.topic("orders").create()
    return topic.subscription("billing").create()


def test_publish_and_pull(pubsub: Any, subscription: Any) -> None:
    message_id = pubsub.topic("orders").publish_message(b"x", {"k": "v"})

    [message] = subscription.pull(wait=PATIENCE)

    assert (message.id, message.data, dict(message.attributes)) == (message_id, b"x", {"k": "v"})
    assert message.ack_with_response() == client.AckResponse.SUCCESS
    assert subscription.stats().acked_total == 1


def test_a_for_loop_takes_messages_as_they_come(pubsub: Any, subscription: Any) -> None:
    for body in (b"1", b"2", b"3"):
        pubsub.topic("orders").publish_message(body)
    taken = []
    for message in subscription:
        taken.append(message.data)
        message.ack()
        if len(taken) == 3:
            break
    subscription.close()

    assert taken == [b"1", b"2", b"3"]


def test_a_for_loop_ends_when_another_thread_closes(subscription: Any) -> None:
    ended = threading.Event()

    def loop() -> None:
        for _ in subscription:
            pass
        ended.set()

    thread = threading.Thread(target=loop)
    thread.start()
    while not subscription.is_open:
        threading.Event().wait(0.001)
    subscription.close()

    assert ended.wait(PATIENCE)
    thread.join()


def test_handlers_run_in_threads_and_may_block(pubsub: Any, subscription: Any) -> None:
    both = threading.Barrier(3)

    def handle(message: Any) -> None:
        both.wait(PATIENCE)
        message.ack()

    assert subscription.handler(handle) is handle
    subscription.open()
    pubsub.topic("orders").publish_message(b"1")
    pubsub.topic("orders").publish_message(b"2")
    both.wait(PATIENCE)
    subscription.close()

    assert subscription.stats().acked_total == 2


def test_a_handler_that_raises_gives_its_message_back(pubsub: Any, subscription: Any) -> None:
    errors: list[BaseException] = []
    settled = threading.Event()

    def handle(message: Any) -> None:
        if message.delivery_attempt == 1:
            raise ValueError("not yet")
        message.ack()
        settled.set()

    subscription.on("message", handle).on("error", errors.append)
    subscription.open()
    pubsub.topic("orders").publish_message(b"x")
    assert settled.wait(PATIENCE)
    subscription.close()

    assert [str(error) for error in errors] == ["not yet"]


def test_a_listener_that_was_taken_off_is_not_called(pubsub: Any, subscription: Any) -> None:
    def never(message: Any) -> None:
        pytest.fail("it was taken off")

    done = threading.Event()
    subscription.on("message", never).off("message", never)
    subscription.on("message", lambda message: done.set() if message.ack() is None else None)
    subscription.open()
    pubsub.topic("orders").publish_message(b"x")

    assert done.wait(PATIENCE)
    subscription.close()


def test_errors_are_those_of_the_client(pubsub: Any, subscription: Any) -> None:
    with pytest.raises(AlreadyExists, match="orders"):
        pubsub.topic("orders").create()
    with pytest.raises(InvalidArgument, match="event is 'mesage'"):
        subscription.on("mesage", print)


def test_the_same_thing_is_equal_and_of_its_kind(pubsub: Any, subscription: Any) -> None:
    assert pubsub.topic("orders") == pubsub.topic("orders")
    assert pubsub.topic("orders") != pubsub.topic("other")
    assert len({pubsub.topic("orders"), pubsub.topic("orders")}) == 1
    assert isinstance(pubsub.topic("orders"), sync.Topic)
    assert isinstance(subscription, sync.Subscription)
    assert (pubsub.topic("orders").name, subscription.name, subscription.topic_name) == ("orders", "billing", "orders")
    with pytest.raises(AttributeError, match="nmae"):
        getattr(subscription, "nmae")  # noqa: B009  # as somebody would type it


def test_many_threads_share_one_client(pubsub: Any, subscription: Any) -> None:
    topic = pubsub.topic("orders")
    ids: list[str] = []

    def publish() -> None:
        ids.extend(topic.publish_message(b"x") for _ in range(20))

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({*ids}) == 160
    assert subscription.stats().backlog == 160


def test_a_work_queue_too(pubsub: Any) -> None:
    queue = pubsub.queue("mail").create()
    queue.publish({"to": "ann"}, priority=9)
    for task in queue:
        assert (task.payload, task.priority, task.retry_count) == ({"to": "ann"}, 9, 0)
        task.nack(requeue=False, error="no such person")
        break
    queue.close()

    [letter] = queue.dead_letters()
    assert letter.last_error == "no such person"
    assert queue.redrive(lambda letter: letter.attempts == 1) == 1
    assert queue.stats().depth == 1


def test_a_function_that_the_client_calls_cannot_wait_for_the_client() -> None:
    with sync.PubSub() as pubsub:
        queue = pubsub.queue("tasks").create(max_retries=0)
        queue.publish(b"x")
        for task in queue:
            task.nack(requeue=False)
            break
        queue.close()
        with pytest.raises(FailedPrecondition, match="cannot wait for the client"):
            queue.redrive(lambda letter: queue.stats().dead_letters > 0)  # it would wait for itself, for ever


def test_a_schema_too(pubsub: Any) -> None:
    schema = pubsub.schema("order").create("AVRO", '{"type": "record", "name": "o", "fields": [{"name": "n", "type": "int"}]}')

    schema.validate_message(b'{"n": 1}')
    with pytest.raises(InvalidArgument):
        schema.validate_message(b'{"n": "one"}')


def test_closing_twice_and_using_it_afterwards() -> None:
    with sync.PubSub() as pubsub:
        pass
    pubsub.close()

    with pytest.raises(FailedPrecondition, match="closed"):
        pubsub.topics()


def test_arguments_that_make_no_client_leave_no_thread() -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "penstock-client"}
    with pytest.raises(InvalidArgument, match="token"):
        sync.PubSub(token="secret")

    assert {thread for thread in threading.enumerate() if thread.name == "penstock-client"} <= before


def test_every_public_name_is_there_with_its_words(subtests: pytest.Subtests) -> None:
    for name in sync.__all__:
        waiting, blocking = getattr(client, name), getattr(sync, name)
        members = [one for one in dir(waiting) if not one.startswith("_") and not isinstance(getattr(waiting, one), type)]
        with subtests.test(name=name):
            assert [one for one in members if not hasattr(blocking, one)] == []
            for one in members:
                member = inspect.getattr_static(blocking, one)
                assert not inspect.iscoroutinefunction(member), one
                assert not callable(member) or inspect.getdoc(member), one


def test_a_client_may_be_opened_by_name_and_says_what_to_do_when_it_is_not_open() -> None:
    pubsub: Any = sync.PubSub()
    with pytest.raises(FailedPrecondition, match="not open") as caught:
        pubsub.topics()
    assert "penstock.sync" in str(caught.value.hint)

    assert pubsub.open() is pubsub
    topic = pubsub.topic("orders")
    assert topic.create() is topic
    topic.publish_message(b"x")

    pubsub.close()
    with pytest.raises(FailedPrecondition, match="closed") as caught:
        pubsub.open()
    assert "new PubSub" in str(caught.value.hint)
