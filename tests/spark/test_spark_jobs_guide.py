"""docs/spark-jobs.md is followed word for word, and shows what it says."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.command_line import CommandLine
from support.page_run import PageRun
from support.pages import ROOT, steps_of
from support.server import AllInOne
from support.spark_session import spark

__all__ = ["spark"]

SAID = "127.0.0.1:8080"


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("spark")
def test_the_guide_to_jobs_does_what_it_says(tmp_path: Path) -> None:
    steps = steps_of(ROOT / "docs/spark-jobs.md")
    assert sum("bottomless spark " in step.text for step in steps) == 6
    with AllInOne(tmp_path / "server") as server:
        here = server.url.removeprefix("http://")
        cli = CommandLine(server.url, tmp_path)
        settings = {"BOTTOMLESS_URL": server.url}
        with PageRun(tmp_path / "reader", {SAID: here}, settings, cli) as reader:
            reader.take(steps)
    assert SparkSession.getActiveSession() is not None
