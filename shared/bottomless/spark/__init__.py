"""Spark: a stream as a DataFrame, by a data source in pure Python.

    from pyspark.sql import SparkSession
    from bottomless.spark import configure, register

    spark = configure(SparkSession.builder).getOrCreate()
    register(spark)
    spark.read.format("bottomless").options(url="http://127.0.0.1:8080", stream="orders").load()

`options.py` lists the options, `plan.py` decides who reads what, `read.py` runs in
Spark's workers, `java.py` finds a Java for machines that have none.
"""

from bottomless.spark.session import configure, register

__all__ = ["configure", "register"]
