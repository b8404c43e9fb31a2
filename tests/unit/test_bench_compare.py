"""The comparison of two commits: what it makes of figures, and what it says when it cannot compare. Measuring is not tested."""

import pytest

from benchmarks import compare
from benchmarks.compare import RATE, Figures, main, report


def test_a_ratio_above_one_is_better_for_rates_and_for_costs() -> None:
    assert Figures(RATE, base=[100, 100, 100], new=[110, 120, 90]).ratio == pytest.approx(1.1)
    assert Figures("messages/s", base=[100], new=[50]).ratio == pytest.approx(0.5)
    assert Figures("µs", base=[100], new=[50]).ratio == pytest.approx(2)


def test_rounds_that_differ_more_than_the_floor_shows_are_noisy() -> None:
    assert Figures(RATE, base=[100] * 3, new=[80, 100, 120]).is_noisy(0.95)
    assert not Figures(RATE, base=[100] * 3, new=[98, 100, 102]).is_noisy(0.95)


def test_the_exit_code_says_whether_a_ratio_is_below_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"fast": Figures(RATE, [100.0], [100.0]), "slow": Figures(RATE, [100.0], [90.0])}

    assert report(found, 0.95, "time") == 1
    assert "below the floor" in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("slow"))
    assert report(found, 0.85, "time") == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["HEAD", "--quick", "--only", "memory", "warp"], "no row is called warp; there are memory, queue, "),
        (["HEAD", "--quick", "--rounds", "0"], "--rounds is 0, expected at least 1"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_is_measured(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert f"bench-compare: {problem}" in capsys.readouterr().err


@pytest.mark.server
@pytest.mark.parametrize("commit", ["", "no-such-commit"])
def test_an_unknown_commit_is_named(commit: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([commit, "--quick"]) == 2
    assert f"there is no commit {commit!r}" in capsys.readouterr().err


def test_without_counters_the_processor_time_is_offered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "counts_instructions", lambda: False)

    assert main(["HEAD", "--quick", "--measure", "instructions"]) == 2
    assert "use --measure cpu" in capsys.readouterr().err
