"""A Python prompt with a session that knows streams: `python -i -m bottomless.spark.shell`.

spark                     the session
stream("orders")          a stream of the server of BOTTOMLESS_URL as a DataFrame; options of
                          a read by name, such as stream("orders", columns="offset,key")
options("orders")         the same as options, for jobs and writes
"""

import os
import sys
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession

from bottomless.spark.command_line import URL_DEFAULT, URL_VARIABLE
from bottomless.spark.session import configure, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

URL: Final = os.environ.get(URL_VARIABLE) or URL_DEFAULT


def options(name: str, **more: Any) -> dict[str, str]:
    """Make the options of a read of a stream."""
    return {"url": URL, "stream": name, **{key: str(value) for key, value in more.items()}}


def stream(name: str, **more: Any) -> "DataFrame":
    """Read a stream as it is now, as a DataFrame."""
    session = SparkSession.getActiveSession()
    assert session is not None
    return session.read.format("bottomless").options(**options(name, **more)).load()


if __name__ == "__main__":
    spark = configure(SparkSession.builder.appName("bottomless")).getOrCreate()
    register(spark)
    sys.stderr.write(f"spark is the session, stream(name) a stream of {URL} as a DataFrame\n")
