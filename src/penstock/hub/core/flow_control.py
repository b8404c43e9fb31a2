"""How fast a client is sent messages, and how much waits for it."""

from __future__ import annotations

from penstock.durations import SECOND
from penstock.hub.core.messages import FlowChanged, Metrics, Pause, QueueStats, QueueStatsResponse, Resume
from penstock.hub.core.request import Ask
from penstock.hub.core.state import Floor


def pause(floor: Floor, ask: Ask[Pause]) -> None:
    """Hold messages back; replies still come."""
    session = ask.session
    if not session.is_paused:
        session.is_paused = True
        session.holds += 1
    floor.reply(ask, FlowChanged(paused=True, queue_depth=len(session.held)))


def resume(floor: Floor, ask: Ask[Resume]) -> None:
    """Send what was held back, and go on."""
    session, now = ask.session, ask.now
    floor.reply(ask, FlowChanged(paused=False, queue_depth=len(session.held)))
    if session.is_paused:
        session.is_paused = False
        session.holds -= 1
        floor.let_go(session, now)


def queue_stats(floor: Floor, ask: Ask[QueueStats]) -> None:
    """Say what waits for this connection."""
    session, now = ask.session, ask.now
    seconds = max((now - session.opened_at) / SECOND, 1)
    most = floor.rules.max_outbox_messages
    stats = QueueStatsResponse(
        queue_depth=len(session.outbox) + len(session.held),
        queue_bytes=session.outbox.bytes + session.held.bytes,
        processing_rate=round(session.sent / seconds, 3),
        pause_threshold=most,
        resume_threshold=most // 2,
        paused=session.is_paused,
    )
    floor.reply(ask, stats)


def metrics(floor: Floor, ask: Ask[Metrics]) -> None:
    """Say what the hub has done in the minute that runs."""
    now = ask.now
    floor.reply(ask, floor.numbers.minute(now))
