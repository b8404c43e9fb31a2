"""How an extra is installed: the one place that knows what hints say about it."""

from __future__ import annotations

PUBLISHED = False
"""Whether an index has the package. Until then it is installed from a checkout, and `pip install penstock` would find nothing."""


def how_to_install(*extras: str) -> str:
    """The command that installs Penstock with these extras, as a hint shows it."""
    chosen = f"[{','.join(extras)}]" if extras else ""
    return f"pip install 'penstock{chosen}'" if PUBLISHED else f"pip install '.{chosen}' in a checkout of Penstock"
