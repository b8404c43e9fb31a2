"""Which streams there are, and what of them can be read."""

from __future__ import annotations

from penstock.broker.core.span import StreamSpan
from penstock.broker.log import select
from penstock.doors.log.scope import Scope
from penstock.errors import InvalidArgument
from penstock.log.log import EventSpan, Spans


def spans(scope: Scope, names: list[str], pattern: str | None) -> Spans:
    """The named streams, those of a pattern, or all that the caller may read."""
    if names and pattern is not None:
        raise InvalidArgument("name and pattern are both given, wanted at most one of them")
    streams = select(scope, names or None)
    if pattern is not None:
        streams = _fitting(pattern, streams)
    return Spans(streams, EventSpan(*scope.event_range()))


def _fitting(pattern: str, streams: list[StreamSpan]) -> list[StreamSpan]:
    """Those whose whole name fits. RE2's time grows with the text alone, whatever a stranger's pattern looks like."""
    import pyarrow as pa  # noqa: PLC0415  # an extra
    import pyarrow.compute as pc  # noqa: PLC0415

    try:
        fits = pc.match_substring_regex(pa.array([span.stream for span in streams], pa.string()), rf"\A(?:{pattern})\z")
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        problem = str(error).partition(": ")[2] or "it is not text"
        raise InvalidArgument.of(
            "pattern", pattern, f"a regular expression: {problem}", hint="RE2's: without look-around and back-references"
        ) from None
    return [span for span, is_one in zip(streams, fits.to_pylist(), strict=True) if is_one]
