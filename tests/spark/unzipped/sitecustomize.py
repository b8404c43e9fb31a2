"""Spark's Python processes import PySpark as it is installed, and not from Spark's zip.

A zip has no bytecode, so each process would compile PySpark again: 1.4 s of work in place of 0.45 s, and Spark gives a process
ten seconds to start.
"""

import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith("/python/lib/pyspark.zip")]
