"""The rules of the pipeline: options, offsets, plans. No Spark, no I/O, no clock."""
