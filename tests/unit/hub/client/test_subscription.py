"""A subscription of the hub across connections: what it is resumed with, what is a duplicate, when something may be missing."""

import pytest

from penstock.hub.client.core import subscription as hub_subscription
from penstock.hub.client.core.subscription import Gap, SubscriptionProgress
from penstock.hub.core.messages import Position

LOG, OTHER = "log-1", "hub-1.7"


def at(offset: int, epoch: str = LOG) -> Position:
    return Position(epoch, offset)


def begun(pattern: str = "orders/#", *, position: Position | None = None) -> SubscriptionProgress:
    """A subscription that the hub has confirmed for the first time."""
    progress = SubscriptionProgress(pattern)
    progress.ask()
    assert progress.subscribed(position, recovered=False) is None
    return progress


def resumed(progress: SubscriptionProgress, position: Position | None, *, recovered: bool) -> Gap | None:
    progress.broke()
    progress.ask()
    return progress.subscribed(position, recovered=recovered)


def test_the_first_time_nothing_is_asked_for_and_nothing_is_missing() -> None:
    progress = SubscriptionProgress("orders/#")

    assert progress.ask() is None
    assert progress.subscribed(at(7), recovered=False) is None


def test_what_comes_before_the_hub_has_confirmed_is_for_others() -> None:
    progress = SubscriptionProgress("orders/#")
    progress.ask()

    assert not progress.takes(at(3))
    progress.subscribed(None, recovered=False)
    assert progress.takes(at(3))


def test_it_is_resumed_behind_the_last_message() -> None:
    progress = begun()
    assert progress.takes(at(3))
    assert progress.takes(at(9))

    progress.broke()
    assert progress.ask() == at(9)


def test_before_the_first_message_it_is_resumed_from_where_the_topic_was() -> None:
    progress = begun(position=at(41))

    progress.broke()
    assert progress.ask() == at(41)


def test_what_comes_twice_is_taken_once() -> None:
    progress = begun()

    assert [progress.takes(at(offset)) for offset in (4, 5, 5, 4, 6)] == [True, True, False, False, True]


def test_after_a_whole_recovery_nothing_is_missing() -> None:
    progress = begun()
    progress.takes(at(3))

    assert resumed(progress, at(6), recovered=True) is None
    assert [progress.takes(at(offset)) for offset in (3, 4, 5, 6, 7)] == [False, True, True, True, True]


def test_a_break_in_the_middle_of_a_recovery_begins_again_behind_the_last_that_came() -> None:
    progress = begun()
    progress.takes(at(3))
    resumed(progress, at(6), recovered=True)
    progress.takes(at(4))

    progress.broke()
    assert progress.ask() == at(4)


def test_what_could_not_be_recovered_is_a_gap() -> None:
    progress = begun()
    progress.takes(at(3))

    assert resumed(progress, at(900), recovered=False) == Gap("orders/#", at(3))
    progress.broke()
    assert progress.ask() == at(900)


def test_a_hub_that_says_nothing_of_a_recovery_has_a_gap_even_before_the_first_message() -> None:
    assert resumed(begun(), None, recovered=False) == Gap("orders/#", None)


def test_a_position_that_the_user_gave_is_asked_for_and_its_gap_told() -> None:
    progress = SubscriptionProgress("orders/eu", at(5))

    assert progress.ask() == at(5)
    assert progress.subscribed(at(90), recovered=False) == Gap("orders/eu", at(5))


def test_of_several_histories_one_is_resumed_and_the_others_are_a_gap_once() -> None:
    progress = begun("#", position=None)
    progress.takes(at(3))
    progress.takes(at(0, OTHER))

    assert resumed(progress, None, recovered=True) == Gap("#", at(0, OTHER))
    assert resumed(progress, None, recovered=True) is None


def test_the_history_that_the_hub_named_is_preferred_for_resuming() -> None:
    progress = begun("orders/#", position=at(2))
    progress.takes(at(3))
    progress.takes(at(0, OTHER))

    progress.broke()
    assert progress.ask() == at(3)


def test_one_topic_that_begins_anew_is_resumed_in_its_new_history() -> None:
    progress = begun("orders/eu", position=at(8, "hub-1.1"))
    progress.takes(at(0, "hub-1.2"))

    assert resumed(progress, at(0, "hub-1.2"), recovered=True) is None


def test_a_message_without_a_position_is_always_taken() -> None:
    progress = begun()

    assert progress.takes(None)
    assert progress.takes(None)


def test_however_many_histories_it_sees_it_remembers_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_subscription, "MAX_EPOCHS", 3)
    progress = begun("#")
    for number in range(5):
        progress.takes(at(9, f"hub-1.{number}"))

    assert not progress.takes(at(9, "hub-1.4"))
    assert progress.takes(at(9, "hub-1.0"))  # forgotten: rather twice than not at all


@pytest.mark.parametrize("since", [None, at(5)])
def test_a_gap_says_where_it_is(since: Position | None) -> None:
    text = str(Gap("orders/#", since))

    assert "'orders/#'" in text
    assert ("offset 5 of log-1" in text) is (since is not None)
