"""`format("penstock")`: the data source of Spark, for reading and writing, in batches and as a stream."""

# ruff: noqa: N802  # the names are Spark's
from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter

from penstock.pipeline.core.options import from_environment, schema_of, source_options, table_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PenstockDataSource(DataSource):
    """The data source. Readers and writers are imported when they are used: a task that reads needs no writer."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(from_environment(options, os.environ))

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "penstock"

    def schema(self) -> str | StructType:
        """The columns of the view, or of the table."""
        if table := table_options(self.options):
            from penstock.pipeline.table_reader import table_schema  # noqa: PLC0415  # most reads do not use a lake

            return table_schema(table)
        return schema_of(source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        if table := table_options(self.options):
            from penstock.pipeline.table_reader import TableReader  # noqa: PLC0415

            return TableReader(table, schema)
        from penstock.pipeline.reader import BatchReader  # noqa: PLC0415

        return BatchReader(source_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`."""
        if table := table_options(self.options):
            from penstock.pipeline.table_reader import TableStreamReader  # noqa: PLC0415

            return TableStreamReader(table, schema)
        from penstock.pipeline.stream_reader import StreamReader  # noqa: PLC0415

        return StreamReader(source_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`."""
        from penstock.pipeline.sink import BatchSink  # noqa: PLC0415

        return BatchSink(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For `df.writeStream`."""
        from penstock.pipeline.sink import StreamSink  # noqa: PLC0415

        return StreamSink(self.options, schema, overwrite)
