"""The child process that runs transforms: the only module that imports the JavaScript engine.

`Sandbox` starts it by its path, so it imports nothing of Penstock. It reads frames from the socket that is its standard input
and answers each with one frame; it ends when the other side closes. Before it reads the first one it gives up the right to open
files and sockets and to start processes, so a script that breaks out of the engine finds little. Three limits hold a script:

- the engine's own, on processor time and memory: the script is stopped, the process continues;
- an alarm, for loops inside the engine that never look at its limit (`new Array(2 ** 28).join()`): the kernel ends the process;
- the address space of the process.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

REQUEST = struct.Struct("!cII")
"""A request: the action (L load, A apply, U unload), the transform, and the number of bytes that follow."""
ANSWER = struct.Struct("!cI")
"""An answer: the result (the letters of realm.js, K done, T out of time, S code refused, X no engine) and the length of the rest.
"""

STACK_BYTES = 512 * 1024
LINE = re.compile(r"<input>:(\d+)")


class Program:
    """One transform in one context. The context is created when needed, and replaced when a message may have damaged it."""

    def __init__(self, code: str, name: str, cpu: float, memory: int, realm: str) -> None:
        self._code = code
        self._name = name
        self._cpu = cpu
        self._memory = memory
        self._realm = realm
        self._run: Any = None  # the engine has no types

    def check(self) -> tuple[bytes, str]:
        """K if the code can be used; otherwise S and the reason."""
        import quickjs  # noqa: PLC0415  # here, so that its absence is an answer and not a crash

        try:
            self._context().eval(f"{self._code}\n;0")  # alone, so that an extra brace is noticed
        except quickjs.JSException as error:
            text, _, where = str(error).partition("\n")
            line = LINE.search(where)
            return b"S", f"{text} (line {line[1]})" if line else text
        try:
            run = self._fresh()
        except quickjs.JSException:
            return b"S", f"{self._name} is a reserved word, which no function can have as its name"
        try:
            found: str = run(None)
        except quickjs.JSException:
            return b"S", "its top level uses too much time or memory"
        match found[0]:
            case "D":
                return b"K", ""
            case "N":
                return b"S", f"expected a plain function {self._name}(message, metadata), which is {found[2:]}"
            case _:
                return b"S", f"its top level {found[2:] or 'uses too much memory'}"

    def apply(self, message: str) -> tuple[bytes, str]:
        used = self._run is not None
        letter, text = self._once(message)
        if letter == b"O" and used:  # earlier messages may have filled the memory
            letter, text = self._once(message)
        return letter, text

    def _once(self, message: str) -> tuple[bytes, str]:
        import quickjs  # noqa: PLC0415

        if self._run is None:
            self._run = self._fresh()
        try:
            answer: str = self._run(message)
        except quickjs.JSException as error:  # scripts cannot catch these, nor make them: their own are described in realm.js
            self._run = None
            return (b"O", "") if "out of memory" in str(error) else (b"T", "")
        if answer[0] == "O" or answer[1] == "!":
            self._run = None
        return answer[0].encode(), answer[2:]

    def _fresh(self) -> Any:
        context = self._context()
        enter = context.eval(self._realm)
        # On the first line, so that lines are counted as the user counts them; the newline ends a comment on the last line.
        make = context.eval(f'(function(){{{self._code}\n;return typeof {self._name}==="function"?{self._name}:undefined}})')
        run = enter(make)
        context.set_time_limit(self._cpu)
        return run

    def _context(self) -> Any:
        import quickjs  # noqa: PLC0415

        context = quickjs.Context()
        context.set_memory_limit(self._memory)
        context.set_max_stack_size(STACK_BYTES)
        context.set_time_limit(self._cpu)
        return context


def serve(channel: socket.socket, cpu: float, wall: float, memory: int) -> None:
    """Answer frames until the other side closes."""
    realm = Path(__file__).with_name("realm.js").read_text(encoding="utf-8")
    try:
        import quickjs  # noqa: F401, PLC0415
    except ImportError:
        present = False
    else:
        present = True
    _give_up_rights(memory)
    programs: dict[int, Program] = {}
    reader = channel.makefile("rb", 1 << 16)
    while len(head := reader.read(REQUEST.size)) == REQUEST.size:
        what, key, size = REQUEST.unpack(head)
        text = reader.read(size).decode()
        signal.setitimer(signal.ITIMER_REAL, wall)
        letter, said = b"K", ""
        if not present:
            letter = b"X"
        elif what == b"L":
            code, name = json.loads(text)
            program = Program(code, name, cpu, memory, realm)
            letter, said = program.check()
            if letter == b"K":
                programs[key] = program
        elif what == b"U":
            del programs[key]
        else:
            letter, said = programs[key].apply(text)
        signal.setitimer(signal.ITIMER_REAL, 0)
        body = said.encode()
        channel.sendall(ANSWER.pack(letter, len(body)) + body)


def _give_up_rights(memory: int) -> None:
    """From here on no new file, socket or process, no writing to files, and a bound on all memory together."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for what, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_AS, 4 * memory + (512 << 20)),
    ):
        resource.setrlimit(what, (limit, limit))


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):  # the server closed the connection in the middle
        serve(socket.socket(fileno=0), float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
