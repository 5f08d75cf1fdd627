"""The real program as its users run it: processes, their ready lines, their ports, their deaths."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from support.nginx import running_nginx
from support.nursery import Forked, Nursery, nursery
from support.ports import lasting_ports
from support.s3 import S3Server
from support.stored import Stored, StoredFiles, stored_in_s3
from support.valkey import running_valkey

READY = re.compile(r"ready (http://[0-9.]+:[0-9]+)\n")
READY_SECONDS = 60
STOP_SECONDS = 30


class Process:
    """One `bottomless serve …`; may be killed and started again with the same arguments."""

    def __init__(
        self,
        arguments: Sequence[str],
        log_path: Path,
        settings: Mapping[str, str] | None = None,
        port: int = 0,
        forked_by: Nursery | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """With port 0 it has another one after each start; without a nursery, that of this
        process forks it. `prefix` runs the program elsewhere, and without forking."""
        self.url = ""
        self._arguments = list(arguments)
        self._log_path = log_path
        self._settings = dict(settings or {})
        self._port = port
        self._nursery = forked_by
        self._prefix = list(prefix)
        self._process: subprocess.Popen[str] | Forked | None = None
        self._ready = False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def spawn(self) -> None:
        """Start it if it does not run, and do not wait for anything."""
        if self._process is not None:
            return
        environment = {**os.environ, **self._settings}
        arguments = ["serve", "--port", str(self._port), *self._arguments]
        with self._log_path.open("a") as log:
            if self._nursery or not (self._prefix or "PYTHONPATH" in self._settings):
                forking = self._nursery or nursery()
                self._process = forking.spawn(arguments, environment, log)
                return
            # What is on that path is to be loaded before the program.
            program = str(Path(sys.executable).parent / "bottomless")
            self._process = subprocess.Popen(
                [*self._prefix, program, *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def start(self) -> None:
        """Start and wait for the ready line, which must be all that stdout ever carries."""
        self.spawn()
        if self._ready:
            return
        assert self._process is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(READY_SECONDS, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        match = READY.fullmatch(line)
        assert match, f"no ready line but {line!r}; the log ends: {self.log()[-2000:]}"
        self.url = match[1]
        self._ready = True

    def announced(self) -> bool:
        """Whether the ready line has come; does not wait for it."""
        if self._ready:
            return True
        assert self._process is not None
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def log(self) -> str:
        return self._log_path.read_text() if self._log_path.exists() else ""

    def kill(self) -> None:
        """SIGKILL, as a power cut of the process: nothing is flushed, nobody is told."""
        self.send_kill()
        self._finish()

    def send_kill(self) -> None:
        """SIGKILL, without waiting for the end; `kill` does that."""
        assert self._process is not None
        self._process.kill()

    def send(self, which: signal.Signals) -> None:
        """Send one, and do not wait for anything."""
        assert self._process is not None
        self._process.send_signal(which)

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop and wait; returns the exit code."""
        self.send(with_signal)
        return self._finish()

    def wait_dead(self) -> int:
        """Wait until it has ended by itself; returns the exit code."""
        return self._finish()

    @property
    def started(self) -> bool:
        """It was started, and nobody here has waited for its end yet."""
        return self._process is not None

    @property
    def is_dead(self) -> bool:
        """It was started, and has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def _finish(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        code = self._process.wait(STOP_SECONDS)
        rest = self._process.stdout.read()
        self._process.stdout.close()
        self._process = None
        self._ready = False
        assert not rest or READY.fullmatch(rest), f"stdout carried more: {rest[:200]!r}"
        return code

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill()


class FourProcesses:
    """The four services apart, as docs/deployment.md says: they share a store and a coordination.

    Objects lie in a directory of their own, unless they are told of a store. In front of them
    is nginx.
    """

    names: tuple[str, ...] = ("manifest", "ingest", "uploader", "reader")
    """Each after those that it calls."""

    def __init__(
        self,
        directory: Path,
        coordination_url: str,
        settings: Mapping[str, str] | None = None,
        stored: Stored | None = None,
    ) -> None:
        self.url = ""
        self.coordination_url = coordination_url
        self.ingest_dir = directory / "data" / "ingest"
        self.stored = stored or StoredFiles(directory / "objects")
        sockets = {name: f"unix://{directory}/{name}.sock" for name in self.names}
        common = {
            "BOTTOMLESS_STORE_URL": self.stored.url,
            "BOTTOMLESS_COORDINATION_URL": coordination_url,
            "BOTTOMLESS_MANIFEST_URL": sockets["manifest"],
            "BOTTOMLESS_INGEST_URL": sockets["ingest"],
            "BOTTOMLESS_DATA_DIR": str(directory / "data"),
            **self.stored.credentials,
            **(settings or {}),
        }
        self._common = common
        self._directory = directory
        self.services = {
            name: self._process(name, name, port)
            for name, port in zip(self.names, lasting_ports(len(self.names)), strict=True)
        }

    def another(self, name: str) -> Process:
        """One more of a service, which nginx does not know of. Not started."""
        return self._process(name, f"{name}-2", lasting_ports(1)[0])

    def _process(self, name: str, called: str, port: int) -> Process:
        listens = {
            f"BOTTOMLESS_{name.upper()}_INTERNAL_LISTEN": f"unix://{self._directory}/{called}.sock"
        }
        return Process([name], self._directory / f"{called}.log", {**self._common, **listens}, port)

    def __getitem__(self, name: str) -> Process:
        return self.services[name]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)

    def kill(self, *names: str) -> None:
        victims = [self.services[name] for name in names or self.names]
        for victim in victims:
            victim.send_kill()
        for victim in victims:
            victim.kill()

    def spawn(self) -> None:
        for process in self.services.values():
            process.spawn()

    def start(self) -> None:
        self.spawn()
        for process in self.services.values():
            process.start()


class TwoNodes(FourProcesses):
    """The same with a second ingest node, on a disk of its own."""

    names: tuple[str, ...] = ("manifest", "ingest", "uploader", "reader", "ingest-2")

    def __init__(
        self, directory: Path, coordination_url: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self.names = FourProcesses.names
        super().__init__(directory, coordination_url, settings)
        self.names = TwoNodes.names
        url = self.internal_url("ingest-2")
        own = {
            "BOTTOMLESS_INGEST_INTERNAL_LISTEN": url,
            "BOTTOMLESS_INGEST_URL": url,
            "BOTTOMLESS_DATA_DIR": str(directory / "data-2"),
        }
        self.services["ingest-2"] = Process(
            ["ingest"], directory / "ingest-2.log", {**self._common, **own}, lasting_ports(1)[0]
        )
        self.ingest_dirs = {"ingest": self.ingest_dir, "ingest-2": directory / "data-2" / "ingest"}

    def internal_url(self, name: str) -> str:
        return f"unix://{self._directory}/{name}.sock"

    def internal(self, name: str) -> httpx.Client:
        """A client of an internal listener."""
        transport = httpx.HTTPTransport(uds=f"{self._directory}/{name}.sock")
        return httpx.Client(transport=transport, base_url="http://internal", timeout=30)


@contextmanager
def two_nodes(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[TwoNodes]:
    """Start a Valkey, two ingest nodes and the three other services, and nginx."""
    with ExitStack() as running:
        valkey = running.enter_context(running_valkey(directory / "valkey"))
        deployment = TwoNodes(directory, valkey.url, settings)
        deployment.spawn()
        for process in deployment.services.values():
            running.enter_context(process)
        urls = {name: process.url for name, process in deployment.services.items()}
        deployment.url = running.enter_context(
            running_nginx(directory / "nginx", urls, urls["ingest-2"])
        )
        yield deployment


@contextmanager
def four_processes(
    directory: Path, settings: Mapping[str, str] | None = None, s3: S3Server | None = None
) -> Iterator[FourProcesses]:
    """Start a Valkey, the four services, each after those that it calls, and nginx."""
    with ExitStack() as running:
        valkey = running.enter_context(running_valkey(directory / "valkey"))
        stored = None if s3 is None else running.enter_context(stored_in_s3(s3))
        deployment = FourProcesses(directory, valkey.url, settings, stored)
        for process in deployment.services.values():
            running.enter_context(process)
        urls = {name: process.url for name, process in deployment.services.items()}
        deployment.url = running.enter_context(running_nginx(directory / "nginx", urls))
        yield deployment
