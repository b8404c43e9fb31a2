"""Who somebody is, and what they may do: what a token says, once it has been checked."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.hub.core.topic import covers


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """An actor as its token describes it."""

    address: str | None = None
    """The only address it may register; None for any."""
    publish: tuple[str, ...] | None = None
    """Patterns of the topics it may publish to; None for all."""
    subscribe: tuple[str, ...] | None = None
    """Patterns that cover what it may subscribe to; None for all."""
    expires_at: int | None = None

    @property
    def breadth(self) -> int:
        """How many patterns a topic is held against to know whether it may be subscribed to; 1 when none is."""
        return max(len(self.subscribe or ()), 1)

    def may_publish(self, topic: str) -> bool:
        """Whether it may publish to a topic."""
        return self.publish is None or any(covers(pattern, topic) for pattern in self.publish)

    def may_subscribe(self, pattern: str) -> bool:
        """Whether everything that a topic or pattern covers is within what it may see."""
        return self.subscribe is None or any(covers(allowed, pattern) for allowed in self.subscribe)

    def may_end(self, pattern: str) -> bool:
        """Whether it may end the durable subscription of an actor as whom it is registered.

        Whose token names the actor may. A token that names none lets be anybody, so it ends only what it could have begun.
        """
        return self.address is not None or self.may_subscribe(pattern)

    def may_send(self) -> bool:
        """Whether it may send to other actors: whoever may publish something may."""
        return self.publish is None or bool(self.publish)

    def may_broadcast(self) -> bool:
        """Whether it may send to all actors: patterns say where its messages may go, and that is everywhere."""
        return self.publish is None


ANYBODY = Identity()
"""Where nobody is asked for a token."""
