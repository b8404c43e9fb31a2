"""`max_attempts` counts on when a message was at its queue in between."""

from penstock.router.core.attempts import Tried
from penstock.router.core.message import Item
from tests.unit.router.doubles import item


def tried(message_id: str, attempts: int) -> Item:
    made = item(message_id)
    made.attempts = attempts
    return made


def test_a_message_that_comes_again_goes_on_counting() -> None:
    kept = Tried()
    kept.keep(tried("a", 2))
    kept.keep(tried("b", 0))  # it only waited
    assert len(kept) == 1
    again, new = item("a"), item("b")

    kept.recall([again, new])

    assert (again.attempts, new.attempts, len(kept)) == (2, 0, 0)


def test_there_is_a_limit_and_the_oldest_go_first() -> None:
    kept = Tried(most=2)
    for name in "abc":
        kept.keep(tried(name, 1))
    items = [item(name) for name in "abc"]

    kept.recall(items)

    assert [one.attempts for one in items] == [0, 1, 1]
    kept.recall(items)  # nothing is remembered any more, and nothing is forgotten of what is here
    assert [one.attempts for one in items] == [0, 1, 1]
