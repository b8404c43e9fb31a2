"""The log as one caller sees it: the streams of one project that the token covers, by their names in the project."""

from __future__ import annotations

from penstock.access import Action, Principal, Verb
from penstock.broker.log_view import LogNames, LogView, kind_of, not_found
from penstock.errors import InvalidArgument, NotFound, StreamReplaced
from penstock.journal.core.outline import StreamSpan, stream_name
from penstock.journal.journal import ReadableJournal
from penstock.values.projects import Projects, check_project


class Scope:
    """A `LogView` of one project for one caller. Names are the log's: `orders` is a topic, `queue:orders` a work queue.

    Without a project it is that of the token, or the server's default for a token of all projects. The permission is checked
    before the existence of a stream, so that a refusal reveals nothing.
    """

    def __init__(
        self, whole: LogView, projects: Projects, principal: Principal, project: str | None, verb: Action = Verb.READ
    ) -> None:
        self.verb = verb
        """The permission that the caller needs to find a stream."""
        self.principal = principal
        self.project = check_project(project or principal.project or projects.default)
        self.sees_all_events = project is None and principal.may_everywhere(verb)
        """Whether the caller may read the whole event log, with events of other projects and events without a stream."""
        self._projects = projects
        self._whole = whole

    @property
    def journal(self) -> ReadableJournal:
        return self._whole.journal

    def check(self, verb: Action) -> None:
        """PermissionDenied unless the caller has the verb for any name of the project."""
        self.principal.check(verb, self.project)

    def spans(self) -> list[StreamSpan]:
        self.check(self.verb)
        found = [(self.visible_name(*kind_of(span.stream)), span) for span in self._whole.spans()]
        return [_named(span, name) for name, span in found if name is not None]

    def span(self, name: str) -> StreamSpan:
        """The stream of a name; NotFound if it does not exist."""
        return self.span_for(self.verb, name)

    def span_for(self, verb: Action, name: str, number: int | None = None) -> StreamSpan:
        """The stream of a name, if the caller has the verb for it. StreamReplaced if its number is not `number`."""
        kind, plain = self.check_name(verb, name)
        try:
            span = self._whole.span(stream_name(kind, self.stored(plain)))
        except NotFound:
            raise not_found(name) from None  # with the caller's name of it
        if number is not None and number != span.number:
            raise StreamReplaced(name, span.number, number)
        return _named(span, stream_name(kind, plain))

    def check_name(self, verb: Action, name: str) -> tuple[str, str]:
        """(kind, plain name) of a stream if the caller has the verb for it, whether it exists or not."""
        kind, plain = kind_of(name)
        if "/" in plain:
            # In the default project, whose names are stored alone, `a/b` would be the b of project a.
            raise InvalidArgument.of("stream", name, "a name without '/'")
        self.principal.check(verb, self.project, plain, kind=kind)
        return kind, plain

    def may(self, verb: Action, name: str) -> bool:
        """Whether the caller has the verb for a stream of this name."""
        return self.principal.may(verb, self.project, kind_of(name)[1])

    def stored(self, name: str) -> str:
        """The broker's name for a name of the project."""
        return self._projects.scoped(self.project, name)

    def stored_stream(self, verb: Action, name: str) -> str:
        """The name in the broker's log of a stream, if the caller has the verb for it."""
        kind, plain = self.check_name(verb, name)
        return stream_name(kind, self.stored(plain))

    def own(self, stored: str) -> str | None:
        """The project's name for a broker's name; None for a name of another project."""
        project, plain = self._projects.split(stored)
        return plain if project == self.project else None

    def sync(self) -> None:
        """Return when everything that has happened so far can be read."""
        self._whole.sync()

    def event_range(self) -> tuple[int, int]:
        """The offsets of the oldest stored event and of the next new one, in one log for all projects."""
        return self._whole.event_range()

    def names(self) -> LogNames:
        """The names for the numbers in the event log that the caller may know."""
        known = self._whole.names()
        if self.sees_all_events:
            return known
        streams = {}
        for number, name in known.streams.items():
            shown = self.visible_name(*kind_of(name))
            if shown is not None:
                streams[number] = shown
        queues = {number: self._projects.split(name)[1] for number, name in known.queues.items()}
        return LogNames(streams, queues, known.stream_of)

    def visible_name(self, kind: str, stored: str, verb: Action | None = None) -> str | None:
        """The name in this log for a broker's name; None if it is of another project, or the caller may not see it."""
        project, plain = self._projects.split(stored)
        return (
            stream_name(kind, plain)
            if project == self.project and self.principal.may(verb or self.verb, project, plain)
            else None
        )


def _named(span: StreamSpan, name: str) -> StreamSpan:
    return StreamSpan(name, span.number, span.earliest, span.latest, span.published_at)
