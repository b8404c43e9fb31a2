"""The rules of the pipeline: options, offsets, plans, manifests. No Spark, no I/O, no clock."""
