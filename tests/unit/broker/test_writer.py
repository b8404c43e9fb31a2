"""The writer's thread when something fails that should not: nobody waits for ever, and no payload reaches a log or a client."""

import logging
import threading

import pytest

from penstock.broker.writer import Ticket, Writer
from penstock.errors import Unavailable

SECRET = "a-payload-that-must-not-be-seen"


def test_an_unknown_error_is_told_by_its_kind_and_place(caplog: pytest.LogCaptureFixture) -> None:
    tidied = threading.Event()

    def broken_commit(tickets: list[Ticket]) -> bool:
        raise RuntimeError(f"{SECRET} {tickets}")

    def broken_idle() -> None:
        tidied.set()
        raise KeyError(SECRET)

    with caplog.at_level(logging.DEBUG):
        writer = Writer(broken_commit, broken_idle, "writer under test")
        with pytest.raises(Unavailable) as caught:
            writer.sync()
        assert tidied.wait(10)
        writer.stop()

    assert str(caught.value) == "the writer failed with RuntimeError"
    for told in ("failed with RuntimeError at", "in broken_commit", "clean up: KeyError at", "in broken_idle"):
        assert told in caplog.text
    assert SECRET not in caplog.text
