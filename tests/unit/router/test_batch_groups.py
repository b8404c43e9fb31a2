"""Specification 001, "FIFO Enforcement (Batch+Group)", its second level and its clean-up."""

from penstock.router.core.batch_groups import BatchGroups


def test_fifo_enforcement_level_2_a_failure_marks_its_batch_and_group_alone() -> None:
    groups = BatchGroups()
    for batch, group in ((1, "a"), (1, "a"), (1, "b"), (2, "a")):
        groups.add(batch, group)

    groups.fail(1, "a")

    assert groups.has_failed(1, "a")
    assert not groups.has_failed(1, "b")
    assert not groups.has_failed(2, "a")


def test_fifo_enforcement_cleanup_with_the_last_message_the_batch_and_group_is_forgotten() -> None:
    groups = BatchGroups()
    groups.add(1, "a")
    groups.add(1, "a")
    groups.fail(1, "a")

    groups.done(1, "a")
    assert (len(groups), groups.has_failed(1, "a")) == (1, True)

    groups.done(1, "a")
    assert (len(groups), groups.has_failed(1, "a")) == (0, False)


def test_fifo_enforcement_cleanup_what_is_not_known_leaves_nothing_behind() -> None:
    groups = BatchGroups()

    groups.fail(1, "a")
    groups.done(1, "a")

    assert (len(groups), groups.has_failed(1, "a")) == (0, False)
