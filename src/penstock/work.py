"""The documented import path of what `QueueManager` takes and returns. The code is in `penstock.values.queue`."""

from penstock.values.queue import DeadLetter, NackResult, NewMessage, PublishResult, QueueMessage, QueueStats

__all__ = ["DeadLetter", "NackResult", "NewMessage", "PublishResult", "QueueMessage", "QueueStats"]
