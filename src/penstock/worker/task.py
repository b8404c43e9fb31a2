"""A task: a function that messages call, and that can still be called directly."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from penstock.durations import SECOND, micros
from penstock.errors import InvalidArgument
from penstock.values.message import check_name, check_priority, check_producer
from penstock.values.policy import Duration, check_count
from penstock.values.queue import NewMessage
from penstock.worker.core.call import payload_of
from penstock.worker.core.verdict import MAX_DELAY_SECONDS, Backoff

P = ParamSpec("P")
R = TypeVar("R")

MAX_RETRIES = 1_000_000


class Outbox(Protocol):
    """The sender of calls."""

    async def send(self, queue: str, message: NewMessage) -> str:
        """Publish a message to a queue; returns its id once it is durable."""

    def send_sync(self, queue: str, message: NewMessage) -> str:
        """The same, blocking."""


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of a task."""

    max_retries: int | None
    backoff: Backoff
    time_limit: float | None
    """Seconds."""
    priority: int | None
    ttl: Duration | None

    @classmethod
    def of(
        cls, *, max_retries: int | None, backoff: object, time_limit: Duration | None, priority: int | None, ttl: Duration | None
    ) -> TaskOptions:
        """The options, checked."""
        if max_retries is not None:
            check_count(max_retries, "max_retries", 0, MAX_RETRIES)
        limit = None if time_limit is None else micros(time_limit, "time_limit", minimum=1e-3, maximum=MAX_DELAY_SECONDS)
        if priority is not None:
            check_priority(priority)
        if ttl is not None:
            micros(ttl, "ttl", minimum=1e-6)
        return cls(max_retries, Backoff.of(backoff), None if limit is None else limit / SECOND, priority, ttl)


class Task(Generic[P, R]):
    """A function with a name and a queue. Call it to run it directly; `send` it to run it in a worker."""

    def __init__(self, outbox: Outbox, function: Callable[P, R], *, name: str, queue: str, options: TaskOptions) -> None:
        check_name(name, "task")
        self._outbox = outbox
        self.function = function
        self.name = name
        self.queue = queue
        self.options = options
        self.is_async = _is_async(function)
        self._signature = _bare(inspect.signature(function))
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it here, like any function."""
        return self.function(*args, **kwargs)

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Run it in a worker; returns the message's id once it is durable. The arguments must be JSON values."""
        return await self._outbox.send(self.queue, self.message(args, kwargs))

    def send_sync(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Like `send`, for code without an event loop."""
        return self._outbox.send_sync(self.queue, self.message(args, kwargs))

    def send_with(
        self,
        *,
        delay: Duration | None = None,
        deliver_at: datetime | float | None = None,
        priority: int | None = None,
        ttl: Duration | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
        once: tuple[str, int] | None = None,
        retries: int | None = None,
    ) -> TaskSender[P]:
        """Send with other options: `await task.send_with(delay=60)(…)`, or `task.send_with(delay=60).sync(…)`.

        `delay`, `ttl`: seconds. `deliver_at`: an aware datetime, or seconds since 1970. What is None is as the task says.
        `once`: a name and a number. A call that is sent again with the same two is not stored again, so a task that runs twice
        sends what follows it once. The queue knows the last 1,000 numbers of each of the last 1,000 names.
        `retries` is deprecated: use `max_retries`.
        """
        make = partial(
            self.message,
            delay=delay,
            deliver_at=deliver_at,
            priority=priority,
            ttl=ttl,
            max_retries=renamed_retries(max_retries, retries),
            headers=headers,
            once=once,
        )
        return TaskSender(self._outbox, self.queue, make)

    def message(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        delay: Duration | None = None,
        deliver_at: datetime | float | None = None,
        priority: int | None = None,
        ttl: Duration | None = None,
        max_retries: int | None = None,
        headers: Mapping[str, str] | None = None,
        once: tuple[str, int] | None = None,
    ) -> NewMessage:
        """The message that calls it; InvalidArgument if the arguments do not match the function, or are not JSON."""
        self.check_arguments(args, kwargs)
        if headers is not None and not isinstance(headers, Mapping):
            raise InvalidArgument.of("headers", headers, "a mapping of str to str")
        options = self.options
        return NewMessage(
            payload_of(self.name, args, kwargs),
            options.priority if priority is None else priority,
            options.ttl if ttl is None else ttl,
            None if headers is None else {**headers},
            options.max_retries if max_retries is None else max_retries,
            delay,
            deliver_at,
            *(() if once is None else _checked_pair(once)),
        )

    def check_arguments(self, args: tuple[Any, ...] | list[Any], kwargs: dict[str, Any]) -> None:
        """Raise if the function cannot be called with these arguments."""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArgument(f"task {self.name!r}: {error}; expected {self.name}{self._signature}") from None

    def __repr__(self) -> str:
        return f"<Task {self.name!r} of queue {self.queue!r}>"


class TaskSender(Generic[P]):
    """The options of one call. Call it with the arguments of the task."""

    __slots__ = ("_make", "_outbox", "_queue")

    def __init__(self, outbox: Outbox, queue: str, make: Callable[..., NewMessage]) -> None:
        self._outbox = outbox
        self._queue = queue
        self._make = make

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[str]:
        """Send it; await the result for the message's id."""
        return self._outbox.send(self._queue, self._make(args, kwargs))

    def sync(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Send it, and wait until it is durable; returns the message's id."""
        return self._outbox.send_sync(self._queue, self._make(args, kwargs))


def renamed_retries(max_retries: int | None, retries: int | None) -> int | None:
    """The value of `max_retries`, which was `retries` before version 0.2."""
    if retries is None:
        return max_retries
    if max_retries is not None:
        raise InvalidArgument("retries is given together with max_retries, expected max_retries alone")
    warnings.warn("retries= is deprecated, use max_retries=", DeprecationWarning, stacklevel=3)
    return retries


def _checked_pair(once: object) -> tuple[str, int]:
    if not isinstance(once, tuple) or len(once) != 2:
        raise InvalidArgument.of("once", once, 'a name and a number, as in ("report", 7)')
    return check_producer(*once, "once")


def _bare(signature: inspect.Signature) -> inspect.Signature:
    """The signature with names and defaults only, for errors."""
    parameters = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return inspect.Signature(parameters)


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
