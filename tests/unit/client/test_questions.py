"""What the remote client asks again when a connection is lost: only what changes nothing."""

from __future__ import annotations

import inspect

from penstock.wire.operations import QUESTIONS, Operations


def test_every_operation_that_changes_nothing_is_asked_again_and_no_other() -> None:
    names = {name for name, _ in inspect.getmembers(Operations, inspect.iscoroutinefunction) if not name.startswith("_")}
    asked_again = {name for name in names if name.startswith(QUESTIONS)}
    assert names - asked_again == {
        *("create_topic", "update_topic", "delete_topic", "publish", "create_schema", "commit_schema", "delete_schema"),
        *(
            "create_subscription",
            "update_subscription",
            "delete_subscription",
            "pause_subscription",
            "resume_subscription",
            "seek",
        ),
        *("pull", "acknowledge", "modify_ack_deadline", "create_snapshot", "delete_snapshot"),
        *(
            "create_queue",
            "update_queue",
            "delete_queue",
            "enqueue",
            "consume",
            "ack_messages",
            "nack_messages",
            "extend_message",
        ),
        *("purge_queue", "pause_queue", "resume_queue"),
        *("retry_dead_letter", "redrive_dead_letters", "purge_dead_letters"),
    }
