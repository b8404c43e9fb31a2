"""A table of registered actors by address, each with a TTL and a token to renew it, and a search for actors.

An expired actor is not found any more, but stays in the table until `expire` returns it, so that its session can be notified. A
registration of an address that is in use takes it over: the last one counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Generic, TypeVar

import msgspec

from penstock.errors import short_repr
from penstock.hub.core.discovery import glob_matcher, regex_matcher
from penstock.hub.core.json_limits import is_deeper
from penstock.hub.core.messages import ActorFound, Discover, DiscoveryResult, ListActors, Register, Renew
from penstock.hub.core.names import is_address
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.rules import DEFAULT_TTL, MAX_DEPTH, MAX_TTL, MIN_TTL, HubRules

MAX_CAPABILITIES = 64
MAX_CAPABILITY = 128
MAX_METADATA = 8 * 1024
"""Bytes of JSON: a reply with a list of actors has the metadata of up to 1,000 of them."""

NEVER = 1 << 62
"""The expiry of a registration that lasts as long as its connection."""
_MILLISECOND = 1_000
_SLACK = 64
"""The number of entries of the heap that may always be outdated, even if there are few actors."""
_ABSENT = object()
_REGISTER_AGAIN = "send hub:register to be known by an address, and renew it before it runs out"

S = TypeVar("S")


@dataclass(slots=True, eq=False)
class Actor(Generic[S]):
    """One registration. A renewal changes it; another registration of the same address is a new Actor."""

    address: str
    capabilities: tuple[str, ...]
    metadata: dict[str, object]
    session: S = field(repr=False)
    registered_at: int
    expires_at: int
    ttl: int
    """The TTL for renewals that do not name one."""
    version: int
    renewal_token: str = field(repr=False)
    is_anonymous: bool = False
    """Whether the hub generated its address, so that no client can return to it."""


class Registry(Generic[S]):
    """All actors of a hub. A session may be any object; sessions are compared by identity."""

    __slots__ = ("_actors", "_by_expiry", "_in_order", "_rules")

    def __init__(self, rules: HubRules) -> None:
        self._rules = rules
        self._actors: dict[str, Actor[S]] = {}
        self._by_expiry: list[tuple[int, str]] = []
        """A heap. An entry is valid only if its actor still expires at exactly that time; others are ignored."""
        self._in_order: list[str] | None = None
        """All addresses, sorted, and some removed ones; None after an addition. Never changed in place: it may be iterated."""

    def __len__(self) -> int:
        """The number of actors, including expired ones that `expire` has not returned yet."""
        return len(self._actors)

    def __contains__(self, address: str) -> bool:
        """Whether an address is in the table, even if it has expired but `expire` has not returned it yet."""
        return address in self._actors

    def register(self, command: Register, session: S, *, token: str, now: int) -> tuple[Actor[S], Actor[S] | None]:
        """The new actor, and the actor of another session that had the address, if there is one. That session has to be notified.

        The earlier actor may have expired already. Callers that handle expired actors differently call `expire` first.
        """
        address = _checked_address(command.actor_address)
        capabilities = _checked_capabilities(command.capabilities)
        if not capabilities:
            raise _invalid("capabilities is empty", "missing_capabilities", "say at least one thing that the actor can do")
        metadata = _checked_metadata(command.metadata)
        ttl = _checked_ttl(command.ttl, DEFAULT_TTL)
        earlier = self._actors.get(address)
        if earlier is None:
            self._check_room()
            self._in_order = None
        actor = Actor(
            address=address,
            capabilities=capabilities,
            metadata=metadata,
            session=session,
            registered_at=now,
            expires_at=now + ttl,
            ttl=ttl,
            version=earlier.version + 1 if earlier is not None and earlier.expires_at > now else 1,
            renewal_token=token,
        )
        self._actors[address] = actor
        self._await_expiry(actor)
        return actor, earlier if earlier is not None and earlier.session is not session else None

    def renew(self, command: Renew, address: str, *, token: str, now: int) -> Actor[S]:
        """The actor, with a TTL that starts now, and `token` as the token for the next renewal."""
        actor = self.get(address, now)
        if actor is None:
            raise Refusal(
                "unknown_actor",
                f"no actor is registered as {short_repr(address, bare=True)}",
                reason="not_registered",
                resolution=_REGISTER_AGAIN,
            )
        if not compare_digest(_bytes_of(command.renewal_token), _bytes_of(actor.renewal_token)):
            raise Refusal(
                "unauthorized",
                "renewalToken is not the one of the last hub:registered or hub:renewed",
                reason="wrong_renewal_token",
                resolution="send the newest token, which every renewal replaces, or register again",
            )
        ttl = _checked_ttl(command.ttl, actor.ttl)
        actor.ttl, actor.expires_at, actor.renewal_token = ttl, now + ttl, token
        self._await_expiry(actor)
        return actor

    def unregister(self, actor: Actor[S]) -> bool:
        """Remove a registration; False if it had already ended, even if another actor has the address now."""
        if self._actors.get(actor.address) is not actor:
            return False
        del self._actors[actor.address]
        return True

    def get(self, address: str, now: int) -> Actor[S] | None:
        """The actor of this address; None if there is none or it has expired."""
        actor = self._actors.get(address)
        return actor if actor is not None and actor.expires_at > now else None

    def expire(self, now: int) -> Sequence[Actor[S]]:
        """Remove and return expired actors, the earliest expiry first. The cost depends on the removed actors, not on all."""
        gone: list[Actor[S]] = []
        heap = self._by_expiry
        while heap and heap[0][0] <= now:
            expires_at, address = heapq.heappop(heap)
            actor = self._actors.get(address)
            if actor is not None and actor.expires_at == expires_at:
                del self._actors[address]
                gone.append(actor)
        return gone

    def discover(self, command: Discover, now: int, *, glob: bool) -> DiscoveryResult:
        """The actors with all of the capabilities, equal metadata, and an address that matches the glob or regular expression."""
        capabilities = _checked_capabilities(command.capabilities)
        metadata = _checked_metadata(command.metadata)
        found = [*self._alive(now)]
        # One condition after the other, so that each is a plain loop over the remaining actors.
        for capability in capabilities:
            found = [actor for actor in found if capability in actor.capabilities]
        for key, value in metadata.items():
            found = [actor for actor in found if _is_same(actor.metadata.get(key, _ABSENT), value)]
        if command.pattern is not None:
            fits = glob_matcher(command.pattern) if glob else regex_matcher(command.pattern)
            found = [actor for actor in found if fits(actor.address)]
        return _page(found, command.offset, command.limit)

    def with_capability(self, capability: str | None, now: int) -> Iterator[Actor[S]]:
        """The actors with a capability, or all, by address. The table may change meanwhile; removed actors are then left out."""
        for actor in self._alive(now):
            if capability is None or capability in actor.capabilities:
                yield actor

    def list(self, command: ListActors, now: int) -> DiscoveryResult:
        return _page([*self._alive(now)], command.offset, command.limit)

    def _alive(self, now: int) -> Iterator[Actor[S]]:
        if self._in_order is None:
            self._in_order = sorted(self._actors)
        for address in self._in_order:
            actor = self._actors.get(address)
            if actor is not None and actor.expires_at > now:
                yield actor

    def _check_room(self) -> None:
        if len(self._actors) >= self._rules.max_actors:
            raise Refusal(
                "rate_limited",
                "Registry at capacity",
                reason="registry_full",
                resolution="try again when others have left, or raise the server's hub_max_actors",
                retryable=True,
                details={"limit": self._rules.max_actors},
            )

    def _await_expiry(self, actor: Actor[S]) -> None:
        if len(self._by_expiry) >= 2 * len(self._actors) + _SLACK:
            # Renewals and departures leave outdated entries. Now at least half of the entries are outdated: rebuild the heap, at
            # an amortized constant cost for each entry.
            self._by_expiry = [(other.expires_at, other.address) for other in self._actors.values()]
            heapq.heapify(self._by_expiry)
        else:
            heapq.heappush(self._by_expiry, (actor.expires_at, actor.address))


def _page(found: Sequence[Actor[S]], offset: int, limit: int) -> DiscoveryResult:
    page = found[offset : offset + limit]
    return DiscoveryResult(
        actors=tuple(
            ActorFound(
                actor_address=actor.address,
                capabilities=actor.capabilities,
                metadata=actor.metadata,
                registered_at=actor.registered_at // _MILLISECOND,
            )
            for actor in page
        ),
        count=len(page),
        has_more=offset + len(page) < len(found),
        total_matches=len(found),
    )


def _is_same(one: object, other: object) -> bool:
    """Whether two JSON values are equal. To Python true is 1; to JSON it is not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[key]) for key, value in one.items())
    return one == other


def _checked_address(address: str) -> str:
    if is_address(address):
        return address
    raise _invalid(
        f"actorAddress is {short_repr(address)}",
        "invalid_address",
        "send an address like @(browser/client-ui): a kind and a name of lower-case letters, digits and -",
    )


def _checked_capabilities(capabilities: tuple[str, ...]) -> tuple[str, ...]:
    unique = tuple(dict.fromkeys(capabilities))
    if len(unique) > MAX_CAPABILITIES:
        raise _invalid(f"capabilities are {len(unique)}", "too_many_capabilities", f"send {MAX_CAPABILITIES} at most")
    for capability in unique:
        if not 1 <= len(capability) <= MAX_CAPABILITY:
            raise _invalid(
                f"a capability is {short_repr(capability)}, {len(capability)} characters",
                "invalid_capability",
                f"send capabilities of 1 to {MAX_CAPABILITY} characters",
            )
    return unique


def _checked_metadata(metadata: dict[str, object]) -> dict[str, object]:
    encoded = msgspec.json.encode(metadata)
    if len(encoded) > MAX_METADATA:
        raise _invalid(
            f"metadata is {len(encoded)} bytes of JSON", "metadata_too_large", f"send {MAX_METADATA} bytes of metadata at most"
        )
    if is_deeper(encoded, MAX_DEPTH):
        raise _invalid("metadata is nested too deep", "metadata_too_deep", f"nest at most {MAX_DEPTH} lists and objects")
    return metadata


def _checked_ttl(ttl: object, default: int) -> int:
    """Microseconds of a TTL in milliseconds."""
    if ttl is None:
        return default
    lowest, highest = MIN_TTL // _MILLISECOND, MAX_TTL // _MILLISECOND
    if isinstance(ttl, int | float) and not isinstance(ttl, bool) and lowest <= ttl <= highest:
        return round(ttl * _MILLISECOND)
    raise _invalid(
        f"ttl is {short_repr(ttl)}",
        "invalid_ttl",
        f"send a ttl from {lowest} to {highest} milliseconds, or none for {default // _MILLISECOND}",
    )


def _bytes_of(token: str) -> bytes:
    # compare_digest only accepts ASCII text, and a client may send any text.
    return token.encode("utf-8", "surrogatepass")


def _invalid(message: str, reason: str, resolution: str) -> Refusal:
    return Refusal("internal_error", message, reason=reason, resolution=resolution)
