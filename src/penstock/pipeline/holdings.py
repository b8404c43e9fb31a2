"""What a batch read can choose from: the log, the lake, or both as if they were one, split where the archive ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.errors import NotFound
from penstock.log.log import Log, StreamSpan
from penstock.pipeline.core.offsets import Loss, overtaken
from penstock.pipeline.core.options import LOG, SourceOptions
from penstock.pipeline.core.planning import Piece
from penstock.pipeline.follower import find


class Holdings:
    """Everything that the options let a reader see, as of one moment. Without a log: `storage` is lake."""

    def __init__(self, options: SourceOptions, log: Log | None) -> None:
        self._options = options
        self._log = log
        self._live = {} if log is None else find(log, options)
        lake = None if options.storage == LOG else options.lake
        self._archived = {} if lake is None else _archived(options, lake, None if log is None else self._live)
        self.spans = {stream: self._joined(stream) for stream in self._live | self._archived}

    def offsets_at(self, times: Mapping[str, int]) -> dict[str, int]:
        """For every stream the first offset at or after an instant, wherever it is; its end when there is none."""
        found: dict[str, int] = {}
        old = {stream: at for stream, at in times.items() if stream in self._archived}
        if old:
            from penstock.pipeline.lake import reading  # noqa: PLC0415  # most reads have nothing to do with a lake

            assert self._options.lake is not None, "something is archived there"
            found = reading.offsets_at(self._options.lake, self._options.view, old)
        if self._log is not None:
            new = {stream: at for stream, at in times.items() if stream not in found or found[stream] >= self._archive(stream)[1]}
            found |= self._log.offsets_at(new) if new else {}
        return found

    def split(self, pieces: Sequence[Piece]) -> tuple[list[Piece], list[Piece], list[Loss]]:
        """Which parts of pieces are read from the lake, which from the log, and which are in neither."""
        archived: list[Piece] = []
        live: list[Piece] = []
        losses: list[Loss] = []
        for piece in pieces:
            first, last = self._archive(piece.stream)
            archived.append(piece._replace(start=max(piece.start, first), stop=min(piece.stop, last)))
            for part in (piece._replace(stop=min(piece.stop, first)), piece._replace(start=max(piece.start, last))):
                if part.rows > 0:
                    earliest = min(max(part.start, self._live[part.stream].earliest), part.stop)
                    losses += [overtaken(part.stream, part.start, earliest)] if part.start < earliest else []
                    live.append(part._replace(start=earliest))
        return [piece for piece in archived if piece.rows > 0], [piece for piece in live if piece.rows > 0], losses

    def _archive(self, stream: str) -> tuple[int, int]:
        """The offsets of a stream that are in the lake, the second excluded."""
        span = self._archived.get(stream)
        return (0, 0) if span is None else (span.earliest, span.latest)

    def _joined(self, stream: str) -> StreamSpan:
        live, old = self._live.get(stream), self._archived.get(stream)
        if live is None or old is None:
            found = live or old
            assert found is not None, "a name of one of the two"
            return found
        return msgspec.structs.replace(live, earliest=min(old.earliest, live.earliest), latest=max(old.latest, live.latest))


def _archived(options: SourceOptions, lake: str, live: Mapping[str, StreamSpan] | None) -> dict[str, StreamSpan]:
    """What the lake holds of the streams that are read. Of a stream that was made again since, the archive is of another one."""
    from penstock.pipeline.lake import reading  # noqa: PLC0415  # most reads have nothing to do with a lake

    held = {span.stream: span for span in reading.archived(lake, options.view) if options.matches(span.stream)}
    if live is not None:
        return {stream: span for stream, span in held.items() if stream in live and live[stream].number == span.number}
    missing = [stream for stream in options.streams or () if options.is_messages and stream not in held]
    if missing:
        raise NotFound(f"{missing[0]} in the lake {lake}")
    return held
