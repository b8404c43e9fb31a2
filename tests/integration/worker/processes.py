"""`penstock worker` as a process of its own, that talks to the test through its output and can be killed."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

PATIENCE = 60.0

APP = """
import asyncio, os, pathlib, signal, time
from penstock.worker import Worker

worker = Worker()

def say(*words):
    print(*words, flush=True)

@worker.task("q")
async def work(name):
    say("began", name)
    await asyncio.sleep(600 if "HANG" in os.environ else 0)
    say("ended", name)

@worker.task("q")
def dies(name):
    os.kill(os.getpid(), signal.SIGKILL)

@worker.task("q")
def until_there_is(path):
    say("began", path)
    while not pathlib.Path(path).exists():
        time.sleep(0.01)
    say("ended", path)
"""


class WorkerProcess:
    """A worker on the module `app` of a folder."""

    def __init__(self, folder: Path, server: str, *arguments: str, **environment: str) -> None:
        (folder / "app.py").write_text(APP)
        command = [sys.executable, "-m", "penstock", "worker", "app:worker", "--server", server, *arguments]
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environment
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, words: str) -> str:
        """The next line that contains these words; AssertionError when the worker ends without one."""
        while True:
            line = self._lines.get(timeout=PATIENCE)
            assert line is not None, f"it ended with {self.wait()} and did not say {words!r}: {self.said}"
            if words in line:
                return line

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code, when it has ended."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        assert self.process.stdout is not None, "it is piped"
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None, "it is piped"
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            self._lines.put(line.rstrip())
        self._lines.put(None)
