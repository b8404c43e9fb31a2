"""The crash of the proof: a process that publishes, killed in the middle, and what is found in its data directory afterwards.

Run as `python -m proof.crash DIRECTORY ROUND` it is the child: several threads publish, and every id is printed once its
publish has returned, that is, once it is confirmed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

from penstock import Message, MessageQueue, SubscriptionOptions
from penstock.errors import AlreadyExists, DataDirectoryInUse

TOPIC = "readings"
SUBSCRIPTION = "archive"
PUBLISHERS = 4
_MOST = 50_000  # a child whose parent vanished ends by itself
_PATIENCE_SECONDS = 120


class Crash:
    """What one killed process had as confirmed."""

    def __init__(self, confirmed: list[str], is_killed: bool, is_second_refused: bool) -> None:
        self.confirmed = confirmed
        self.is_killed = is_killed
        self.is_second_refused = is_second_refused


class Recovery:
    """What the data directory held after the crashes."""

    def __init__(self, ids: list[str], by_key: dict[str, list[int]]) -> None:
        self.ids = ids
        self.by_key = by_key

    @property
    def is_in_order(self) -> bool:
        """Whether every publisher's messages came back as 0, 1, 2, … without a gap or a repeat."""
        return all(numbers == list(range(len(numbers))) for numbers in self.by_key.values())


def crash(directory: Path, number: int, after: int) -> Crash:
    """Start a child that publishes, and `kill -9` it when it has reported `after` messages."""
    command = [sys.executable, "-m", "proof.crash", str(directory), str(number)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)  # Ctrl-C is for the parent
    watchdog = threading.Timer(_PATIENCE_SECONDS, child.kill)
    watchdog.start()
    try:
        assert child.stdout is not None, "the child has a pipe"
        confirmed = []
        is_refused = False
        for line in child.stdout:
            confirmed.append(line.strip())
            if len(confirmed) == after // 2:
                is_refused = _is_refused(directory)
            if len(confirmed) == after:
                child.send_signal(signal.SIGKILL)
        # What was in the pipe when the child died was confirmed as well; the loop above has read it to its end.
        return Crash(confirmed, child.wait() == -signal.SIGKILL and watchdog.is_alive(), is_refused)
    finally:
        watchdog.cancel()
        child.kill()
        child.wait()


def recover(directory: Path) -> Recovery:
    """Open the directory that the dead left, and consume everything in it."""
    ids: list[str] = []
    by_key: dict[str, list[int]] = defaultdict(list)
    with MessageQueue(data_dir=directory) as queue:
        while batch := queue.pull(SUBSCRIPTION, max_messages=1_000):
            for message in batch:
                ids.append(message.id)
                by_key[message.ordering_key or ""].append(int(message.data))
            queue.ack_many([message.ack_id for message in batch])
    return Recovery(ids, by_key)


def _is_refused(directory: Path) -> bool:
    try:
        MessageQueue(data_dir=directory).close()
    except DataDirectoryInUse:
        return True
    return False


def publish_until_killed(directory: str, number: str) -> None:
    """The child."""
    queue = MessageQueue(data_dir=directory)
    try:
        queue.register_topic(TOPIC)
        queue.register_subscription(SUBSCRIPTION, TOPIC, SubscriptionOptions(message_ordering=True))
    except AlreadyExists:
        pass  # an earlier child made them, and they survived it
    printing = threading.Lock()

    def publish(key: str) -> None:
        for sequence in range(_MOST):
            [message_id] = queue.publish(TOPIC, [Message(data=b"%d" % sequence, ordering_key=key)])
            with printing:
                sys.stdout.write(f"{message_id}\n")
                sys.stdout.flush()

    threads = [threading.Thread(target=publish, args=(f"process {number}, thread {one}",)) for one in range(PUBLISHERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    publish_until_killed(sys.argv[1], sys.argv[2])
