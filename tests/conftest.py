"""Fixtures that more than one kind of test needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.s3 import S3Server
from support.seaweed import running_seaweed
from support.server import AllInOne
from support.spark_session import spark

__all__ = ["server", "spark"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests stay together when several processes share them: those of a file, for
    its fixtures, and all that need Spark, since one session of it takes a core for itself."""
    for item in items:
        needs_spark = "spark" in getattr(item, "fixturenames", ())
        together = "spark" if needs_spark else str(item.path)
        if item.get_closest_marker("apart") is None:
            item.add_marker(pytest.mark.xdist_group(together))


SMALL_SETTINGS = {"BOTTOMLESS_MANIFEST_FANOUT": "4", "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "500"}
"""Small enough that a handful of fragments makes groups, and local files go within a test."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AllInOne]:
    """The all-in-one on an empty directory."""
    with AllInOne(tmp_path / "data", SMALL_SETTINGS) as running:
        yield running


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server for all tests, each of which takes a prefix of its own."""
    with running_seaweed(tmp_path_factory.mktemp("seaweed")) as running:
        yield running
