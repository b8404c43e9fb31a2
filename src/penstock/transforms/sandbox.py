"""The parent's side of the engine: starts child processes, exchanges messages with them, ends them.

A child runs untrusted code, so it may hang or never answer: every exchange has a deadline, a child that misses it is killed and
replaced at the next call, and scripts that have used little time are served first.
"""

from __future__ import annotations

import itertools
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.clock import monotonic
from penstock.errors import Unavailable, Unimplemented
from penstock.extras import how_to_install
from penstock.transforms.engine import ANSWER, REQUEST
from penstock.transforms.fair_queue import FairQueue

PROCESSES = 4
"""Scripts that run at a time: a process takes 16 MB, and a slow script occupies one process."""
MAX_LOADED = 64
GRACE = 5_000_000
"""Seconds that an answer may take beyond the script's own limit: for starting the process, loading, a busy machine."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one call of a transform: seconds of processor time, seconds in all, bytes of memory."""

    cpu: float = 0.5
    wall: float = 2.0
    memory: int = 128 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """The code of a transform, and the name of its function."""

    code: str
    function_name: str


class ChildEnded(Exception):
    """The child process has ended; `problem` is the reason, from the view of the script that it ran."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class Sandbox:
    """Child processes and the programs loaded in them. Thread-safe; calls block.

    A call has a process of its own. At most `processes` run, started on demand; further calls wait, and the script that has used
    the least time is served first. So a slow script delays others by at most one of its calls, and not at all while there are
    fewer slow scripts than processes. A process holds at most MAX_LOADED programs (the least recently used is unloaded, and
    loaded again when needed), and ends with `close`, with this object, or with this process.
    """

    def __init__(self, limits: Limits | None = None, processes: int = PROCESSES) -> None:
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        self._free = processes
        self._turns: FairQueue[threading.Event] = FairQueue()
        self._idle: list[_Child] = []
        """Idle children; the most recently used is last."""
        self._closings = 0

    def check(self, source: Source) -> str | None:
        """Why the code cannot be used, or None. Raises ChildEnded if it ended the child."""
        with self._child(source) as child:
            return child.load(source)

    def apply(self, source: Source, message: bytes) -> tuple[bytes, bytes]:
        """The engine's answer for one message: a letter and a text as `realm.js` describes them. Raises ChildEnded."""
        with self._child(source) as child:
            return child.apply(source, message)

    def close(self) -> None:
        """End the child processes; those that serve a call, after it. A later call starts a new one."""
        with self._lock:
            self._closings += 1
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()

    @contextmanager
    def _child(self, source: Source) -> Iterator[_Child]:
        """A child for one call: one that has the program, else an idle one, else a new one."""
        turn = threading.Event()
        with self._lock:
            self._turns.wait(source, turn)
            self._call_next()
        turn.wait()  # bounded, because every call has a deadline
        child: _Child | None = None
        began = monotonic()
        try:
            with self._lock:
                closings = self._closings
                self._idle = [one for one in self._idle if one.alive()]
                if self._idle:
                    child = next((one for one in reversed(self._idle) if one.has(source)), self._idle[-1])
                    self._idle.remove(child)
            child = child or _Child(self.limits)
            yield child
        finally:
            with self._lock:
                self._turns.add_use(source, monotonic() - began)
                if child is not None and closings == self._closings and child.alive():
                    self._idle.append(child)
                    child = None
                self._free += 1
                self._call_next()
            if child is not None:
                child.end()

    def _call_next(self) -> None:
        if self._free and self._turns:
            self._free -= 1
            self._turns.next().set()


class _Child:
    """A running child process."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._loaded: OrderedDict[Source, int] = OrderedDict()
        self._keys = itertools.count()
        self._channel, theirs = socket.socketpair()
        program = str(Path(__file__).with_name("engine.py"))
        arguments = [str(limits.cpu), str(limits.wall), str(limits.memory)]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", program, *arguments],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={},
                    start_new_session=True,  # Ctrl-C is for the server, which then closes this process
                )
            except OSError as error:
                self._channel.close()
                raise Unavailable(f"the process that runs transforms cannot be started: {error}") from error
        self._end = weakref.finalize(self, _end, self._channel, self._process)

    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._end()

    def has(self, source: Source) -> bool:
        return source in self._loaded

    def load(self, source: Source) -> str | None:
        if source in self._loaded:
            self._loaded.move_to_end(source)
            return None
        if len(self._loaded) >= MAX_LOADED:
            self._ask(b"U", self._loaded.popitem(last=False)[1])
        key = next(self._keys)
        letter, said = self._ask(b"L", key, msgspec.json.encode((source.code, source.function_name)))
        if letter != b"K":
            return said.decode()
        self._loaded[source] = key
        return None

    def apply(self, source: Source, message: bytes) -> tuple[bytes, bytes]:
        problem = self.load(source)
        if problem:
            return b"F", problem.encode()
        return self._ask(b"A", self._loaded[source], message)

    def _ask(self, what: bytes, key: int, body: bytes = b"") -> tuple[bytes, bytes]:
        deadline = monotonic() + int(self._limits.wall * 1_000_000) + GRACE
        try:
            self._channel.settimeout((deadline - monotonic()) / 1_000_000)
            self._channel.sendall(REQUEST.pack(what, key, len(body)) + body)
            letter, size = ANSWER.unpack(self._read(ANSWER.size, deadline))
            answer = bytes(self._read(size, deadline))
        except (OSError, EOFError):
            raise ChildEnded(self._exit_reason()) from None
        if letter == b"X":
            raise Unimplemented("JavaScript transforms need an engine that is not installed", hint=how_to_install("transforms"))
        return letter, answer

    def _read(self, size: int, deadline: int) -> bytearray:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            self._channel.settimeout(max(1, deadline - monotonic()) / 1_000_000)
            count = self._channel.recv_into(view)
            if not count:
                raise EOFError
            view = view[count:]
        return buffer

    def _exit_reason(self) -> str:
        """End what is left of the child; returns why it ended."""
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            code = -signal.SIGALRM  # it hangs; killing it here makes no difference to the script
        self.end()
        if code == -signal.SIGALRM:
            return f"took longer than {self._limits.wall:g} s"
        return f"ended the engine's process ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"


def _end(channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
    channel.close()
    process.kill()
    process.wait()
