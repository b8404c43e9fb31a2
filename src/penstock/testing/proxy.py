"""A network that fails: a TCP proxy that cuts, refuses, delays, throttles, truncates and swallows, for tests.

    with LocalServer() as server, FaultyProxy("127.0.0.1", server.server.native_port) as proxy:
        pubsub = PubSub(f"penstock://{proxy.address}")
        proxy.cut()                                   # every connection is reset, new ones pass
        proxy.truncate(10, Direction.DOWN)            # ten more bytes of answers, then that connection is reset
        proxy.swallow(); ...; proxy.heal()            # half-open: sent bytes vanish, without a notice

Faults are for all connections, present and future, and last until `heal`. They can be called from any thread, and have taken
effect when the call returns. `misbehave(seed)` does one after the other at random: the same seed gives the same faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Flag
from typing import Any, ParamSpec, Self, TypeVar

from penstock.durations import micros
from penstock.errors import InvalidArgument

P = ParamSpec("P")
T = TypeVar("T")

LOOPBACK = "127.0.0.1"
CHUNK = 64 * 1024
CHUNKS = 64
"""Bytes in transit in one direction of a connection."""
START_SECONDS = 30
BACKLOG = 128
_RESET = struct.pack("ii", 1, 0)


class Direction(Flag):
    """The direction of bytes."""

    UP = 1
    """From the client to the server."""
    DOWN = 2
    """From the server to the client."""
    BOTH = 3


@dataclass(slots=True)
class _Faults:
    """The faults of one direction."""

    delay: float = 0.0
    jitter: float = 0.0
    rate: float | None = None
    left: int | None = None
    """Bytes that pass before the connection that carries the next one is cut."""
    is_swallowed: bool = False


@dataclass(slots=True)
class _Both:
    up: _Faults = field(default_factory=_Faults)
    down: _Faults = field(default_factory=_Faults)

    def of(self, direction: Direction) -> list[_Faults]:
        return [faults for way, faults in ((Direction.UP, self.up), (Direction.DOWN, self.down)) if way in direction]


class FaultyProxy:
    """A proxy on a free port of this machine, in a thread with an event loop of its own. Use it as a context manager.

    `target` may be changed while it runs: a server that comes back may be on another port. Counters: `accepted` connections,
    `carried` bytes, `swallowed` bytes, and `faults`, what `misbehave` has done, in words.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = (target_host, target_port)
        self.port = 0
        self.accepted = 0
        self.carried = 0
        self.swallowed = 0
        self.faults: list[str] = []
        self._both = _Both()
        self._pairs: set[_Pair] = set()
        self._chance = random.Random(0)
        self._listener: socket.socket | None = None
        self._storm: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._over: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="penstock-proxy", daemon=True)

    @property
    def address(self) -> str:
        """host:port to connect to."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections are open, half-open ones included."""
        return len(self._pairs)

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        """Return once it accepts connections."""
        self._thread.start()
        self._started.wait(START_SECONDS)
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        """Cut everything and stop. Can be called twice, and before a start."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def cut(self, *, reset: bool = True) -> int:
        """Close every connection now, on both sides, by a reset or normally; returns how many there were."""
        return self._do(self._cut, reset)

    def refuse(self) -> None:
        """Refuse new connections, as a closed port does. Open ones continue."""
        self._do(self._refuse)

    def accept(self) -> None:
        """Accept new connections again, on the same port."""
        self._do(self._accept)

    def delay(self, seconds: float, jitter: float = 0.0, direction: Direction = Direction.BOTH) -> None:
        """Delay every byte by this long, more or less `jitter`. Order is kept."""
        micros(seconds, "seconds", maximum=3_600)
        micros(jitter, "jitter", maximum=3_600)
        self._set(direction, delay=seconds, jitter=jitter)

    def throttle(self, bytes_per_second: float, direction: Direction = Direction.BOTH) -> None:
        """Limit each connection to this many bytes a second."""
        if not bytes_per_second > 0:
            raise InvalidArgument.of("bytes_per_second", bytes_per_second, "more than 0")
        self._set(direction, rate=bytes_per_second)

    def truncate(self, after_bytes: int, direction: Direction = Direction.DOWN) -> None:
        """Let this many more bytes pass in a direction, then reset the connection of the next byte. Once."""
        if after_bytes < 0:
            raise InvalidArgument.of("after_bytes", after_bytes, "0 or more")
        self._set(direction, left=after_bytes)

    def swallow(self, direction: Direction = Direction.BOTH) -> None:
        """Drop bytes, and ends of connections too, without a notice to the sender.

        A connection that lost a byte stays broken after `heal`.
        """
        self._set(direction, is_swallowed=True)

    def heal(self) -> None:
        """End all faults: stop `misbehave`, accept, and pass bytes at once."""
        self._do_async(self._heal)

    def misbehave(self, seed: int, *, every: float = 0.5) -> None:
        """Cause one random fault after the other, about `every` this many seconds, until `heal`."""
        micros(every, "every", minimum=1e-3, maximum=3_600)
        self._do_async(lambda: self._begin_storm(seed, every))

    # ── in its own thread ────────────────────────────────────────────────────────────────────────────────────────────────

    def _do(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async def call() -> T:
            return function(*args, **kwargs)

        return self._do_async(call)

    def _do_async(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._loop is None or not self._thread.is_alive():
            raise InvalidArgument("the proxy does not run", hint="with FaultyProxy(host, port) as proxy: …")
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result(START_SECONDS)

    def _set(self, direction: Direction, **changes: Any) -> None:
        def change() -> None:
            for faults in self._both.of(direction):
                for name, value in changes.items():
                    setattr(faults, name, value)

        self._do(change)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # the thread's top: `start` raises it where somebody sees it
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._accept()
        self._started.set()
        await self._over.wait()
        await self._heal()
        self._refuse()
        self._cut(True)
        if self._pairs:
            await asyncio.wait([pair.over for pair in self._pairs])

    def _accept(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((LOOPBACK, self.port), backlog=BACKLOG)
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            asyncio.get_running_loop().add_reader(self._listener, self._connect, self._listener)

    def _refuse(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()

    async def _heal(self) -> None:
        storm, self._storm = self._storm, None
        if storm is not None:
            storm.cancel()
            await asyncio.wait([storm])
        self._calm()
        self._accept()

    def _calm(self) -> None:
        self._both.up, self._both.down = _Faults(), _Faults()

    def _cut(self, reset: bool) -> int:
        pairs = [*self._pairs]
        for pair in pairs:
            pair.end(reset=reset)
        return len(pairs)

    def _connect(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return  # already gone
        self.accepted += 1
        pair = _Pair(accepted, self)
        self._pairs.add(pair)
        pair.over.add_done_callback(lambda _: self._pairs.discard(pair))

    # ── at random ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _begin_storm(self, seed: int, every: float) -> None:
        await self._heal()
        self._storm = asyncio.get_running_loop().create_task(self._rage(random.Random(seed), every))

    async def _rage(self, chance: random.Random, every: float) -> None:
        while True:
            await asyncio.sleep(every * (0.5 + chance.random()))
            self.faults.append(self._misbehave(chance))
            await asyncio.sleep(every * chance.random())
            self._calm()
            self._accept()

    def _misbehave(self, chance: random.Random) -> str:
        """Cause one fault; returns its description."""
        kind = chance.choice(("reset", "close", "refuse", "delay", "throttle", "truncate", "swallow"))
        direction = chance.choice((Direction.UP, Direction.DOWN, Direction.BOTH))
        amount = chance.random()
        chosen = self._both.of(direction)
        match kind:
            case "reset" | "close":
                return f"{kind} of {self._cut(kind == 'reset')} connections"
            case "refuse":
                self._refuse()
                return f"refuse, and reset {self._cut(True)} connections"
            case "delay":
                for faults in chosen:
                    faults.delay, faults.jitter = amount / 5, amount / 10
            case "throttle":
                for faults in chosen:
                    faults.rate = 1_000 + 100_000 * amount
            case "truncate":
                for faults in chosen:
                    faults.left = int(2_000 * amount)
            case _:
                for faults in chosen:
                    faults.is_swallowed = True
        return f"{kind} {direction.name} {amount:.2f}"

    def lag(self, faults: _Faults) -> float:
        """The delay of bytes that arrive now."""
        if not faults.delay and not faults.jitter:
            return 0.0
        return max(faults.delay + faults.jitter * (2 * self._chance.random() - 1), 0.0)

    @property
    def both(self) -> _Both:
        """The faults of bytes that arrive now."""
        return self._both


_Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Line = asyncio.Queue[tuple[float, bytes]]
"""Bytes in transit, and when they arrive."""


class _Pair:
    """A client's connection, and the matching connection to the server."""

    def __init__(self, accepted: socket.socket, proxy: FaultyProxy) -> None:
        self._proxy = proxy
        self._sides: list[_Side] = []
        self._is_cut = False
        self._is_dead = {Direction.UP: False, Direction.DOWN: False}
        self._tasks: list[asyncio.Task[None]] = []
        self.over = asyncio.get_running_loop().create_task(self._carry(accepted))
        """Done when the connection ends."""

    def end(self, *, reset: bool) -> None:
        """End both sides now."""
        self._is_cut = True
        for _, writer in self._sides:
            _end(writer, reset=reset)
        for task in self._tasks:
            task.cancel()

    async def _carry(self, accepted: socket.socket) -> None:
        """Carry bytes both ways until both sides have ended."""
        self._sides.append(await asyncio.open_connection(sock=accepted))
        try:
            self._sides.append(await asyncio.open_connection(*self._proxy.target))
        except OSError:
            self._is_cut = True
        if self._is_cut:
            self.end(reset=True)
            return
        (client_in, client_out), (server_in, server_out) = self._sides
        if client_out.transport.is_closing():  # cut in the meantime
            self.end(reset=True)
            return
        loop = asyncio.get_running_loop()
        ways = ((Direction.UP, client_in, server_out), (Direction.DOWN, server_in, client_out))
        for direction, source, drain in ways:
            line: _Line = asyncio.Queue(CHUNKS)
            self._tasks.append(loop.create_task(self._take(direction, source, line)))
            self._tasks.append(loop.create_task(self._give(direction, line, drain)))
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled():
                task.exception()  # a broken connection has nothing to send
        for _, writer in self._sides:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _faults(self, direction: Direction) -> _Faults:
        return self._proxy.both.of(direction)[0]

    async def _take(self, direction: Direction, source: asyncio.StreamReader, line: _Line) -> None:
        """Read, and note when the bytes are due at the other end. The end of a connection is an empty read."""
        loop, due = asyncio.get_running_loop(), 0.0
        while True:
            try:
                data = await source.read(CHUNK)
            except OSError:
                if self._is_swallowing(direction):
                    return
                self.end(reset=True)
                raise
            due = max(due, loop.time() + self._proxy.lag(self._faults(direction)))
            await line.put((due, data))
            if not data:
                return

    async def _give(self, direction: Direction, line: _Line, drain: asyncio.StreamWriter) -> None:
        """Write the bytes that are due."""
        loop = asyncio.get_running_loop()
        while True:
            due, data = await line.get()
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            if self._is_swallowing(direction):
                self._is_dead[direction] = True
                self._proxy.swallowed += len(data)
                if not data:
                    return
                continue
            if not data:
                drain.write_eof()
                return
            await self._pass(direction, data, drain)

    async def _pass(self, direction: Direction, data: bytes, drain: asyncio.StreamWriter) -> None:
        while data:
            faults = self._faults(direction)
            if faults.left is not None and faults.left <= len(data):
                drain.write(data[: faults.left])
                faults.left = None
                await drain.drain()
                self.end(reset=True)
                return
            part = data if faults.rate is None else data[: max(int(faults.rate / 50), 1)]
            data = data[len(part) :]
            if faults.left is not None:
                faults.left -= len(part)
            drain.write(part)
            self._proxy.carried += len(part)
            await drain.drain()
            if faults.rate is not None:
                await asyncio.sleep(len(part) / faults.rate)

    def _is_swallowing(self, direction: Direction) -> bool:
        return self._is_dead[direction] or self._faults(direction).is_swallowed


def _end(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    sock = writer.get_extra_info("socket")
    if reset and sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
