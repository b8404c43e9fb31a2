"""How to install an extra, as hints show it."""

from __future__ import annotations

PUBLISHED = False
"""Whether a package index has Penstock. Until then it is installed from a checkout: `pip install penstock` would find nothing."""


def how_to_install(*extras: str) -> str:
    """The command that installs Penstock with these extras, as a hint shows it."""
    chosen = f"[{','.join(extras)}]" if extras else ""
    return f"pip install 'penstock{chosen}'" if PUBLISHED else f"pip install '.{chosen}' in a checkout of Penstock"
