"""Sorted names: pages of them, whatever comes and goes."""

from __future__ import annotations

import pytest

from penstock.hub.core.sorted_names import BLOCK, Names


def test_no_names_are_an_empty_page() -> None:
    assert Names().page("", 0, 10) == []
    assert Names().count("") == 0


@pytest.mark.parametrize("count", [1, 2 * BLOCK - 1, 2 * BLOCK, 5 * BLOCK])
@pytest.mark.parametrize("step", [1, -1])
def test_a_page_is_what_a_sorted_list_would_give(count: int, step: int) -> None:
    names, everything = Names(), [f"{number:06}" for number in range(count)]
    for name in everything[::step]:
        names.add(name)

    for offset in (0, 1, BLOCK - 1, BLOCK, count - 1, count, count + 1):
        assert names.page("", offset, BLOCK) == everything[offset : offset + BLOCK]
    assert names.page("", 0, count) == everything
    assert names.count("") == count


def test_names_stay_sorted_while_blocks_are_cut_and_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.hub.core.sorted_names.BLOCK", 4)
    names = Names()
    kept: set[str] = set()
    for number in range(500):
        name = str(number * 7919 % 1000)
        names.add(name)
        kept.add(name)
        if number % 3 == 2:
            gone = sorted(kept)[number * 31 % len(kept)]
            names.remove(gone)
            kept.remove(gone)
        ones = sorted(each for each in kept if each.startswith("1"))
        assert names.page("", 0, 1000) == sorted(kept)
        assert names.page("1", 2, 5) == ones[2:7]
        assert names.count("1") == len(ones)
    for name in sorted(kept):
        names.remove(name)

    assert names.page("", 0, 1000) == []
