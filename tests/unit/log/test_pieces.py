"""Large batches go to a server in pieces that it is willing to unpack."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.log import http


def test_pieces_hold_the_same_rows_and_are_small(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    rows: list[tuple[list[int], list[int] | None]] = [
        ([], [0]),
        ([10] * 5, [5]),
        ([300] * 10, [3, 3, 3, 1]),
        ([5000], [1]),
        ([5000, 5000], [1, 1]),
        ([1] * 50 + [1500] * 4, None),
    ]
    for sizes, wanted in rows:
        with subtests.test(sizes=sizes, wanted=wanted):
            monkeypatch.setattr(http, "BATCH_BYTES", 1000)
            batch = pa.record_batch({"value": pa.array([bytes(size) for size in sizes], pa.binary())})
            pieces = [*http._pieces(batch)]

            assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([batch]))
            assert all(piece.nbytes <= 2000 or piece.num_rows == 1 for piece in pieces)
            if wanted is not None:
                assert [piece.num_rows for piece in pieces] == wanted
