"""The command `penstock` with shorter times than anybody should use: `TIMES='{"ttl": 3}' python short_times.py router run …`.

What the router does is untouched: a test that would wait for minutes waits for seconds.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial

from penstock.cli.main import main
from penstock.router import configuration, host
from penstock.router.core import outcome
from penstock.router.options import RouterOptions
from penstock.router.standby import Standby

VARIABLE = "TIMES"


def shorten(times: dict[str, float]) -> None:
    """Take these times instead of the usual ones; KeyError for one that there is not."""
    changes = {
        "retry_pause": lambda seconds: setattr(host, "RouterOptions", partial(RouterOptions, retry_pause=seconds)),
        "delay": lambda seconds: setattr(outcome, "DEFAULT_DELAY", round(seconds)),
        "config_pause": lambda seconds: setattr(configuration, "PAUSE", seconds),
        "ttl": lambda seconds: setattr(
            host,
            "Standby",
            partial(Standby, ttl=seconds, renew_every=seconds / 3, retry_every=seconds / 15, margin=seconds / 6),
        ),
    }
    for name, seconds in times.items():
        changes[name](seconds)


if __name__ == "__main__":
    shorten(json.loads(os.environ[VARIABLE]))
    sys.exit(main())
