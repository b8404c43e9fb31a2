"""The page of the settings: every effective value, and the tokens without their secrets."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from penstock.access import Keyring, Verb
from penstock.config import OPTIONS, Settings
from penstock.durations import to_datetime
from penstock.errors import FailedPrecondition, PermissionDenied
from penstock.router.core.config import shown_uri
from penstock.server.console.audit import Audit
from penstock.server.console.requests import Action, Caller, Confirmation, NoParameters, View


class SettingLine(msgspec.Struct, kw_only=True):
    """One setting. `origin` is where its value comes from: the default or not."""

    name: str
    key: str
    value: Any
    origin: str
    help: str


class TokenLine(msgspec.Struct, kw_only=True):
    """A token."""

    id: str
    name: str
    project: str | None
    verbs: list[str]
    names: list[str]
    created_at: datetime
    expires_at: datetime | None


class SettingsReply(msgspec.Struct, kw_only=True):
    """All settings; `tokens` is null for callers that may not manage everything, and on a server without tokens."""

    settings: list[SettingLine]
    tokens: list[TokenLine] | None


class RevokedReply(msgspec.Struct):
    """The id of the token."""

    revoked: str


class SettingsPage:
    """The view of the settings, for tokens without restrictions only."""

    def __init__(self, settings: Settings, keyring: Keyring | None, audit: Audit) -> None:
        self._settings, self._keyring, self._audit = settings, keyring, audit

    def views(self) -> list[View[Any]]:
        return [View("settings", "/console/api/settings", "Settings and tokens", NoParameters, self.settings, SettingsReply)]

    def actions(self) -> list[Action[Any]]:
        return [Action("/console/api/tokens/{id}/revoke", "Revoke a token", Confirmation, self.revoke, RevokedReply)]

    async def settings(self, caller: Caller, _: NoParameters) -> SettingsReply:
        """Every effective value."""
        if not caller.principal.may_everywhere(Verb.READ):
            raise PermissionDenied(Verb.READ, "the settings, with a token for one project or for some names")
        lines = []
        for option in OPTIONS:
            value = getattr(self._settings, option.name)
            origin = "default" if value == option.default else "set"
            lines.append(SettingLine(name=option.name, key=option.key, value=_plain(value), origin=origin, help=option.help))
        tokens = None
        if self._keyring is not None and caller.principal.may_everywhere(Verb.MANAGE):
            tokens = [
                TokenLine(
                    id=token.id,
                    name=token.name,
                    project=token.project,
                    verbs=[str(verb) for verb in token.verbs],
                    names=[*token.patterns],
                    created_at=to_datetime(token.created),
                    expires_at=None if token.expires is None else to_datetime(token.expires),
                )
                for token in self._keyring.list()
            ]
        return SettingsReply(settings=lines, tokens=tokens)

    async def revoke(self, caller: Caller, path: dict[str, str], body: Confirmation) -> RevokedReply:
        """Revoke a token."""
        if not caller.principal.may_everywhere(Verb.MANAGE):
            raise PermissionDenied(Verb.MANAGE, "tokens, with a token for one project or for some names")
        if self._keyring is None:
            raise FailedPrecondition("this server asks for no tokens", hint="start it with --auth token")
        name = path["id"]
        body.check(name)
        self._keyring.revoke(name)
        await self._audit.record(caller, "revoke_token", name, 1)
        return RevokedReply(name)


def _plain(value: object) -> object:
    if isinstance(value, str) and "://" in value:
        return ",".join(shown_uri(address) for address in value.split(","))
    return str(value) if isinstance(value, Path) else value
