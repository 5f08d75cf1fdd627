"""Deployments: services as users run them, as processes on a directory or a bucket.

Users see one address, whatever number of processes stands behind it.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

import httpx
import pytest

from support.ports import lasting_ports
from support.separate_processes import four_processes
from support.server import AllInOne
from support.stored import Stored


class Deployment(Protocol):
    """What a test can do with any deployment. It runs already."""

    @property
    def url(self) -> str:
        """Of all public paths."""
        ...

    @property
    def stored(self) -> Stored: ...

    @property
    def ingest_dir(self) -> Path:
        """Where ingest keeps its segments."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """Who can be killed."""
        ...

    def client(self) -> httpx.Client: ...

    def internal(self, name: str) -> httpx.Client:
        """A client of the internal listener of a service."""
        ...

    def kill(self, *names: str) -> None:
        """SIGKILL these at the same moment; nobody named is everybody."""
        ...

    def spawn(self) -> None:
        """Start again who does not run, and do not wait for anything."""
        ...

    def start(self) -> None:
        """Start again who does not run, and return when all are ready."""
        ...


Start = Callable[
    [pytest.FixtureRequest, Path, Mapping[str, str]], AbstractContextManager[Deployment]
]
"""Start a deployment on an empty directory, with settings; the url stays over deaths."""

DEPLOYMENTS: Final[dict[str, Start]] = {
    "all in one on files": lambda _, directory, settings: AllInOne(
        directory / "data", settings, *lasting_ports(1)
    ),
    "four processes on S3": lambda request, directory, settings: four_processes(
        directory, settings, request.getfixturevalue("seaweed")
    ),
}
