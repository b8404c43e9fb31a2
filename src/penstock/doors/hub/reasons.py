"""Why the hub refuses: every `details.reason` of hub:error, with what it means."""

from __future__ import annotations

REASONS: dict[str, str] = {
    "invalid_topic": "the topic has other characters, or is empty or too long",
    "missing_topic": "there is no topic",
    "wildcard_topic": "a publish to a pattern",
}
