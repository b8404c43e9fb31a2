"""How the Spark of our tests is set up: quick to start, and quick with a few rows."""

import os
from pathlib import Path

PYTHONPATH = os.pathsep.join([str(Path(__file__).with_name("unzipped")), *filter(None, [os.environ.get("PYTHONPATH")])])
"""For the environment that a Spark is started in; see `unzipped/sitecustomize.py`."""

QUICK = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # A process that lives for a minute or two never earns back what the second compiler and a parallel collector cost.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""For every Spark that a test starts."""

SMALL_DATA = {
    # Compiling a query to bytecode, and planning it again while it runs, takes longer than running it over ten rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For the session that the tests share. Jobs in processes of their own run with Spark's defaults."""
