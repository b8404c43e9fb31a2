"""How a payload is shown: as text, cut, and only to callers who may see it on a server that shows payloads."""

from __future__ import annotations

import base64
from typing import Literal

import msgspec

from penstock.access import Right
from penstock.server.console.requests import Caller
from penstock.values.message import StoredMessage
from penstock.values.queue import JSON

SHOWN_BYTES = 64 * 1024
PREVIEW = 200
MAX_JSON_BYTES = 1024 * 1024
"""A larger payload is not checked for being JSON."""
OWN = "penstock."
"""The prefix of attributes that Penstock sets."""

Visibility = Literal["shown", "hidden", "denied"]


class Payload(msgspec.Struct, kw_only=True):
    """A payload: its start as text, or in base64 if it is not text."""

    state: Visibility
    size: int
    text: str | None = None
    base64: str | None = None
    is_cut: bool = False
    is_json: bool = False


class Payloads:
    """Shows payloads, as the settings and the caller's rights allow."""

    def __init__(self, setting: str) -> None:
        self._is_hidden = setting == "hidden"

    def visibility(self, caller: Caller, name: str) -> Visibility:
        """Whether a caller may see the payloads of a topic, queue or subscription."""
        if self._is_hidden:
            return "hidden"
        return "shown" if caller.principal.may(Right.SEE, caller.project, name) else "denied"

    def check(self, caller: Caller, name: str, kind: str) -> Visibility:
        """The same; PermissionDenied if the caller may not."""
        if not self._is_hidden:
            caller.principal.check(Right.SEE, caller.project, name, kind=kind)
        return self.visibility(caller, name)

    def attributes(self, caller: Caller, name: str, message: StoredMessage) -> dict[str, str]:
        """The attributes of a message; only Penstock's own if the caller may not see payloads, as in the other APIs."""
        given = message.attributes or {}
        if caller.principal.may(Right.SEE, caller.project, name):
            return dict(given)
        return {key: value for key, value in given.items() if key.startswith(OWN)}


def payload(message: StoredMessage, state: Visibility, most: int = SHOWN_BYTES) -> Payload:
    """The first `most` bytes of a payload."""
    data = bytes(message.data)
    if state != "shown":
        return Payload(state=state, size=len(data))
    part, is_cut = data[:most], len(data) > most
    text = readable(part, is_cut=is_cut)
    is_json = text is not None and (message.content == JSON or _is_json(data))
    encoded = base64.b64encode(part).decode() if text is None else None
    return Payload(state=state, size=len(data), text=text, base64=encoded, is_cut=is_cut, is_json=is_json)


def preview(message: StoredMessage) -> str | None:
    """The first characters of a payload; None if it is not text."""
    data = bytes(message.data[: PREVIEW * 4])
    text = readable(data, is_cut=len(data) < len(message.data))
    return None if text is None else text[:PREVIEW]


def readable(data: bytes, *, is_cut: bool) -> str | None:
    """Bytes as text; None if they are not text. The last character of cut text may be incomplete."""
    for missing in range(4 if is_cut else 1):
        try:
            return data[: len(data) - missing].decode()
        except UnicodeDecodeError:
            continue
    return None


def _is_json(data: bytes) -> bool:
    if len(data) > MAX_JSON_BYTES or data.lstrip()[:1] not in {b"{", b"["}:
        return False
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
