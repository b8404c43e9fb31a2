"""The data pipeline: the log as a Spark data source and sink, the lake, and the jobs between them. The only package that imports pyspark."""
