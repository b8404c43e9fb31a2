"""A program that redrives, to be killed: `python -m tests.integration.log.redrive_driver URL ID RATE FILE`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from penstock.clock import SystemClock
from penstock.log.http import HttpLog
from penstock.pipeline.core.redrive import Letter, Redrive
from penstock.pipeline.redriving import move


def wait(seconds: float) -> bool:
    """As `Event.wait`, in a process that nobody asks to stop."""
    time.sleep(seconds)
    return False


def main(url: str, name: str, rate: str, file: str) -> None:
    letters = [Letter(**fields) for fields in msgspec.json.decode(Path(file).read_bytes())]
    with HttpLog(url) as log:
        move(log, Redrive(name, rate=float(rate)), letters, SystemClock(), wait, moved=lambda _: print("moved", flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
