"""How fast a client of the hub sends once it was told that it is too fast."""

from penstock.durations import SECOND
from penstock.hub.client.core.reconnecting import FORGOTTEN, Pace

MILLISECOND = SECOND // 1_000


def test_nobody_waits_before_anybody_was_refused() -> None:
    pace = Pace()

    assert [pace.turn(0) for _ in range(1_000)] == [0] * 1_000


def test_those_that_were_refused_together_come_back_one_after_another() -> None:
    pace = Pace()
    for _ in range(3):
        pace.refused(now=0, retry_after=5 * MILLISECOND, gap=MILLISECOND)

    assert [pace.turn(0) for _ in range(3)] == [5 * MILLISECOND, 6 * MILLISECOND, 7 * MILLISECOND]


def test_a_refusal_on_the_way_moves_nobody_forward() -> None:
    pace = Pace()
    pace.refused(now=0, retry_after=0, gap=10 * MILLISECOND)
    pace.turn(0)
    pace.turn(0)

    pace.refused(now=MILLISECOND, retry_after=MILLISECOND, gap=10 * MILLISECOND)

    assert pace.turn(MILLISECOND) == 19 * MILLISECOND


def test_a_client_that_had_nothing_to_say_for_a_while_is_free_again() -> None:
    pace = Pace()
    pace.refused(now=0, retry_after=0, gap=MILLISECOND)
    pace.turn(0)

    assert [pace.turn(MILLISECOND + FORGOTTEN + 1) for _ in range(2)] == [0, 0]
