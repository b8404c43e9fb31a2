"""The demo installs PySpark in the background."""

from pathlib import Path

import pytest

from proof import pipeline_chapter
from proof.pipeline_chapter import SparkInstallation
from proof.screen import Screen


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_chapter, "missing_for_spark", lambda: "Java 17 or newer")


def test_a_failed_installation_shows_its_output(missing: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SparkInstallation(Screen(), "sh -c 'echo no network; exit 1'", tmp_path / "log") as installation:
        installation.wait()
    assert "PySpark could not be installed:\nno network\n" in capsys.readouterr().out


def test_an_installation_ends_with_the_demo(missing: None, tmp_path: Path) -> None:
    installation = SparkInstallation(Screen(), "sleep 600", tmp_path / "log")
    with installation:
        pass
    assert installation._process is not None
    assert installation._process.returncode is not None


def test_nothing_is_installed_without_need_or_without_a_command(missing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Path("never-written")
    with SparkInstallation(Screen(), "", log) as installation:
        installation.wait()
    monkeypatch.setattr(pipeline_chapter, "missing_for_spark", lambda: "")
    with SparkInstallation(Screen(), "false", log) as installation:
        installation.wait()
    assert not log.exists()
