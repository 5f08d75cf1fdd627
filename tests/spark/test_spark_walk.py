"""docs/spark-walk.md: a year of real flights, word for word, with pandas' figures beside Spark's."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.page_run import PageRun
from support.pages import ROOT
from support.ports import lasting_ports

PAGE = ROOT / "docs/spark-walk.md"
SAID = "127.0.0.1:8080"


@pytest.mark.timeout(900)
def test_the_walk_does_what_it_says(spark: SparkSession, tmp_path: Path) -> None:
    """In the session that is there: what the page makes of its builder is the same one."""
    (port,) = lasting_ports(1)
    here = f"127.0.0.1:{port}"
    settings = {"BOTTOMLESS_PORT": str(port)}
    with PageRun(tmp_path / "reader", {SAID: here}, settings) as reader:
        reader.follow(PAGE)
        assert reader.names["spark"] is spark
