"""MessageStream: streaming pull (specification 004)."""

from __future__ import annotations

from penstock.client.options import SubscriberOptions
from penstock.client.session import Session, Source
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError


class MessageStream:
    """A continuous delivery of messages. Belongs to one event loop; all but `stop` returns at once.

    It may be started, stopped and started again: each time it is another consumer. What it was told by `pause` and `set_options`
    it remembers.
    """

    def __init__(self, subscription: Source, options: SubscriberOptions | None = None) -> None:
        self._source = subscription
        self._options = options or SubscriberOptions()
        self._is_paused = False
        self._session: Session | None = None
        self.failure: PenstockError | None = None
        """The error that ended it; None while it goes on, or when it was stopped."""

    @property
    def options(self) -> SubscriberOptions:
        """What it lives by; `set_options` changes it."""
        return self._options

    @property
    def is_open(self) -> bool:
        """Whether it was started and has not ended."""
        return self._session is not None

    @property
    def is_paused(self) -> bool:
        """Whether nothing is delivered until `resume`."""
        return self._is_paused

    @property
    def in_flight(self) -> int:
        """How many messages it holds."""
        return self._session.in_flight if self._session is not None else 0

    def start(self) -> None:
        """Begin to deliver. Does nothing when it has begun; one that has ended may begin again."""
        if self._session is None:
            self.failure = None
            self._session = Session(self._source, self._options, is_paused=self._is_paused, on_end=self._ended)
        elif self._session.is_closing:
            raise FailedPrecondition(
                f"the stream of {self._source.name!r} is closing", hint="await close(), or wait for 'close', and open it then"
            )

    def begin_stop(self) -> None:
        """Take no more, and do not wait for the end; `stop` does."""
        if self._session is not None:
            self._session.close()

    async def stop(self) -> None:
        """Take no more, and return when what is out is settled, or was given back, as `close_behavior` says.

        Who stops waiting for it, by a timeout of their own, does not end the closing.
        """
        if self._session is not None:
            await self._session.stop()

    def pause(self) -> None:
        """Deliver nothing more until `resume`; what is out goes on, and so do its leases."""
        self._is_paused = True
        if self._session is not None:
            self._session.pause()

    def resume(self) -> None:
        """Deliver again."""
        self._is_paused = False
        if self._session is not None:
            self._session.resume()

    def set_options(self, options: SubscriberOptions) -> None:
        """Live by other options from now on. Leases that are out keep their deadline; `message_ordering` stays as it was."""
        if not isinstance(options, SubscriberOptions):
            raise InvalidArgument.of("options", options, "a SubscriberOptions")
        if self._session is not None and options.message_ordering != self._options.message_ordering:
            raise FailedPrecondition(
                "message_ordering of an open stream cannot change", hint="close it, set the option, and open it again"
            )
        self._options = options
        if self._session is not None:
            self._session.set_options(options)

    def _ended(self, failure: PenstockError | None) -> None:
        self._session = None
        self.failure = failure
