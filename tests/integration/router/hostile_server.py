"""Hostile targets in a process of their own: what they need of memory and time is not the client's.

It says where they are (a line of JSON), and on each line that it gets how many requests and open connections each has.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from penstock.testing.hostile import HOSTILE, authority
from penstock.testing.target import Target
from tests.integration.router.hostile_http2 import HOSTILE_HTTP2

EVERY = {**HOSTILE, **HOSTILE_HTTP2}


@dataclass(frozen=True)
class Seen:
    """What a target has seen."""

    requests: int
    connections: int


class HostileServer:
    """The process. Use it as a context manager."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = json.dumps([*names])
        self._process: subprocess.Popen[str]
        self.urls: dict[str, str] = {}
        self.authority = ""
        """Its certificate."""

    def seen(self) -> dict[str, Seen]:
        """What each target has seen so far."""
        assert self._process.stdin is not None, "it is piped"
        self._process.stdin.write("seen\n")
        self._process.stdin.flush()
        return {name: Seen(*found) for name, found in self._read().items()}

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "it is piped"
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.integration.router.hostile_server", self._names]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        start = self._read()
        self.urls, self.authority = start["urls"], start["authority"]
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes its input, which ends it, and waits
            assert self._process.stdin is not None, "it is piped"
            self._process.stdin.close()


def main() -> None:
    with contextlib.ExitStack() as stack:
        targets = {name: stack.enter_context(Target(EVERY[name])) for name in json.loads(sys.argv[1])}
        start = {"urls": {name: target.url for name, target in targets.items()}, "authority": authority().pem.decode()}
        print(json.dumps(start), flush=True)
        for _ in sys.stdin:
            seen = {name: (len(target.requests), target.connections) for name, target in targets.items()}
            print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
