"""The root of all errors."""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """The root: catch this to catch everything Penstock raises on purpose."""

    code: ClassVar[int] = 2
    reason: ClassVar[str] = "unknown"
    transient: ClassVar[bool] = False
    hint: str | None = None

    def __init__(self, *fields: object, hint: str | None = None) -> None:
        super().__init__(*fields)
        advice = hint or self.hint
        if advice:
            self.hint = advice
            self.add_note(advice)

    @property
    def message(self) -> str:
        """The text alone, as the specifications' error objects carry it."""
        return str(self)
