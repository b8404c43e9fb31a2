"""What every test of the hub over a connection shares."""

import pytest

from penstock.durations import SECOND


@pytest.fixture(autouse=True)
def _quick_to_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients whose connection breaks come back after a twentieth of the usual wait."""
    monkeypatch.setattr("penstock.hub.client.core.reconnection.MINIMUM", SECOND // 20)
