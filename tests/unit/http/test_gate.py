"""Who stays is asked again, and not at every step."""

import pytest

from penstock.access import ANYONE, Principal
from penstock.durations import SECOND
from penstock.errors import Unauthenticated
from penstock.http.authentication import Admission


class Counting:
    """Lets everyone in until it is told otherwise, and counts."""

    is_open = False

    def __init__(self) -> None:
        self.asked = 0
        self.is_closed = False

    def authenticate(self, secret: str | None) -> Principal:
        self.asked += 1
        if self.is_closed:
            raise Unauthenticated(f"{secret} is over")
        return ANYONE

    def wait_seconds(self, principal: Principal | None, address: str) -> float:
        return 0.0


def test_an_admission_asks_once_a_second_and_says_no_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [7 * SECOND]
    monkeypatch.setattr("penstock.http.authentication.monotonic", lambda: now[0])
    gate = Counting()
    admission = Admission(gate, "token")

    for tenth in range(31):
        now[0] = 7 * SECOND + tenth * SECOND // 10
        admission.check()
    assert gate.asked == 3

    gate.is_closed = True
    now[0] += SECOND
    for _ in range(2):
        with pytest.raises(Unauthenticated, match="token is over"):
            admission.check()


def test_without_a_gate_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.http.authentication.ASK_AGAIN", 0)
    Admission(None, None).check()
