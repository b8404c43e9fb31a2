"""The documented import path of the values that `QueueManager` takes and returns. They are defined in `penstock.values.queue`."""

from penstock.values.queue import DeadLetter, NackResult, NewMessage, PublishResult, QueueMessage, QueueStats

__all__ = ["DeadLetter", "NackResult", "NewMessage", "PublishResult", "QueueMessage", "QueueStats"]
