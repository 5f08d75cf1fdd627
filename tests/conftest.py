"""Fixtures that more than one kind of test needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.s3 import S3Server
from support.seaweed import running_seaweed
from support.server import AllInOne
from support.spark_s3 import world
from support.spark_session import spark, spark_server
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

__all__ = ["server", "spark", "spark_server", "world"]

ONE_SESSION = ("tests/spark/", "tests/journeys/test_follow_one_record.py")
"""Where tests need Spark, one session of which takes a core for itself."""
OWN_DRIVERS = ("tests/spark/test_spark_kills.py",)
"""Where they start drivers of their own instead."""
EACH_APART = ("tests/chaos/test_chaos.py", "tests/journeys/test_kill.py")
"""Long tests that share nothing with the others of their file."""


class ByFile(LoadScopeScheduling):
    """Which tests stay together when several processes share them: those of a file, for the
    servers that they share, and all that need Spark."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path.startswith(ONE_SESSION) and path not in OWN_DRIVERS:
            return "spark"
        return nodeid if path in EACH_APART else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """The one above, whatever `--dist` says: tests that are torn apart start servers twice."""
    return ByFile(config, log)


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
