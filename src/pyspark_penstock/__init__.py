"""The name under which Spark finds Penstock: `spark.read.format("penstock")` looks for `DefaultSource` here.

Empty until the pipeline exists; nothing else ever lives in this package.
"""
