"""A complete hub in a server: its rules, its logs, authentication, start and stop."""

from __future__ import annotations

import secrets
from dataclasses import replace

from penstock import __version__
from penstock.access import Keyring
from penstock.broker.aio import AsyncBroker
from penstock.clock import Clock
from penstock.config import Settings
from penstock.durations import SECOND
from penstock.errors import InvalidArgument
from penstock.hub.broker.feed import OWN, BrokerTopicLogs
from penstock.hub.broker.tokens import KeyringVerifier
from penstock.hub.core.hub import Hub
from penstock.hub.core.rules import EVERYTHING, Binding, HubRules, read_rate
from penstock.hub.ports import Verifier
from penstock.hub.service import HubService
from penstock.hub.tokens import JwtVerifier, OpenVerifier, jwt_verifier
from penstock.rate_limit import RateLimit
from penstock.values.projects import Projects

UUIDS_AT_ONCE = 256
"""How many UUIDs are generated from one read of the system's random source."""
_DIGITS = 32
_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}


class HubHost:
    """One hub in this process. Create it inside the running loop. Its topics are those of the server's default project."""

    def __init__(
        self,
        settings: Settings,
        aio: AsyncBroker,
        *,
        clock: Clock,
        projects: Projects | None = None,
        keyring: Keyring | None = None,
    ) -> None:
        self._aio = aio
        self._jwt = jwt_verifier(settings, clock)
        verifier = _verifier(settings, self._jwt, keyring, projects or Projects(settings.project), clock)
        self.asks_for_token = not isinstance(verifier, OpenVerifier)
        limits = replace(rules_of(settings), anonymous=not self.asks_for_token)
        self._bindings = bindings_of(settings)
        self.feed = BrokerTopicLogs(
            aio,
            limits=limits,
            retention=round(settings.hub_history_retention * SECOND),
            expiry=round(settings.hub_durable_expiry * SECOND),
        )
        self.hub = Hub(
            limits,
            epoch=secrets.token_hex(8),
            make_id=UuidGenerator(),
            version=__version__,
            bindings=self._bindings,
            everything=Binding(EVERYTHING, OWN),
            now=clock.now(),
        )
        self.service = HubService(self.hub, feed=self.feed, verifier=verifier, clock=clock)

    async def start(self) -> None:
        """Create missing topics, and start the hub."""
        await self._aio.call(self.feed.make_topics, self._bindings)
        self.service.start()

    async def stop(self, grace_seconds: float) -> None:
        """Notify clients, and stop. Safe to call twice, and before `start`."""
        await self.service.stop(grace_seconds)
        if self._jwt is not None:
            await self._jwt.close()


def check_access(settings: Settings) -> None:
    """Refuse settings where clients of the hub need a token, but the other APIs can write to its topics without one."""
    keys = {"hub_jwt_secret_file": settings.hub_jwt_secret_file, "hub_jwt_key_file": settings.hub_jwt_key_file}
    given = [name for name, value in {**keys, "hub_jwks_url": settings.hub_jwks_url}.items() if value is not None]
    if given and settings.hub and settings.auth == "none" and not settings.insecure:
        raise InvalidArgument(
            f"{given[0]} is set and auth is 'none': clients of the hub need a token, but clients of the other APIs could"
            " publish to its topics without one, in the name of any actor",
            hint="require tokens everywhere with auth = 'token' (--auth token), or allow this with insecure = true (--insecure)",
        )


def rules_of(settings: Settings) -> HubRules:
    rate = RateLimit(settings.hub_rate_limit, settings.hub_rate_burst) if settings.hub_rate_limit else None
    return HubRules(
        max_message_bytes=settings.hub_max_message_bytes,
        max_connections_per_address=settings.hub_max_per_address,
        max_actors=settings.hub_max_actors,
        max_subscriptions=settings.hub_max_subscriptions,
        max_broadcast=settings.hub_max_broadcast,
        max_outbox_bytes=settings.hub_max_outbox_bytes,
        rate=rate,
        read_rate=read_rate(settings.hub_rate_bytes) if rate is not None and settings.hub_rate_bytes else None,
        heartbeat=round(settings.hub_heartbeat * SECOND),
        idle=round(settings.hub_idle * SECOND),
    )


def bindings_of(settings: Settings) -> list[Binding]:
    """The bindings in the settings, the most specific first. If several cover a topic, the first one is used."""
    pairs = [pair.split("=", 1) for pair in settings.hub_bind]
    bindings = [Binding(pattern, topic) for pattern, topic in pairs]
    bindings += [Binding(f"{prefix}/#", f"{OWN}.{prefix.replace('/', '.')}") for prefix in settings.hub_history]
    return sorted(bindings, key=lambda binding: -sum(level not in {"+", "#"} for level in binding.pattern.split("/")))


def _verifier(settings: Settings, jwt: JwtVerifier | None, keyring: Keyring | None, projects: Projects, clock: Clock) -> Verifier:
    """A verifier for tokens of an identity provider if its keys are set, else for the server's tokens if required, else open."""
    if jwt is not None:
        return jwt
    if keyring is None and settings.auth == "token" and settings.token_file is not None:
        keyring = Keyring(settings.token_file)
    if keyring is not None:
        return KeyringVerifier(keyring, projects.default, clock)
    return OpenVerifier()


class UuidGenerator:
    """Generates UUIDs of version 4. They cannot be guessed, so they are also used as secrets."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: list[str] = []

    def __call__(self) -> str:
        """Return a new UUID."""
        if not self._left:
            text = secrets.token_hex(UUIDS_AT_ONCE * _DIGITS // 2)
            self._left = [text[at : at + _DIGITS] for at in range(0, len(text), _DIGITS)]
        digits = self._left.pop()
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"
