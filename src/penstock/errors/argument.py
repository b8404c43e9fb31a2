"""The call itself is wrong."""

from __future__ import annotations

from penstock.errors.root import PenstockError
from penstock.errors.short_repr import kept, shown


class InvalidArgument(PenstockError):
    """The request can never succeed as it is written."""

    code = 3
    reason = "invalid_argument"

    @classmethod
    def of(cls, name: str, value: object, wanted: str, hint: str | None = None) -> InvalidArgument:
        """The usual sentence: which argument, what it was, what was wanted."""
        return cls(f"{name} is {shown(value)}, wanted {wanted}", hint=hint)


class InvalidAckId(InvalidArgument):
    """The delivery this ack id stood for is over, or there was none."""

    reason = "invalid_ack_id"
    hint = "it was settled, ran out or was replaced by a redelivery; settle the newest delivery, or ask for a longer ack deadline"

    def __init__(self, ack_id: object) -> None:
        super().__init__(kept(ack_id))
        self.ack_id = kept(ack_id)

    def __str__(self) -> str:
        return f"Invalid ack ID: {shown(self.ack_id, bare=True)}"


class InvalidFilter(InvalidArgument):
    """A filter expression that does not parse."""

    reason = "invalid_filter"

    def __init__(self, text: str, position: int, problem: str) -> None:
        super().__init__(text, position, problem)
        self.text = text
        self.position = position
        self.problem = problem

    def __str__(self) -> str:
        return f"Invalid filter at position {self.position}: {self.problem}\n  {self.text}\n  {' ' * self.position}^"


class InvalidPriority(InvalidArgument):
    """A priority outside 0–9."""

    reason = "invalid_priority"
    hint = "9 is the most urgent, 0 the least; leave it out for the queue's default"

    def __init__(self, priority: object) -> None:
        super().__init__(kept(priority))
        self.priority = kept(priority)
        self.shown = shown(priority)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.args, {"shown": self.shown}

    def __str__(self) -> str:
        return f"Invalid priority: {self.shown}, wanted an integer from 0 to 9"


class TransformFailed(InvalidArgument):
    """A transform threw, ran out of time or memory, or returned something that is no message."""

    reason = "transform_failed"

    def __init__(self, function_name: str, problem: str) -> None:
        super().__init__(function_name, problem)
        self.function_name = function_name
        self.problem = problem

    def __str__(self) -> str:
        return f"transform {self.function_name} {self.problem}"
