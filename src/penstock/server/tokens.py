"""Where a server keeps its tokens."""

from __future__ import annotations

from penstock.access import Keyring
from penstock.config import Settings


def keyring_of(settings: Settings, *, watch: bool = True) -> Keyring | None:
    """The tokens that the settings configure: in a file, or beside the log in PostgreSQL; None if there is no place for them."""
    if settings.token_file is not None:
        return Keyring(settings.token_file)
    if settings.journal is None:
        return None
    from penstock.journal.postgres_tokens import PostgresTokens  # noqa: PLC0415  # psycopg is an extra

    return Keyring(PostgresTokens(settings.journal, watch=watch))
