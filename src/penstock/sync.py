"""The client in blocking form, for scripts, WSGI applications and notebooks: `from penstock.sync import PubSub`.

    with PubSub() as pubsub:
        topic = pubsub.topic("orders")
        topic.create()
        topic.publish_message(b"hello")

There is one implementation, `penstock.client`. It runs on an event loop in a thread of its own; the classes here are generated
from its classes: a method that is awaited there returns its result here, `async for` becomes `for`, and `async with` becomes
`with`. All objects may be used from any thread. Handlers run in threads, so they may block.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from functools import wraps
from typing import Any

from penstock import client
from penstock.client.handlers import Listener
from penstock.client.loop_thread import LoopThread


class Blocking:
    """An object of the client, used from outside its event loop."""

    __slots__ = ("__weakref__", "_inner", "_thread")

    def __init__(self, inner: Any, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that is not a method, such as the name of a topic."""
        if name.startswith("_"):
            raise AttributeError(name)
        return _wrapped(getattr(self._inner, name), self._thread)

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocking) and self._inner is other._inner

    def __hash__(self) -> int:
        return hash(id(self._inner))


_twins: dict[type, type[Blocking]] = {}
"""The blocking class of each class of the client."""


def _blocking(source: type, **extra: Any) -> Any:
    """The blocking form of a class: the same public names, with the same meaning."""
    members: dict[str, Any] = {"__slots__": (), "__doc__": source.__doc__, "__module__": __name__}
    for name in dir(source):
        if name.startswith("_") or name in extra:
            continue
        member = inspect.getattr_static(source, name)
        if isinstance(member, property):
            members[name] = property(_reading(name), doc=member.__doc__)
        elif inspect.isfunction(member):
            members[name] = _method(name, member, is_direct=name in _DIRECT)
        elif not callable(member):
            members[name] = member
    if hasattr(source, "__aiter__"):
        members["__iter__"] = _iterate
    twin = type(source.__name__, (Blocking,), members | extra)
    _twins[source] = twin
    return twin


_DIRECT = frozenset({"ack", "nack", "modify_ack_deadline", "json"})
"""Methods that are thread-safe and do not block."""


def _method(name: str, function: Callable[..., Any], *, is_direct: bool) -> Callable[..., Any]:
    if is_direct:

        @wraps(function)
        def direct(self: Blocking, *args: Any, **kwargs: Any) -> Any:
            return getattr(self._inner, name)(*args, **kwargs)

        return direct

    @wraps(function)
    def waiting(self: Blocking, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self._inner, name)
        result = self._thread.call(lambda: method(*args, **kwargs))
        return self if result is self._inner else _wrapped(result, self._thread)

    if inspect.iscoroutinefunction(function):
        # The signature has the result's type, not that of the coroutine.
        waiting.__annotations__ = {**function.__annotations__}
    return waiting


def _reading(name: str) -> Callable[[Blocking], Any]:
    def read(self: Blocking) -> Any:
        return _wrapped(getattr(self._inner, name), self._thread)

    return read


def _iterate(self: Blocking) -> Iterator[Any]:
    iterator: AsyncIterator[Any] = self._thread.call(lambda: aiter(self._inner))
    try:
        while True:
            try:
                item = self._thread.call(lambda: anext(iterator))
            except StopAsyncIteration:
                return
            yield _wrapped(item, self._thread)
    finally:
        # Garbage may be collected in any thread. In the loop's own thread there is nothing to do: a loop closes its iterators.
        if isinstance(iterator, AsyncGenerator) and self._thread.is_alive and not self._thread.is_here:
            self._thread.call(iterator.aclose)


def _wrapped(value: Any, thread: LoopThread) -> Any:
    """Convert a result for use outside of the loop: objects of the client become their blocking form."""
    twin = next((_twins[kind] for kind in type(value).__mro__ if kind in _twins), None)
    if twin is not None:
        return twin(value, thread)
    if isinstance(value, list):
        return [_wrapped(one, thread) for one in value]
    return value


def _on(self: Blocking, event: str, listener: Listener) -> Blocking:
    """Call a function for each 'message', for each 'error', and at 'close'. It runs in a thread, so it may block."""

    def beside(*args: Any) -> Awaitable[Any]:
        return self._thread.beside(listener, *(_wrapped(one, self._thread) for one in args))

    listeners: dict[Any, Any] = self._inner.__dict__.setdefault("_blocking_listeners", {})
    listeners[event, listener] = beside
    self._thread.call(lambda: self._inner.on(event, beside))
    return self


def _off(self: Blocking, event: str, listener: Listener) -> Blocking:
    """Stop calling a function that was registered with `on`."""
    beside = self._inner.__dict__.get("_blocking_listeners", {}).pop((event, listener), None)
    if beside is not None:
        self._thread.call(lambda: self._inner.off(event, beside))
    return self


def _handler(self: Blocking, function: Listener) -> Listener:
    """As a decorator: call a function for each message."""
    _on(self, "message", function)
    return function


def _open_pubsub(self: Blocking, *args: Any, **kwargs: Any) -> None:
    thread = LoopThread()
    try:
        Blocking.__init__(self, client.PubSub(*args, **kwargs), thread)
    except BaseException:
        thread.close()
        raise


def _enter(self: Blocking) -> Blocking:
    self._thread.call(self._inner.open)
    return self


def _exit(self: Blocking, kind: type[BaseException] | None, *_: object) -> None:
    self.close(give_back=kind is not None)


def _close_pubsub(self: Blocking, *, give_back: bool = False) -> None:
    """Publish waiting messages, close all subscriptions, and disconnect. Safe to call twice.

    With `give_back`, unsettled messages are requeued at once. Leaving `with` by an error does the same.
    """
    if self._thread.is_alive:
        try:
            self._thread.call(lambda: self._inner.close(give_back=give_back))
        finally:
            self._thread.close()


Topic = _blocking(client.Topic)
IncomingMessage = _blocking(client.IncomingMessage)
Subscription = _blocking(client.Subscription, on=_on, off=_off, handler=_handler)
QueueTask = _blocking(client.QueueTask)
WorkQueue = _blocking(client.WorkQueue, on=_on, off=_off, handler=_handler)
Schema = _blocking(client.Schema)
PubSub = _blocking(client.PubSub, __init__=_open_pubsub, __enter__=_enter, __exit__=_exit, close=_close_pubsub)

__all__ = ["IncomingMessage", "PubSub", "QueueTask", "Schema", "Subscription", "Topic", "WorkQueue"]
