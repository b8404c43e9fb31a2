"""A value as an error may show it, and as it may keep it."""

from __future__ import annotations


def shown(value: object, *, bare: bool = False) -> str:
    """The value as an error may show it: never more than a line of it, whatever its own repr does."""
    if isinstance(value, str | bytes):
        value = value[:121]  # a repr of megabytes takes time, and is cut anyway
    if bare and isinstance(value, str):
        text = value
    else:
        try:
            text = repr(value)
        except Exception:  # noqa: BLE001  # a broken repr must not hide the error that shows it
            text = f"<{type(value).__name__}>"
    return text if len(text) <= 120 else f"{text[:117]}..."


def kept(value: object) -> object:
    """The value as an error may keep it: something that can be pickled."""
    return value if value is None or type(value) in {str, int, float, bytes, bool} else shown(value)
