"""Walks a page as a reader would: saves its programs, types its commands into a shell, starts and stops servers and workers.

- a Python block that begins with `# name.py` is saved under that name;
- in a `console` block, each line after `$ ` is typed, with the indented lines that follow it, and what it prints must be what the
  page shows; a line `…` stands for anything;
- `penstock serve`, `penstock worker`, `penstock router run`, `penstock hub listen` and `uvicorn` run beside the shell, each as in
  a terminal of its own, until a block begins with `^C`, which is for the one that was started last; what listens has a real
  terminal, where it prints for people;
- lines of a `console` block that no command stands before are what that one prints next.

What differs from run to run (ids, instants, secrets, durations) is compared by its shape. The ports of the page are replaced by
free ones, so that a server of somebody else does not matter.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

from penstock.clock import monotonic
from penstock.durations import SECOND
from tests.docs.pages import Block, blocks
from tests.ports import free_port

PATIENCE_SECONDS = 100
PORTS = ("8000", "8085", "8086", "8087")
SETTINGS = {"PENSTOCK_PORT": "8085", "PENSTOCK_GRPC_PORT": "8086", "PENSTOCK_NATIVE_PORT": "8087"}
BESIDE = re.compile(r"(?:env (?:\w+=\S+ )+)?(?:penstock (?:serve|worker|router run|hub listen)|uvicorn)\b")
IN_TERMINAL = re.compile(r"penstock hub listen\b")
INTERRUPTED = 130
ANYTHING = "…"
INDENT = "    "

_END = "=== end of that command: "
_SHAPES = (
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
    (r'"epoch": ?"[^"]+"', '"epoch":"EPOCH"'),
    (r"\b1[6-9]\d{11}\b", "MILLISECONDS SINCE 1970"),
    (r"\bpk_[0-9a-f]{12}_[\w-]+", "SECRET"),
    (r"\b[0-9a-f]{32}\b", "POINTER-ID"),
    (r"\b[0-9a-f]{30}\b", "MESSAGE-ID"),
    (r"\b[0-9a-f]{12}\b", "TOKEN-ID"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)", "INSTANT"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "MINUTE"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC", "MOMENT"),
    (r"^\d\d:\d\d:\d\d(?:\.\d{3})? ", "TIME "),
    (r"\bprocess \[\d+\]", "process [PID]"),
    (r"@\(penstock/[0-9a-f]{16}\)", "@(penstock/MADE-UP)"),
    (r"--since \S+:\d+", "--since POSITION"),
    (r"\+\d+(?:\.\d+)? (?:µs|ms|s)\b", "AFTER"),
    (r"\b(messages?) in \d+(?:\.\d+)? (?:ms|s)\b", "\\1 in SPAN"),
    (r"\b\d+\.\d\d? ?s\b", "SECONDS"),
    (r"\bup \d+ s\b", "UPTIME"),
    (r"\b127\.0\.0\.1:[3-6]\d{4}\b(?!/)", "FREE-PORT"),
    (r"\b(OPEN|CLOSED|HALF_OPEN)( +\d+){3}", "BREAKER \\1"),
    (r"^(\w+ +\d+/\d+ +\d+/\d+ +\d+) +\d+ +", "\\1 REPEATED "),
    (r"\b\d+(?:\.\d+)?e?-?\d* ms\b", "MILLISECONDS"),
    (r'"ackId":"[^"]+"', '"ackId":"ACK-ID"'),
)


class Step(NamedTuple):
    """One command with the output that the page shows, or ^C with what the server or worker says then.

    Without a command, it is what that one says by itself.
    """

    line: int
    command: str
    shown: list[str]


def steps(block: Block) -> Iterator[Step]:
    """The commands of a console block."""
    lines = block.text.splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith(("$ ", "^C"))]
    if first := lines[: starts[0] if starts else len(lines)]:
        yield Step(block.line, "", first)
    for start, end in pairwise([*starts, len(lines)]):
        if lines[start].startswith("^C"):
            yield Step(block.line + start, "^C", [lines[start].removeprefix("^C"), *lines[start + 1 : end]])
            continue
        last = start
        while last + 1 < end and lines[last + 1].startswith(INDENT):
            last += 1
        yield Step(block.line + start, "\n".join([lines[start][2:], *lines[start + 1 : last + 1]]), lines[last + 1 : end])


def shape(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, word in _SHAPES:
        line = re.sub(pattern, word, line)
    return re.sub(r" +", " ", line.rstrip())


def agrees(shown: list[str], got: list[str]) -> bool:
    """Whether the output is what the page shows."""
    pattern = "".join(r"(?:.*\n)*" if line.strip() == ANYTHING else f"{re.escape(shape(line))}\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{shape(line)}\n" for line in got)) is not None


class Walk:
    """A reader with a shell and a directory. Use it as a context manager: nothing runs on afterwards."""

    def __init__(self, directory: Path, *, ports: Sequence[str] = PORTS, settings: Mapping[str, str] = SETTINGS) -> None:
        self.directory = directory
        # The free ones in the order of the page's: what is sorted by its address stays sorted.
        self._ports = dict(zip(sorted(ports, key=int), map(str, sorted({free_port() for _ in range(len(ports))})), strict=True))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PUBSUB_"))}
        self._environment = environment | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}",
            "PYTHONUNBUFFERED": "1",
            "NO_COLOR": "1",
            "XDG_CONFIG_HOME": str(directory / ".config"),
            **{name: self._ports.get(value) or self._moved(value) for name, value in settings.items()},
        }
        self._beside: list[subprocess.Popen[bytes]] = []
        self._shell = self._run(["bash", "--noprofile", "--norc"])
        self._type("exec 2>&1")

    def follow(self, text: str) -> None:
        """Do what the page says, and compare."""
        for block in blocks(text):
            if not block.is_run:
                continue
            if block.file is not None:
                (self.directory / block.file).write_text(self._moved(block.text), encoding="utf-8")
            elif block.language == "console":
                for step in steps(block):
                    got = self._do(step)
                    shown, printed = "\n".join(step.shown), "\n".join(got)
                    where = f"line {step.line}: $ {step.command}"
                    assert agrees(step.shown, got), f"{where}\nthe page shows:\n{shown}\nit was:\n{printed}"

    def _do(self, step: Step) -> list[str]:
        if step.command == "^C":
            return self._stop()
        if not step.command:
            assert self._beside, "nothing runs that could print this"
            return self._read(self._beside[-1], lambda lines: len(lines) >= len(step.shown))
        command = self._moved(step.command)
        return self._start(command, len(step.shown)) if BESIDE.match(command) else self._type(command)

    def _start(self, command: str, count: int) -> list[str]:
        is_terminal = IN_TERMINAL.match(command) is not None
        self._beside.append(self._run(["bash", "-c", f"exec {command} 2>&1"], is_terminal=is_terminal))
        return self._read(self._beside[-1], lambda lines: len(lines) >= count)

    def _stop(self) -> list[str]:
        assert self._beside, "neither a server nor a worker runs"
        self._beside[-1].send_signal(signal.SIGINT)
        lines = self._read(self._beside[-1], lambda _: False)
        process = self._beside.pop()
        expected = INTERRUPTED if "penstock hub listen" in str(process.args) else 0
        assert _end(process) == expected, "what is stopped ends well"
        return lines

    def _type(self, command: str) -> list[str]:
        assert self._shell.stdin is not None, "it is piped"
        self._shell.stdin.write(f"{command}\ncode=$?; echo; echo '{_END}'$code\n".encode())
        self._shell.stdin.flush()
        *lines, end = self._read(self._shell, lambda lines: lines[-1].startswith(_END))
        assert end == f"{_END}0", f"$ {command}\nfailed:\n" + "\n".join(lines)
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _read(self, process: subprocess.Popen[bytes], is_all: Callable[[list[str]], bool]) -> list[str]:
        assert process.stdout is not None, "it is piped"
        deadline = monotonic() + PATIENCE_SECONDS * SECOND
        text = b""
        while monotonic() < deadline:
            if not select.select([process.stdout], [], [], 0.1)[0]:
                continue
            try:
                piece = os.read(process.stdout.fileno(), 65_536)
            except OSError:  # so a terminal says that nobody is at its other end any more
                piece = b""
            text += piece
            lines = self._back(text.decode()).splitlines()
            if not piece or (text.endswith(b"\n") and is_all(lines)):
                return lines
        raise AssertionError(f"no end in {PATIENCE_SECONDS} s; so far:\n{text.decode()}")

    def _run(self, command: list[str], *, is_terminal: bool = False) -> subprocess.Popen[bytes]:
        ours, theirs = os.openpty() if is_terminal else (None, subprocess.PIPE)
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=theirs,
            bufsize=0,
            start_new_session=True,
        )
        if ours is not None:
            os.close(theirs)
            process.stdout = os.fdopen(ours, "rb", buffering=0)
        return process

    def _moved(self, text: str) -> str:
        for port, free in self._ports.items():
            text = re.sub(rf"(?<=[: ]){port}\b", free, text)
        return text

    def _back(self, text: str) -> str:
        for port, free in self._ports.items():
            text = text.replace(f":{free}", f":{port}")
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self._beside, self._shell):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Wait for it, and leave nothing open."""
    code = process.wait(PATIENCE_SECONDS)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    return code
