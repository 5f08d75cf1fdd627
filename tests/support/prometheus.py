"""A real Prometheus for tests, with the files of deploy/, where only addresses and times are others.

It is the one of PATH, as Debian's package `prometheus` installs it, or that of the directory which
BOTTOMLESS_TEST_PROMETHEUS names: `apt-get download prometheus && dpkg -x prometheus_*.deb there`
puts it into `there/usr/bin` and starts nothing.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

from support.ports import lasting_ports
from support.programs import running_program
from support.waiting import until

DIRECTORY: Final = Path(__file__).parents[2] / "deploy" / "prometheus"
START_SECONDS: Final = 120
_OWN: Final = re.compile(r"\b(?:bottomless|process|python)_[a-z_]+")


def rules() -> list[dict[str, Any]]:
    """The shipped alarms."""
    (group,) = yaml.safe_load((DIRECTORY / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def targets() -> dict[str, str]:
    """What the shipped example asks: the name of each service, and the address."""
    (job,) = yaml.safe_load((DIRECTORY / "prometheus.yml").read_text())["scrape_configs"]
    assert job["job_name"] == "bottomless"
    return {
        one["labels"]["service"]: address
        for one in job["static_configs"]
        for address in one["targets"]
    }


def metrics_of(expression: str) -> set[str]:
    """The metrics of ours that a rule names."""
    return set(_OWN.findall(expression))


def program(name: str) -> str:
    """One of the package's programs; a test that wants it is skipped where it is not installed."""
    directory = os.environ.get("BOTTOMLESS_TEST_PROMETHEUS")
    if (path := shutil.which(name, path=directory)) is not None:
        return path
    assert directory is None, f"BOTTOMLESS_TEST_PROMETHEUS names a directory without {name}"
    pytest.skip(f"{name} is not installed here; Debian's package prometheus has it")


def promtool(*words: str) -> None:
    """Let Prometheus' own tool check something."""
    done = subprocess.run(
        [program("promtool"), *words], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def running_prometheus(directory: Path, placed: Callable[[str], str]) -> Iterator[httpx.Client]:
    """Start one on the shipped files; yields a client of its API.

    `placed` says where an address of the example is on this machine. Call from the main thread
    only: the kernel kills it with it.
    """
    directory.mkdir(parents=True)
    shutil.copy(DIRECTORY / "alerts.yml", directory)
    shipped = yaml.safe_load(placed((DIRECTORY / "prometheus.yml").read_text()))
    # Often, so that nobody waits for the first round of either.
    shipped["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    configuration = directory / "prometheus.yml"
    configuration.write_text(yaml.safe_dump(shipped))
    (port,) = lasting_ports(1)
    command = [
        program("prometheus"),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (
        running_program(command, directory / "prometheus.log") as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        until(lambda: _ready(client) or process.poll() is not None, START_SECONDS, "prometheus")
        assert process.poll() is None, (directory / "prometheus.log").read_text()
        yield client


def answer(client: httpx.Client, path: str, **query: str) -> Any:
    """The data of an answer of Prometheus' API."""
    return client.get(f"/api/v1/{path}", params=query).raise_for_status().json()["data"]


def _ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").is_success
    except httpx.TransportError:
        return False
