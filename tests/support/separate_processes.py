"""Deployments whose services run as a process each: starting, stopping, asking and killing them."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, TypeVar

import httpx

from bottomless.model.names import StreamId
from support.nginx import running_nginx
from support.ports import lasting_ports
from support.processes import Process, internal_client
from support.s3 import S3Server
from support.stored import Stored, StoredFiles, stored_in_s3
from support.stored_stream import StoredStream
from support.valkey import running_valkey

P = TypeVar("P", bound="FourProcesses")
_LOG_END: Final = 1_500
"""Characters of the end of a log that are shown."""


class SeparateProcesses:
    """Services of one store and one coordination, each a process of its own.

    Whoever makes one fills `services`, each after those that it calls.
    """

    names: tuple[str, ...]
    """The services that run all the time; `services` may have more."""

    def __init__(self, directory: Path, stored: Stored, coordination_url: str) -> None:
        self.directory = directory
        self.stored = stored
        self.coordination_url = coordination_url
        self.services: dict[str, Process] = {}
        self.url = ""
        """Of all public paths, once something stands in front of the services."""

    def __getitem__(self, name: str) -> Process:
        return self.services[name]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=240)

    def internal(self, name: str) -> httpx.Client:
        """A client of the internal listener of a service."""
        return internal_client(self.internal_url(name))

    def internal_url(self, name: str) -> str:
        return f"unix://{self.directory}/{name}.sock"

    def stored_stream(self, stream_id: StreamId) -> StoredStream:
        """A stream as it lies in the store and in coordination, past all services."""
        return StoredStream(self.stored, self.coordination_url, stream_id)

    def kill(self, *names: str) -> None:
        """SIGKILL these at the same moment; nobody named is everybody."""
        victims = [self.services[name] for name in names or self.names]
        for victim in victims:
            victim.send_kill()
        for victim in victims:
            victim.kill()

    def spawn(self) -> None:
        """Start again who does not run, and do not wait for anything."""
        for name in self.names:
            self.services[name].spawn()

    def start(self) -> None:
        """Start again who does not run, and return when all are ready."""
        self.spawn()
        for name in self.names:
            self.services[name].start()

    def log_ends(self) -> dict[str, str]:
        return {name: process.log()[-_LOG_END:] for name, process in self.services.items()}


def start_behind_nginx(deployment: SeparateProcesses, running: ExitStack) -> None:
    """Start all services and nginx in front of them; what runs of them at the end is killed."""
    for process in deployment.services.values():
        running.push(process)
    deployment.start()
    urls = {name: deployment[name].url for name in deployment.names}
    deployment.url = running.enter_context(
        running_nginx(deployment.directory / "nginx", urls, urls.get("ingest-2"))
    )


class FourProcesses(SeparateProcesses):
    """The four services apart, as docs/deployment.md says: they share a store and a coordination.

    Objects lie in a directory of their own, unless they are told of a store. In front of them
    is nginx.
    """

    names: tuple[str, ...] = ("manifest", "ingest", "uploader", "reader")

    def __init__(
        self,
        directory: Path,
        coordination_url: str,
        settings: Mapping[str, str] | None = None,
        stored: Stored | None = None,
        own_settings: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`own_settings` are, by its name, what one process has otherwise than the others."""
        self._own_settings = own_settings or {}
        stored = stored or StoredFiles(directory / "objects")
        super().__init__(directory, stored, coordination_url)
        self.ingest_dir = directory / "data" / "ingest"
        self._settings = {
            "BOTTOMLESS_STORE_URL": stored.url,
            "BOTTOMLESS_COORDINATION_URL": coordination_url,
            "BOTTOMLESS_MANIFEST_URL": self.internal_url("manifest"),
            "BOTTOMLESS_INGEST_URL": self.internal_url("ingest"),
            "BOTTOMLESS_DATA_DIR": str(directory / "data"),
            **stored.credentials,
            **(settings or {}),
        }
        ports = lasting_ports(len(self.names))
        self.services = {
            name: self._process(name, port) for name, port in zip(self.names, ports, strict=True)
        }

    def another(
        self, kind: str, number: int = 2, settings: Mapping[str, str] | None = None
    ) -> Process:
        """One more of a service, which nginx does not know of. Not started."""
        return self._process(f"{kind}-{number}", lasting_ports(1)[0], settings)

    def _process(self, name: str, port: int, more: Mapping[str, str] | None = None) -> Process:
        kind = name.partition("-")[0]
        settings = {
            **self._settings,
            f"BOTTOMLESS_{kind.upper()}_INTERNAL_LISTEN": self.internal_url(name),
            **self._own_settings.get(name, {}),
            **(more or {}),
        }
        return Process([kind], self.directory / f"{name}.log", settings, port)


class FiveProcesses(FourProcesses):
    """The same with the queues service: all that there is, and what docker-compose.yml starts.

    Tests of streams do without it.
    """

    names: tuple[str, ...] = (*FourProcesses.names, "queues")

    def _process(self, name: str, port: int, more: Mapping[str, str] | None = None) -> Process:
        own = {"BOTTOMLESS_QUEUES_URL": self.internal_url(name)} if name == "queues" else {}
        return super()._process(name, port, {**own, **(more or {})})


class TwoNodes(FourProcesses):
    """The same with a second ingest node, on a disk of its own."""

    names: tuple[str, ...] = (*FourProcesses.names, "ingest-2")

    def __init__(
        self,
        directory: Path,
        coordination_url: str,
        settings: Mapping[str, str] | None = None,
        second_settings: Mapping[str, str] | None = None,
    ) -> None:
        """`second_settings` are those of the second node alone."""
        second = {
            **(second_settings or {}),
            "BOTTOMLESS_INGEST_URL": f"unix://{directory}/ingest-2.sock",
            "BOTTOMLESS_DATA_DIR": str(directory / "data-2"),
        }
        super().__init__(directory, coordination_url, settings, own_settings={"ingest-2": second})
        self.ingest_dirs = {"ingest": self.ingest_dir, "ingest-2": directory / "data-2" / "ingest"}


class ThreeNodes(FourProcesses):
    """The same with three ingest nodes, each on a disk of its own."""

    names: tuple[str, ...] = (*FourProcesses.names, "ingest-2", "ingest-3")

    def __init__(
        self, directory: Path, coordination_url: str, settings: Mapping[str, str] | None = None
    ) -> None:
        own = {
            f"ingest-{number}": {
                "BOTTOMLESS_INGEST_URL": f"unix://{directory}/ingest-{number}.sock",
                "BOTTOMLESS_DATA_DIR": str(directory / f"data-{number}"),
            }
            for number in (2, 3)
        }
        super().__init__(directory, coordination_url, settings, own_settings=own)
        others = {name: directory / f"data-{name[-1]}" / "ingest" for name in own}
        self.ingest_dirs = {"ingest": self.ingest_dir, **others}


@contextmanager
def three_nodes(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[ThreeNodes]:
    """Start a Valkey, three ingest nodes and the three other services, and nginx."""
    with ExitStack() as running:
        valkey = running.enter_context(running_valkey(directory / "valkey"))
        deployment = ThreeNodes(directory, valkey.url, settings)
        start_behind_nginx(deployment, running)
        yield deployment


@contextmanager
def two_nodes(
    directory: Path,
    settings: Mapping[str, str] | None = None,
    second_settings: Mapping[str, str] | None = None,
) -> Iterator[TwoNodes]:
    """Start a Valkey, two ingest nodes and the three other services, and nginx."""
    with ExitStack() as running:
        valkey = running.enter_context(running_valkey(directory / "valkey"))
        deployment = TwoNodes(directory, valkey.url, settings, second_settings)
        start_behind_nginx(deployment, running)
        yield deployment


@contextmanager
def four_processes(
    directory: Path, settings: Mapping[str, str] | None = None, s3: S3Server | None = None
) -> Iterator[FourProcesses]:
    """Start a Valkey, the four services and nginx."""
    with _apart(FourProcesses, directory, settings, s3) as deployment:
        yield deployment


@contextmanager
def five_processes(
    directory: Path, settings: Mapping[str, str] | None = None, s3: S3Server | None = None
) -> Iterator[FiveProcesses]:
    """Start a Valkey, the four services, queues and nginx."""
    with _apart(FiveProcesses, directory, settings, s3) as deployment:
        yield deployment


@contextmanager
def _apart(
    make: type[P], directory: Path, settings: Mapping[str, str] | None, s3: S3Server | None
) -> Iterator[P]:
    with ExitStack() as running:
        valkey = running.enter_context(running_valkey(directory / "valkey"))
        stored = None if s3 is None else running.enter_context(stored_in_s3(s3))
        deployment = make(directory, valkey.url, settings, stored)
        start_behind_nginx(deployment, running)
        yield deployment
