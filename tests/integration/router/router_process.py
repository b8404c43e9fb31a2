"""`penstock router run`, or `penstock serve --router`, as a process of its own: what a user runs, and what can be killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.integration.router.short_times import VARIABLE

START_SECONDS = 60
LOOK_SECONDS = 0.02

RUN, SERVE = ("router", "run"), ("serve",)


def until(is_so: Callable[[], object], seconds: float, what: str) -> None:
    """Return when it is so; AssertionError after that time. For what happens in another process: nothing there can be awaited."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(LOOK_SECONDS)


class RouterProcess:
    """One router. `times` are shorter ones, see `short_times`. Use it as a context manager, or start it yourself.

    Its configuration is a file in `folder`, unless the flags name one; its data are there as well.
    """

    def __init__(
        self,
        folder: Path,
        config: object = None,
        *flags: str,
        verb: Sequence[str] = RUN,
        environment: Mapping[str, str] | None = None,
        times: Mapping[str, float] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.data_dir = folder / "data"
        place: list[str] = []
        if config is not None:
            place = ["--config" if verb == RUN else "--router", str(self._write(config))]
        program = ["-m", "penstock"] if times is None else [str(Path(__file__).with_name("short_times.py"))]
        own = ["--data-dir", str(self.data_dir), "--port", "0", "--native-port", "0"]
        if verb == SERVE:
            own += ["--grpc-port", "0"]
        allow = "--allow" if verb == RUN else "--router-allow"
        self._command = [sys.executable, *program, *verb, *place, *own, allow, "127.0.0.1", *flags]
        self._environment = {**os.environ, **(environment or {}), VARIABLE: json.dumps(times or {})}
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: list[str] = []
        self._ready = threading.Event()
        self.port = 0

    @property
    def url(self) -> str:
        """Where its monitoring API is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What it has logged so far, in all its lives."""
        return "".join(self._lines)

    @property
    def process(self) -> subprocess.Popen[str]:
        """The process."""
        assert self._process is not None, "start it first"
        return self._process

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        """Return when it serves."""
        self.launch()
        return self.ready()

    def ready(self) -> Self:
        """Return when it serves, after `launch`."""
        assert self._ready.wait(START_SECONDS), f"the router did not start:\n{self.log}"
        assert self.port, f"the router did not start:\n{self.log}"
        return self

    def launch(self) -> None:
        """Return at once."""
        self._ready.clear()
        self.port = 0
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True, env=self._environment, cwd=self.folder)
        # Somebody must go on reading, or a talkative router would stop at a full pipe.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def kill(self) -> None:
        """Kill -9: no goodbye, no flush."""
        self.process.send_signal(signal.SIGKILL)
        self.wait()

    def stop(self, seconds: float = START_SECONDS) -> int:
        """SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = START_SECONDS) -> int:
        """The exit code, when it has ended."""
        code = self.process.wait(seconds)
        if self._reader is not None:
            self._reader.join()
        return code

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()

    def _read(self) -> None:
        assert self.process.stderr is not None, "it is piped"
        with self.process.stderr as lines:
            for line in lines:
                self._lines.append(line)
                if found := re.search(r"HTTP and WebSocket +https?://[^ ]*:(\d+)", line):
                    self.port = int(found[1])
                if "messages are kept" in line:
                    self._ready.set()
        self._ready.set()

    def _write(self, config: object) -> Path:
        file = self.folder / "router.json"
        file.write_text(json.dumps(config))
        return file

    # ── the monitoring API ───────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, path: str) -> Any:
        """What a path answers, whatever its status."""
        return self._call(urllib.request.Request(f"{self.url}{path}"))

    def post(self, path: str) -> Any:
        """The same for a POST without a body."""
        return self._call(urllib.request.Request(f"{self.url}{path}", method="POST"))

    def _call(self, request: urllib.request.Request) -> Any:
        opener = urllib.request.build_opener(_AnyStatus)
        with opener.open(request, timeout=START_SECONDS) as answer:
            body = answer.read()
        try:
            return json.loads(body)
        except ValueError:
            return body.decode()

    def configure(self, config: object) -> None:
        """Give it another configuration, and return when that is taken on."""
        self._write(config)
        answer = self.post("/config/reload")
        assert answer == {"status": "success", "changed": True}, answer

    def in_flight(self) -> list[Any]:
        """The messages in the router."""
        found: list[Any] = self.get("/monitoring/in-flight-messages?limit=1000")
        return found

    def until_empty(self, seconds: float = 60) -> None:
        """Return when no message is in the router."""
        until(lambda: not self.in_flight(), seconds, "the router is empty")


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    def http_response(self, request: urllib.request.Request, response: Any) -> Any:
        return response
