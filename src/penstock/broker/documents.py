"""Documents: small named values that a broker stores beside its streams, for other state that must survive a restart."""

from __future__ import annotations

import threading

from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.core.stream import Stream
from penstock.broker.writer import Ticket
from penstock.errors import PenstockError, TopicNotFound
from penstock.journal.core.events import DocumentKept
from penstock.values.descriptions import StreamDescription
from penstock.values.message import Batch


class PendingPublish:
    """A publish that is being written."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: PenstockError | None = None

    def finish(self, ticket: Ticket) -> None:
        """Called by the writer."""
        self._error = ticket.error
        self._event.set()

    def wait(self) -> None:
        """Return when it is on disk, or raise the error."""
        self._event.wait()
        if self._error is not None:
            raise self._error


class Documents:
    """The documents of a broker whose names start with a prefix, which callers omit. Thread-safe."""

    def __init__(self, broker: Broker, prefix: str) -> None:
        self._broker = broker
        self._prefix = prefix

    def get(self, name: str) -> bytes | None:
        """Return a document, or None. Never waits for the disk."""
        with self._broker.lock:
            return self._broker.catalog.documents.get(self._prefix + name)

    def all(self, start: str = "") -> dict[str, bytes]:
        """Return the documents whose names begin with `start`, by name. It examines all documents of the broker."""
        with self._broker.lock:
            documents = [*self._broker.catalog.documents.items()]  # not under the lock: filtering takes too long
        skipped, beginning = len(self._prefix), self._prefix + start
        return {name[skipped:]: body for name, body in documents if name.startswith(beginning)}

    def keep(self, name: str, body: bytes) -> None:
        """Store a document, replacing an earlier one; it is on disk on return."""
        self._broker.change(lambda catalog, now: catalog.keep_document(self._prefix + name, body, now))

    def drop(self, name: str) -> None:
        """Delete a document, if it exists; this is on disk on return."""
        self._broker.change(lambda catalog, now: catalog.drop_document(self._prefix + name, now))

    def publish(self, stream: StreamDescription, batch: Batch, name: str, body: bytes) -> PendingPublish | None:
        """Publish messages and store a document in one commit, so that a crash leaves both or neither.

        Returns an object to wait for; None for a broker in memory. TopicNotFound, also from the wait, if the stream was deleted,
        even if it was recreated.
        """
        broker = self._broker

        def find(catalog: Catalog, _: str) -> Stream:
            found = catalog.streams.get(stream.number)
            if found is None:
                raise TopicNotFound(stream.name)
            return found

        if not broker.is_durable:
            broker.publish(find, stream.name, batch, broker.clock.now())
            self.keep(name, body)
            return None
        pending = PendingPublish()
        broker.submit(find, stream.name, batch, pending.finish, DocumentKept(self._prefix + name, broker.clock.now(), body))
        return pending
