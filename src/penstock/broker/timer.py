"""One timer for the whole broker: deadlines, delays and TTLs are processed even if no call is made."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING

from penstock.durations import DAY, SECOND
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.broker")


class Timer:
    """Sleeps until something is due. It holds the broker weakly: dropping one in memory without `close` ends its timer."""

    def __init__(self, broker: Broker) -> None:
        self._clock = broker.clock
        self._bell = threading.Condition(threading.Lock())
        self._is_stopped = False
        self._is_scheduled = False
        self._broker = weakref.ref(broker, lambda _: self._end())
        self._thread = threading.Thread(target=self._run, name="penstock-timer", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        with self._bell:
            self._is_scheduled = True
            self._bell.notify()

    def stop(self) -> None:
        """Stop; returns when the thread has ended."""
        self._end()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _end(self) -> None:
        with self._bell:
            self._is_stopped = True
            self._bell.notify()

    def _run(self) -> None:
        while not self._is_stopped:
            pause = self._work()
            with self._bell:
                if not self._is_scheduled and not self._is_stopped:
                    self._clock.wait(self._bell, pause)
                self._is_scheduled = False

    def _work(self) -> int:
        broker = self._broker()
        if broker is None:
            return 0
        try:
            now = broker.catch_up()
        except PenstockError as error:
            log.error("the timer failed: %s", error)
            return SECOND
        return max(0, min(broker.next_due - now, DAY))
