"""The command to install an extra, for hints."""

from __future__ import annotations

PUBLISHED = False
"""Whether Penstock is on a package index. Until then it is installed from a checkout: `pip install penstock` would fail."""


def how_to_install(*extras: str) -> str:
    """The command that installs Penstock with these extras, for a hint."""
    chosen = f"[{','.join(extras)}]" if extras else ""
    return f"pip install 'penstock{chosen}'" if PUBLISHED else f"pip install '.{chosen}' in a checkout of Penstock"
