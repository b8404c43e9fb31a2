"""The table of subscriptions: topics by name, patterns in a trie by level, so that a message is not compared with every pattern.

A topic or pattern is in the table while it has a subscriber. `names` decides which names are valid. All names are also kept
sorted, in blocks of bounded length: a page of them costs what the page costs, and adding or removing a name moves only its
block. One list would move half of all names each time, and sorting for each request would block the hub meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Hashable
from operator import itemgetter
from typing import Generic, TypeVar

from penstock.hub.core.names import has_wildcard

BLOCK = 512
"""A block is split in two when it is twice as long."""
_AFTER = "\x7f"
"""Sorts after every character of a name."""

_last = itemgetter(-1)


class Names:
    """A set of names that is always sorted. Names are ASCII; prefixes may be anything."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: list[list[str]] = []  # none of them empty

    def add(self, name: str) -> None:
        blocks = self._blocks
        if not blocks:
            blocks.append([name])
            return
        at = min(bisect_left(blocks, name, key=_last), len(blocks) - 1)
        block = blocks[at]
        insort(block, name)
        if len(block) == 2 * BLOCK:
            blocks.insert(at + 1, block[BLOCK:])
            del block[BLOCK:]

    def remove(self, name: str) -> None:
        at = bisect_left(self._blocks, name, key=_last)
        block = self._blocks[at]
        del block[bisect_left(block, name)]
        if not block:
            del self._blocks[at]

    def count(self, prefix: str) -> int:
        return self._rank(prefix + _AFTER) - self._rank(prefix)

    def page(self, prefix: str, offset: int, limit: int) -> list[str]:
        """At most `limit` of the names that begin with a prefix, starting at `offset` among them."""
        first = self._rank(prefix)
        start, stop = first + offset, min(first + offset + limit, self._rank(prefix + _AFTER))
        found: list[str] = []
        for block in self._blocks:
            if stop <= 0:
                break
            found += block[max(start, 0) : stop]
            start -= len(block)
            stop -= len(block)
        return found

    def _rank(self, name: str) -> int:
        """The number of names that sort before a name."""
        at = bisect_left(self._blocks, name, key=_last)
        before = sum(map(len, self._blocks[:at]))
        return before + bisect_left(self._blocks[at], name) if at < len(self._blocks) else before


S = TypeVar("S", bound=Hashable)

Subscribers = dict[S, None]
"""A set that keeps its order."""

_ONE, _REST = "/+", "/#"
"""The wildcards as keys of the trie. The levels of a topic contain no slash, so they never equal these."""
_SPELT = {"+": _ONE, "#": _REST}


class _Node(Generic[S]):
    """A common prefix of some patterns: the subscribers of the pattern that ends here, and the next levels of the others."""

    __slots__ = ("children", "subscribers")

    def __init__(self) -> None:
        self.children: dict[str, _Node[S]] = {}
        self.subscribers: Subscribers[S] = {}


class TopicTable(Generic[S]):
    """All subscriptions. Returned collections are internal: read them before the table changes, and do not modify them."""

    __slots__ = ("_names", "_patterns", "_subscribers", "_trie", "pairs")

    def __init__(self) -> None:
        self._subscribers: dict[str, Subscribers[S]] = {}  # of every topic and pattern
        self._patterns: dict[S, dict[str, None]] = {}
        self._names = Names()
        self._trie: _Node[S] = _Node()  # of the patterns with wildcards only
        self.pairs = 0
        """The number of subscriptions: pairs of a pattern and a subscriber."""

    def __len__(self) -> int:
        return len(self._subscribers)

    def add(self, pattern: str, subscriber: S) -> bool:
        """Subscribe to a topic or pattern; False if the subscription exists already."""
        patterns = self._patterns.setdefault(subscriber, {})
        if pattern in patterns:
            return False
        patterns[pattern] = None
        subscribers = self._subscribers.get(pattern)
        if subscribers is None:
            subscribers = self._subscribers[pattern] = {}
            self._names.add(pattern)
            if has_wildcard(pattern):
                self._grow(pattern, subscribers)
        subscribers[subscriber] = None
        self.pairs += 1
        return True

    def remove(self, pattern: str, subscriber: S) -> bool:
        """End a subscription to exactly this topic or pattern; False if there is none."""
        patterns = self._patterns.get(subscriber)
        if patterns is None or pattern not in patterns:
            return False
        del patterns[pattern]
        if not patterns:
            del self._patterns[subscriber]
        self._leave(pattern, subscriber)
        return True

    def drop(self, subscriber: S) -> list[str]:
        """End all subscriptions of a subscriber, and return their patterns, the oldest first."""
        patterns = list(self._patterns.pop(subscriber, ()))
        for pattern in patterns:
            self._leave(pattern, subscriber)
        return patterns

    def patterns_of(self, subscriber: S) -> Collection[str]:
        """The topics and patterns of a subscriber, the oldest first."""
        return self._patterns.get(subscriber, ())

    def subscribers(self, pattern: str) -> Collection[S]:
        """The subscribers of exactly this topic or pattern, the oldest first."""
        return self._subscribers.get(pattern, ())

    def match(self, topic: str) -> Collection[S]:
        """All subscribers that a message to a topic reaches, each once, even if several of their patterns cover it."""
        exact = self._subscribers.get(topic)
        found = [] if exact is None else [exact]
        if self._trie.children:
            self._walk(topic, found)
        if not found:
            return ()
        reached = found[0]
        if len(found) > 1:
            reached = reached.copy()
            for subscribers in found[1:]:
                reached.update(subscribers)
        return reached

    def count(self, topic: str) -> int:
        return len(self.match(topic))

    def names(self, prefix: str = "", offset: int = 0, limit: int | None = None) -> list[tuple[str, int]]:
        """The topics and patterns that begin with a prefix, sorted, with the number of their subscribers; or a page of them."""
        page = self._names.page(prefix, offset, len(self) if limit is None else limit)
        return [(name, len(self._subscribers[name])) for name in page]

    def total(self, prefix: str = "") -> int:
        """The number of topics and patterns that begin with a prefix."""
        return self._names.count(prefix)

    def _leave(self, pattern: str, subscriber: S) -> None:
        subscribers = self._subscribers[pattern]
        del subscribers[subscriber]
        self.pairs -= 1
        if not subscribers:
            del self._subscribers[pattern]
            self._names.remove(pattern)
            if has_wildcard(pattern):
                self._prune(pattern)

    def _grow(self, pattern: str, subscribers: Subscribers[S]) -> None:
        node = self._trie
        for level in _levels(pattern):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        node.subscribers = subscribers

    def _prune(self, pattern: str) -> None:
        """Remove every node that only this pattern used. Its subscribers, which the last node refers to, are already removed."""
        node, path = self._trie, []
        for level in _levels(pattern):
            path.append((node, level))
            node = node.children[level]
        for parent, level in reversed(path):
            if node.children or node.subscribers:
                break
            del parent.children[level]
            node = parent

    def _walk(self, topic: str, found: list[Subscribers[S]]) -> None:
        """Find the subscribers of all patterns that cover a topic, level by level through all matching nodes."""
        nodes = [self._trie]
        for level in topic.split("/"):
            following = []
            for node in nodes:
                children = node.children
                if (child := children.get(level)) is not None:
                    following.append(child)
                if (child := children.get(_ONE)) is not None:
                    following.append(child)
                if (child := children.get(_REST)) is not None:
                    found.append(child.subscribers)
            nodes = following
            if not nodes:
                return
        for node in nodes:
            if node.subscribers:
                found.append(node.subscribers)
            if (child := node.children.get(_REST)) is not None:
                found.append(child.subscribers)


def _levels(pattern: str) -> list[str]:
    return [_SPELT.get(level, level) for level in pattern.split("/")]
