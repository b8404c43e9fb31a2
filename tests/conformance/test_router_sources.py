"""Penstock's own queues and subscriptions in this process keep the contract of every router source.

Sources of other servers are in tests/integration/router/test_source_contract.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.conformance.source_drivers import DurableDriver, MemoryDriver, SubscriptionDriver
from tests.conformance.sources.checks import SOURCE_CHECKS, checked, missing
from tests.conformance.sources.driver import SourceCheck
from tests.conformance.sources.lives import (
    what_a_source_held_that_died_comes_again,
    what_a_stopped_source_held_is_given_back_at_once,
)
from tests.conformance.sources.settling import what_is_acked_is_gone_for_good, what_is_buried_is_not_handed_out_again
from tests.together import Scene, play_together

DURABILITY = [
    what_is_acked_is_gone_for_good,
    what_is_buried_is_not_handed_out_again,
    what_a_stopped_source_held_is_given_back_at_once,
    what_a_source_held_that_died_comes_again,
]


def scenes(make: type[MemoryDriver], folder: Path, checks: Sequence[SourceCheck] = SOURCE_CHECKS) -> dict[str, Scene]:
    """The checks that apply, each with a driver and a folder of its own."""
    found: dict[str, Scene] = {}
    for check in checks:
        driver = make(folder / check.__name__)
        if missing(check, driver) is None:
            found[f"{make.__name__} {check.__name__}"] = partial(checked, check, driver)
    return found


def test_a_source_in_memory_keeps_the_contract(tmp_path: Path, subtests: pytest.Subtests) -> None:
    play_together(scenes(MemoryDriver, tmp_path) | scenes(SubscriptionDriver, tmp_path), subtests)


@pytest.mark.server
def test_a_source_on_disk_keeps_what_it_was_told(tmp_path: Path, subtests: pytest.Subtests) -> None:
    play_together(scenes(DurableDriver, tmp_path, DURABILITY), subtests)


@pytest.mark.long
def test_a_source_on_disk_keeps_the_contract(tmp_path: Path, subtests: pytest.Subtests) -> None:
    play_together(scenes(DurableDriver, tmp_path), subtests)
