"""UUIDs made many at a time."""

from uuid import RFC_4122, UUID

from penstock.hub.broker.uuids import TOGETHER, Uuids


def test_each_is_a_random_uuid_and_another() -> None:
    make = Uuids()

    texts = [make() for _ in range(3 * TOGETHER + 1)]
    found = [UUID(text) for text in texts]

    assert len({*found}) == len(found)
    assert {(one.version, one.variant) for one in found} == {(4, RFC_4122)}
    assert [str(one) for one in found] == texts
    assert {text[19] for text in texts} == {*"89ab"}
