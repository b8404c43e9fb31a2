"""The contract of a router's source (`router.source`), as checks that any implementation can be held to.

    from tests.conformance.sources.checks import SOURCE_CHECKS, missing, run_check
    from tests.conformance.sources.driver import SourceCheck, SourceDriver

    @pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
    def test_my_source_keeps_the_contract(check: SourceCheck, driver: SourceDriver) -> None:
        if reason := missing(check, driver):
            pytest.skip(reason)
        run_check(check, driver)

A `SourceDriver` (see `sources.driver`) says how the server behind the source is reached without it, and what that server cannot
do. Every check gets an empty queue of its own. A broken promise is an AssertionError that names it. Times are real: a check that
waits for a lease takes as long as the shortest lease does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from tests.conformance.sources import handing_out, lives, settling
from tests.conformance.sources.driver import NEEDS, TIME_LIMIT, SourceCheck, SourceDriver

SOURCE_CHECKS: Final[Sequence[SourceCheck]] = (
    handing_out.everything_is_handed_out_once_and_in_order,
    handing_out.a_poll_hands_out_no_more_than_it_was_asked_for,
    handing_out.a_waiting_poll_returns_when_a_message_arrives,
    handing_out.a_poll_of_an_empty_queue_returns_nothing_in_time,
    handing_out.pollers_at_the_same_time_share_the_messages,
    handing_out.polls_that_are_cancelled_lose_nothing,
    handing_out.many_may_be_held_at_a_time,
    handing_out.bodies_come_as_they_were_sent,
    handing_out.what_is_sent_through_a_source_is_handed_out,
    handing_out.the_depth_is_known_or_said_to_be_unknown,
    settling.what_is_acked_is_gone_for_good,
    settling.an_ack_needs_no_flush,
    settling.what_is_nacked_comes_again_after_its_delay,
    settling.what_is_nacked_with_no_delay_comes_at_once,
    settling.what_is_nacked_with_no_delay_keeps_its_place,
    settling.what_nothing_is_said_of_comes_again_when_its_lease_ends,
    settling.what_is_extended_stays_away_for_longer,
    settling.what_is_extended_again_and_again_never_comes,
    settling.settling_what_is_settled_does_no_harm,
    settling.what_is_buried_is_not_handed_out_again,
    lives.what_a_stopped_source_held_is_given_back_at_once,
    lives.what_a_source_held_that_died_comes_again,
    lives.stop_ends_waiting_polls,
    lives.starting_and_stopping_twice_does_no_harm,
    lives.a_server_that_is_not_there_is_unavailable,
    lives.a_server_that_comes_back_is_found_again,
    lives.an_ack_while_the_server_is_away_counts,
    lives.nothing_is_lost_when_the_server_restarts,
)


def missing(check: SourceCheck, driver: SourceDriver) -> str | None:
    """Why a driver is not asked to pass a check; None when it is."""
    lacking = [ability for ability in NEEDS.get(check, ()) if not getattr(driver.can, ability)]
    return f"the server does not do this: {', '.join(lacking)}" if lacking else None


def run_check(check: SourceCheck, driver: SourceDriver) -> None:
    """Hold a source to one promise."""
    asyncio.run(checked(check, driver))


async def checked(check: SourceCheck, driver: SourceDriver) -> None:
    """The same in a running loop, where checks with a driver each may run at the same time."""
    async with asyncio.timeout(TIME_LIMIT):
        await driver.begin()
        try:
            await check(driver)
        finally:
            await driver.end()
