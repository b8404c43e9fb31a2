"""The shop's worker: sends a mail for every order that asks for one. `penstock worker demo.mailer:worker` runs it.

The mail server of the demo refuses one domain until the file that PENSTOCK_DEMO_REPAIRED names exists.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock import Worker

QUEUE = "mails"
BROKEN_DOMAIN = "broken.example"
REPAIRED = "PENSTOCK_DEMO_REPAIRED"

worker = Worker()


class MailRefused(Exception):
    """The mail server does not take a mail."""


@worker.task(QUEUE, max_retries=2, backoff=(0.5, 2))
def confirm_order(to: str, order: int) -> None:
    """Send the mail that confirms an order."""
    if to.endswith(BROKEN_DOMAIN) and not Path(os.environ[REPAIRED]).exists():
        raise MailRefused(f"550 {BROKEN_DOMAIN}: no such domain (order {order})")
