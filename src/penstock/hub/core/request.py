"""A request on its way to its handler: who asks for what, and when."""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct

from penstock.hub.core.messages import Command, Envelope
from penstock.hub.core.session import Session

C = TypeVar("C", bound=Command)


class Ask(Struct, Generic[C]):
    """One request of one session."""

    session: Session
    request: Envelope
    command: C
    now: int
