"""What a task makes of errors: only data that is gone is a loss, which may be skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.errors import (
    ArrowUnavailable,
    DataLoss,
    FailedPrecondition,
    NotFound,
    OutOfRange,
    PenstockError,
    PermissionDenied,
    StreamReplaced,
)
from penstock.pipeline.core.planning import OffsetRange
from penstock.pipeline.scan import surviving


def read_by(piece: OffsetRange, *, fails: PenstockError, is_strict: bool) -> list[pa.RecordBatch]:
    def read(start: int, stop: int) -> Iterator[pa.RecordBatch]:
        raise fails

    return list(surviving(piece, read, is_strict=is_strict))


PIECE = OffsetRange("orders", 3, 0, 10)


def test_data_that_is_gone_is_a_loss(subtests: pytest.Subtests) -> None:
    for fails in (StreamReplaced("orders", 4, 3), NotFound("orders"), OutOfRange("orders", 0, 10, 10)):
        with subtests.test(reason=fails.reason):
            with pytest.raises(DataLoss):
                read_by(PIECE, fails=fails, is_strict=True)
            assert read_by(PIECE, fails=fails, is_strict=False) == []


def test_a_server_that_cannot_answer_is_never_a_loss(subtests: pytest.Subtests) -> None:
    """A server without pyarrow, for example: skipping would pass over every row there is."""
    for fails in (ArrowUnavailable("no pyarrow"), FailedPrecondition("not now"), PermissionDenied("consume", "orders")):
        for is_strict in (True, False):
            with subtests.test(reason=fails.reason, is_strict=is_strict), pytest.raises(type(fails)):
                read_by(PIECE, fails=fails, is_strict=is_strict)
