"""Decorating functions: what a task is, what it refuses, and what it sends. Nothing is connected here."""

import asyncio
from functools import partial
from typing import Any

import pytest

from penstock.client.pubsub import PubSub
from penstock.errors import FailedPrecondition, InvalidArgument, InvalidPriority, PenstockError
from penstock.testing import ManualClock
from penstock.values.policy import QueueConfig
from penstock.values.queue import NewMessage
from penstock.worker import Task, Worker


def made(**options: Any) -> tuple[Worker, Task[..., Any]]:
    worker = Worker()

    @worker.task("emails", **options)
    def send_email(to: str, *, subject: str = "") -> str:
        """Send it."""
        return f"{to}: {subject}"

    return worker, send_email


def test_a_task_is_still_its_function() -> None:
    _, task = made()

    assert task("a@b.c", subject="hello") == "a@b.c: hello"
    assert (task.name, task.queue, task.__doc__, task.is_async) == (
        "send_email",
        "emails",
        "Send it.",
        False,
    )
    assert repr(task) == "<Task 'send_email' of queue 'emails'>"


def test_a_message_carries_the_call_and_what_was_said_about_the_task() -> None:
    _, plain = made()
    _, full = made(name="mail", max_retries=5, priority=7, ttl=60)

    assert plain.message(("a",), {}) == NewMessage({"v": 1, "task": "send_email", "args": ["a"], "kwargs": {}})
    assert full.message((), {"to": "a"}) == NewMessage(
        {"v": 1, "task": "mail", "args": [], "kwargs": {"to": "a"}}, priority=7, ttl=60, max_retries=5
    )


def test_what_is_said_when_sending_counts_more() -> None:
    _, task = made(max_retries=5, priority=7, ttl=60)

    message = task.message(("a",), {}, max_retries=0, priority=0, ttl=1, delay=9, headers={"trace": "1"})

    assert (message.max_retries, message.priority, message.ttl, message.delay, message.headers) == (0, 0, 1, 9, {"trace": "1"})


def test_headers_that_are_no_mapping_are_refused() -> None:
    _, task = made()

    with pytest.raises(InvalidArgument, match="headers is 5, expected a mapping of str to str"):
        task.message(("a",), {}, headers=5)  # type: ignore[arg-type]


def test_arguments_that_do_not_fit_the_function_are_refused_where_they_are_sent(subtests: pytest.Subtests) -> None:
    rows: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "missing a required argument: 'to'"),
        (("a", "b"), {}, "too many positional arguments"),
        (("a",), {"subjet": "x"}, "got an unexpected keyword argument 'subjet'"),
        (("a",), {"to": "b"}, "multiple values for argument 'to'"),
    ]
    for args, kwargs, problem in rows:
        with subtests.test(args=args, kwargs=kwargs):
            _, task = made()

            with pytest.raises(InvalidArgument) as caught:
                task.message(args, kwargs)

            assert problem in str(caught.value)
            assert "expected send_email(to, *, subject='')" in str(caught.value)


async def _coroutine() -> None: ...


class _Callable:
    __name__ = "callable"

    async def __call__(self) -> None: ...


def test_whether_a_function_is_awaited_is_seen_when_it_is_decorated(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Any, bool]] = [
        (_coroutine, True),
        (partial(_coroutine), True),
        (_Callable(), True),
        (print, False),
        (lambda: None, False),
    ]
    for function, is_async in rows:
        with subtests.test(function=function, is_async=is_async):
            assert Worker().task("q", name="t")(function).is_async is is_async


def test_an_option_that_makes_no_sense_is_refused_at_once(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], type[PenstockError], str]] = [
        ({"max_retries": -1}, InvalidArgument, "max_retries is -1"),
        ({"max_retries": 1.5}, InvalidArgument, "max_retries is 1.5"),
        ({"max_retries": True}, InvalidArgument, "max_retries is True"),
        ({"backoff": (10, 1)}, InvalidArgument, "backoff is (10, 1)"),
        ({"backoff": "1s"}, InvalidArgument, "backoff is '1s'"),
        ({"time_limit": 0}, InvalidArgument, "time_limit is 0"),
        ({"time_limit": -5}, InvalidArgument, "time_limit is -5"),
        ({"time_limit": "30"}, InvalidArgument, "time_limit is '30'"),
        ({"priority": 10}, InvalidPriority, "Invalid priority: 10"),
        ({"priority": "high"}, InvalidPriority, "Invalid priority: 'high'"),
        ({"ttl": 0}, InvalidArgument, "ttl is 0"),
        ({"name": "a\nb"}, InvalidArgument, "task"),
    ]
    for options, error, said in rows:
        with subtests.test(options=options, error=error):
            with pytest.raises(error) as caught:
                made(**options)

            assert said in str(caught.value)


def test_a_queue_must_have_a_name(subtests: pytest.Subtests) -> None:
    rows: list[Any] = ["", 7, None, "a\x00b", "bad name!", "a,b", " emails", "a/b", "x" * 257]
    for queue in rows:
        with subtests.test(queue=queue), pytest.raises(InvalidArgument, match="queue"):
            Worker().task(queue)


def test_a_decorator_without_parentheses_takes_the_default_queue() -> None:
    worker = Worker()

    @worker.task
    def send_email(to: str) -> str:
        return to

    assert (send_email.name, send_email.queue, send_email("ann")) == ("send_email", "default", "ann")
    assert worker.queues == ["default"]


def test_a_task_is_a_function() -> None:
    with pytest.raises(InvalidArgument, match="the task is 7, expected a function or a coroutine function"):
        Worker().task("q")(7)  # type: ignore[arg-type]


def test_two_tasks_have_two_names() -> None:
    worker, _ = made()

    with pytest.raises(InvalidArgument, match="there is a task 'send_email' already"):
        worker.task("other", name="send_email")(print)


def test_a_worker_knows_its_tasks_and_each_of_their_queues_once() -> None:
    worker, task = made()
    other = worker.task("emails", name="other")(print)
    third = worker.task("slow", name="third")(print)

    assert worker.tasks == {"send_email": task, "other": other, "third": third}
    assert worker.queues == ["emails", "slow"]


def test_a_worker_that_makes_no_sense_is_refused_at_once(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": "20"}, "concurrency is '20'"),
        ({"prefetch": 0}, "prefetch is 0"),
        ({"shutdown_seconds": -1}, "shutdown_seconds is -1"),
        ({"queue_config": {"max_retries": 3}}, "queue_config is {'max_retries': 3}, expected a QueueConfig"),
        ({"server": "http://h", "data_dir": "d"}, "more than one of server, data_dir and pubsub"),
    ]
    for options, said in rows:
        with subtests.test(options=options, said=said):
            with pytest.raises(InvalidArgument) as caught:
                Worker(**options)

            assert said in str(caught.value)


def test_the_command_line_may_change_what_a_worker_was_made_with() -> None:
    worker = Worker("http://one", concurrency=2, queue_config=QueueConfig(max_retries=1))
    worker.configure(server="http://two", token="secret", concurrency=9)

    assert (worker._server, worker._token, worker._concurrency) == ("http://two", "secret", 9)
    with pytest.raises(InvalidArgument, match="concurrency"):
        worker.configure(concurrency=0)
    with pytest.raises(InvalidArgument, match="given to a worker that has a data directory or a client"):
        Worker(data_dir="somewhere").configure(server="http://two")


def test_a_client_of_another_loop_is_not_waited_for() -> None:
    worker = Worker(pubsub=PubSub())
    task = worker.task("q")(_coroutine)

    with pytest.raises(FailedPrecondition, match="has not used the worker yet"):
        task.send_sync()


def test_a_listener_is_a_function() -> None:
    with pytest.raises(InvalidArgument, match="listener is 7"):
        Worker().on_success(7)  # type: ignore[type-var]


def test_a_call_may_be_marked_to_be_stored_once() -> None:
    _, task = made()

    message = task.message(("a",), {}, once=("report", 7))
    assert (message.producer_id, message.sequence) == ("report", 7)
    for wrong in ("report", ("report",), ("report", -1), ("", 1), ["report", 7]):
        with pytest.raises(InvalidArgument, match="once"):
            task.message(("a",), {}, once=wrong)  # type: ignore[arg-type]


def test_eager_calls_run_where_they_are_sent_with_what_json_makes_of_their_arguments() -> None:
    worker = Worker("http://127.0.0.1:1")
    ran: list[object] = []

    @worker.task
    async def fetch(pair: tuple[int, int]) -> None:
        ran.append(pair)

    @worker.task
    def view(order: int) -> None:
        if order < 0:
            raise ValueError("no such order")
        fetch.send_with(delay=3600).sync((order, 1))

    with worker.eager() as sent:
        view.send_sync(7)
        with pytest.raises(ValueError, match="no such order"):
            view.send_sync(-1)
        with pytest.raises(InvalidArgument, match="expected view"):
            view.send_sync()  # type: ignore[call-arg]
        asyncio.run(fetch.send((8, 1)))
    assert ran == [[7, 1], [8, 1]]
    assert [(call.task, call.args) for call in sent] == [("view", [7]), ("fetch", [[7, 1]]), ("view", [-1]), ("fetch", [[8, 1]])]


def test_calls_go_to_the_client_of_a_test_and_back_to_the_server_after_it(pubsub: Any, clock: ManualClock) -> None:
    worker, task = made()

    with worker.using(pubsub):
        assert task.send_sync("ann") == pubsub.queue("emails").peek().message_id
        for _ in range(2):
            task.send_with(delay=3600, once=("hour", 7)).sync("bob")
        assert asyncio.run(task.send("cid"))
        stats = pubsub.queue("emails").stats()
        assert (stats.depth, stats.delayed) == (2, 1)
        with pytest.raises(FailedPrecondition, match="in use"), worker.using(pubsub):
            pass
    worker.configure(server="http://127.0.0.1:1")
