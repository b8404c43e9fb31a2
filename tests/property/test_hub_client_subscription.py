"""Whatever breaks, whenever: a subscription of the hub takes each message once and in order, or says that some may be missing."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.hub.client.core.subscription import SubscriptionProgress
from penstock.hub.core.messages import Position

EPOCH = "log"
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 5)),
        st.tuples(st.just("break"), st.integers(0, 3)),  # how many of those on their way are lost
        st.tuples(st.just("return"), st.booleans()),  # whether the hub has everything that was missed
        st.tuples(st.just("again"), st.integers(0, 10)),  # messages come again that another subscription recovers
    ),
    max_size=60,
)


@given(ACTIONS)
def test_nothing_is_missed_in_silence_and_nothing_comes_twice(actions: list[tuple[str, int]]) -> None:
    progress, next_offset, is_connected = SubscriptionProgress("orders/#"), 0, True
    taken: list[int] = []
    gaps: list[int] = []
    """How many messages had been taken when a gap was told."""
    progress.ask()
    progress.subscribed(Position(EPOCH, -1), recovered=False)

    def deliver(offset: int) -> None:
        if progress.takes(Position(EPOCH, offset)):
            taken.append(offset)

    for action, value in actions:
        if action == "publish":
            for offset in range(next_offset, next_offset + value):
                if is_connected:
                    deliver(offset)
            next_offset += value
        elif action == "break" and is_connected:
            next_offset += value
            progress.broke()
            is_connected = False
        elif action == "return" and not is_connected:
            since = progress.ask()
            assert since is not None
            if progress.subscribed(Position(EPOCH, next_offset - 1), recovered=bool(value)) is not None:
                gaps.append(len(taken))
            for offset in range(since.offset + 1, next_offset) if value else ():
                deliver(offset)
            is_connected = True
        elif action == "again" and is_connected:
            for offset in range(max(0, next_offset - value), next_offset):
                deliver(offset)

    assert taken == sorted(set(taken))
    for index, (before, after) in enumerate(zip([-1, *taken], taken, strict=False)):
        assert after == before + 1 or index in gaps
