"""Where Spark looks for data sources: every top-level module `pyspark_*` with a `DefaultSource`.

Tiny on purpose: one of these that fails to import hides every other data source.
"""

from bottomless.spark.source import BottomlessSource as DefaultSource

__all__ = ["DefaultSource"]
