"""What every test shares: how hard hypothesis tries, and that Ctrl-C is heard.

HYPOTHESIS_PROFILE chooses: `dev` (the default) is small and finds the same each time; `ci` tries more, at random, and prints
what repeats a failure; `thorough` is for a night.
"""

import os
import signal

from hypothesis import HealthCheck, settings

# No deadline and no "too slow": the machine may be busy with other tests, and pytest-timeout bounds each test as a whole.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("dev", _PATIENT, max_examples=25, stateful_step_count=30, derandomize=True)
settings.register_profile("ci", _PATIENT, max_examples=100, stateful_step_count=50, print_blob=True)
settings.register_profile("thorough", _PATIENT, max_examples=2_000, stateful_step_count=200, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# A shell starts what runs in the background deaf to Ctrl-C, and so would be every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
