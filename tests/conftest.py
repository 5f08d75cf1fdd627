"""Fixtures that more than one kind of test needs."""

import atexit
import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import httpx
import httpx._config as httpx_config
import httpx._transports.default as httpx_transports
import psutil
import pytest
import structlog
from soak.left_out import LEFT_OUT, is_everything
from support import limits
from support.by_file import ByFile
from support.known_routes import find_out_once
from support.s3 import S3Server
from support.seaweed import running_seaweed
from support.server import AllInOne
from support.set_aside import bring_back, set_aside
from support.spark_s3 import s3_streams
from support.spark_session import (
    JAVA_OPTIONS,
    LAUNCHER_OPTIONS,
    spark,
    spark_server,
)
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

__all__ = ["s3_streams", "server", "spark", "spark_server"]

LONG_FIRST = (
    "tests/spark/test_spark_kills.py",
    "tests/spark/",
    "tests/simulation/",
    "tests/chaos/",
    "tests/model/",
    "tests/journeys/test_kill",
    "tests/journeys/test_replica_",
    "tests/journeys/test_memory.py",
    "tests/journeys/",
    "tests/integration/",
    "tests/contract_http/",
)
"""What begins first, so that no core waits in the end for a long one that came last."""

SLOW = (
    "tests/contracts/test_embedded_valkey.py",
    "tests/contracts/test_s3_drive.py",
    "tests/unit/cli/test_cli_bench.py",
    "tests/unit/cli/test_cli_completion.py",
    "tests/unit/cli/test_cli_consuming.py",
    "tests/unit/cli/test_cli_guide.py",
    "tests/unit/cli/test_cli_program.py",
    "tests/unit/ingest/test_short_of_memory.py",
    "tests/unit/runtime/test_runtime_cli.py",
    "tests/unit/spark/",
)
"""What has the mark `slow` as a whole: it starts programs, or an S3 server. So has what a run of
everything leaves out."""

S3_SERVER = re.compile(r"[\[-](moto|seaweed)\b")
"""Cases of a test that need a server of S3 are `slow` too; those of the same test over the fakes,
a directory and Valkey are not."""

os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA_OPTIONS)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", LAUNCHER_OPTIONS)

# Else each client reads all certificates of the world for itself, which takes longer than a test.
setattr(httpx_transports, "create_ssl_context", cache(httpx.create_ssl_context))  # noqa: B010

# Else a request that says nothing of it is given up after five seconds, which a server may need on a
# machine that does much else.
for step in ("connect", "read", "write", "pool"):
    setattr(httpx_config.DEFAULT_TIMEOUT_CONFIG, step, 240.0)

# Else each request without a socket looks for this library in every folder of the path.
if find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]

# Else a logged exception is drawn with all that its frames know, which takes up to ten seconds.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback

# A shell lets what it starts in the background ignore Ctrl-C, and so would everything that tests
# start: with a handler here, which no other program inherits, they begin as in a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Else each service in the process of a test looks at its routes and settings anew.
find_out_once()

# What collection makes stays to the end: nothing is gained by looking for garbage in it.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """A worker, which has told all it has to tell by then, ends without taking apart what was
    collected: that took each of them 3.3 CPU seconds. Registered before what tests register, it is
    done after that."""
    config.pluginmanager.register(limits)
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort by `LONG_FIRST`; what is not named there comes last, as it was. Mark `SLOW`. Leave the
    dearest out where nobody has named any."""
    dearest = tuple(LEFT_OUT)
    if is_everything(config.args):
        left_out = [one for one in items if one.nodeid.startswith(dearest)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [one for one in items if not one.nodeid.startswith(dearest)]
    slow = (*SLOW, *dearest)
    for item in items:
        if item.nodeid.startswith(slow) or S3_SERVER.search(item.nodeid):
            item.add_marker("slow")

    def place(item: pytest.Item) -> int:
        name = item.nodeid
        return next((at for at, path in enumerate(LONG_FIRST) if name.startswith(path)), 99)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    # Else each client of S3 reads what the library knows of all services for itself.
    if session := sys.modules.get("botocore.session"):
        setattr(session, "create_loader", cache(session.create_loader))  # noqa: B010
    set_aside()
    # Else libraries complain at the end of what they believe to be lost. Not before pytest has looked
    # for what tests have lost: with all that was collected, that takes seconds in each worker.
    atexit.register(bring_back)
    gc.enable()


WORKERS_PER_CORE = 2
WORKERS_PER_CORE_OF_ALL = 3
"""With four on two cores, a third of a run of everything was nobody's: journeys and Spark wait for
longer than other tests."""
WORKER_BYTES = 1 << 30


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """For `-n auto`: more than there are cores, since tests wait for processes, disks and deadlines
    as long as they compute; and no more than there is memory for, with the servers of each."""
    if config.option.numprocesses != "auto":
        return None
    room = psutil.virtual_memory().available // WORKER_BYTES
    per_core = WORKERS_PER_CORE_OF_ALL if is_everything(config.args) else WORKERS_PER_CORE
    return max(1, min(per_core * len(os.sched_getaffinity(0)), room))


@pytest.hookimpl(optionalhook=True)
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
