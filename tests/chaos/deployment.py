"""Every service as a process of its own, with everything between them in reach of a test.

    clients ─ link ─ nginx ─ ingest, manifest, reader, queues
    ingest, uploader, queues ─ link ─ manifest               each ingest has a disk
    ingest-2, ingest-3, reader ─ link ─ manifest-2           services ─ proxy ─ S3
    all others ─ link ─ ingest, ingest-2, ingest-3           services ─ a link each ─ Valkey
    uploader-2 is started by some events                     ingest-3 is there where a plan says so

What ends by itself is started again, as a supervisor does, and remembered: a process that was
ready has no reason ever to do so.
"""

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from support.fault_deployment import READ_SECONDS
from support.fault_deployment import SETTINGS as STORE_SETTINGS
from support.fault_proxy import FaultProxy
from support.links import Address, Links, running_links
from support.nursery import Nursery, running_nursery
from support.on_s3 import stored_behind_proxy
from support.ports import lasting_ports
from support.processes import Process
from support.s3 import CREDENTIALS, S3Server
from support.separate_processes import SeparateProcesses, start_behind_nginx
from support.stored import StoredInS3
from support.valkey import running_valkey
from support.waiting import until

from bottomless_server.coordination.embedded import EmbeddedValkey
from bottomless_server.runtime.process.service import (
    EXIT_CANNOT_START,
    EXIT_KILLED,
    EXIT_STOP_FAILED,
)
from chaos.disks import Disk, open_disk

NAMES: Final = ("manifest", "manifest-2", "ingest", "ingest-2", "uploader", "reader")
"""Who runs all the time."""
QUEUES: Final = "queues"
"""Runs too where a plan says so."""
SPARE: Final = "uploader-2"
INGESTS: Final = ("ingest", "ingest-2")
_FENCED: Final = re.compile(r"an upload session ended .*\bfenced\b", re.IGNORECASE)
"""Whatever way the log has of writing a code."""
_BUG: Final = re.compile(r".*( met a bug|unexpected)")
_BUG_SIZE: Final = 6_000
MANIFEST_OF: Final = {
    **dict.fromkeys(("ingest", "uploader", QUEUES), "manifest"),
    **dict.fromkeys(("ingest-2", "ingest-3", "reader", SPARE), "manifest-2"),
}
LEASE_SECONDS: Final = float(os.environ.get("BOTTOMLESS_TEST_LEASE_SECONDS", "3"))
"""Of ingest nodes. On a machine that lets a process wait for longer, nobody owns anything."""
BEYOND_LEASE_SECONDS: Final = LEASE_SECONDS + 0.6
"""Lease and margin, and some more: by then everybody believes that the lease is over."""
START_SECONDS: Final = 240.0
STOP_SECONDS: Final = 90.0
"""Four for the drain, ten for each step of the stop; and the machine has other things to do."""
SETTINGS: Final = {
    **STORE_SETTINGS,
    "BOTTOMLESS_MANIFEST_FANOUT": "4",
    # Who sleeps with an upload under way has to finish it by then, or nobody knows of the object.
    "BOTTOMLESS_MANIFEST_UPLOAD_DEADLINE_MS": "12000",
    "BOTTOMLESS_DRAIN_SECONDS": "4",
    "BOTTOMLESS_INGEST_LEASE_MS": str(int(LEASE_SECONDS * 1000)),
    "BOTTOMLESS_INGEST_LEASE_MARGIN_MS": "300",
    "BOTTOMLESS_INGEST_RENEW_MS": str(int(LEASE_SECONDS * 1000) // 3),
    "BOTTOMLESS_INGEST_FORWARD_MS": str(int(LEASE_SECONDS * 1000) + 1_000),
    "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "300",
    # Of streams with replicas: who lives is not evicted, though the machine has much to do; who comes
    # back counts soon, and who is cut off gives up soon.
    "BOTTOMLESS_INGEST_REPLICA_WAIT_MS": "2000",
    "BOTTOMLESS_INGEST_REPLICA_JOIN_MS": "300",
    "BOTTOMLESS_INGEST_REPLICA_STEP_DOWN_MS": "4000",
    # Who is gone for longer than its lease and this is replaced, if another node lives.
    "BOTTOMLESS_INGEST_REPLICA_REPLACE_MS": "3000",
    "BOTTOMLESS_READER_CACHE_BYTES": str(1 << 20),
    "BOTTOMLESS_READER_ROOT_TTL_MS": "100",
    "BOTTOMLESS_UPLOADER_RETRY_MAX_SECONDS": "0.5",
    "BOTTOMLESS_UPLOADER_NODES_MS": "300",
    # Of leaderless streams: each flush is soon put and takes an EXEC for each stream; what waits is
    # compacted long before its age, and deleted soon after that.
    "BOTTOMLESS_INGEST_WAL_LINGER_MS": "20",
    "BOTTOMLESS_INGEST_WAL_NOTE_MS": "200",
    # Who meets another run of Valkey waits for so long before it is compared with the bucket.
    "BOTTOMLESS_INGEST_WAL_PUT_SECONDS": "6",
    "BOTTOMLESS_INGEST_WAL_COMMIT_STREAMS": "1",
    "BOTTOMLESS_UPLOADER_WAL_ENTRIES": "40",
    "BOTTOMLESS_UPLOADER_WAL_LEASE_MS": str(int(LEASE_SECONDS * 1000)),
    "BOTTOMLESS_MANIFEST_WAL_VACUUM_MS": "300",
    "BOTTOMLESS_QUEUES_LEASE_MS": str(int(LEASE_SECONDS * 1000)),
    "BOTTOMLESS_QUEUES_LEASE_MARGIN_MS": "300",
    "BOTTOMLESS_QUEUES_RENEW_MS": str(int(LEASE_SECONDS * 1000) // 3),
    "BOTTOMLESS_QUEUES_FORWARD_MS": str(int(LEASE_SECONDS * 1000) + 1_000),
    "BOTTOMLESS_QUEUES_FILE_BYTES_MAX": "65536",
    "BOTTOMLESS_QUEUES_COMPACT_QUIET_MS": "300",
}
assert float(STORE_SETTINGS["BOTTOMLESS_STORE_READ_SECONDS"]) == READ_SECONDS


class ChaosDeployment(SeparateProcesses):
    """It runs already. Events call it from the main thread, load asks only for clients.

    `url`, of all public paths, is behind a link; `direct_url` has no link.
    """

    names: tuple[str, ...] = NAMES
    ingests: tuple[str, ...] = INGESTS

    def __init__(
        self,
        directory: Path,
        valkey: EmbeddedValkey,
        proxy: FaultProxy,
        links: Links,
        stored: StoredInS3,
        nursery: Nursery,
        settings: Mapping[str, str],
    ) -> None:
        super().__init__(directory, stored, valkey.url)
        self._nursery = nursery
        self.valkey = valkey
        self.proxy = proxy
        self.links = links
        self.exits = Counter[str]()
        """Processes that ended by themselves before they were ready."""
        self.faults: list[str] = []
        """What a process did that none may."""
        self.direct_url = ""
        self._sockets = directory / "s"
        self._sockets.mkdir(parents=True)
        self._settings = {
            **SETTINGS,
            **CREDENTIALS,
            "BOTTOMLESS_STORE_URL": stored.url,
            **settings,
        }
        for name in ("manifest", "manifest-2", *self.ingests):
            links.open(f"*>{name}", self._socket(f"to-{name}"), self._socket(name))
        ports = lasting_ports(len(self.names) + 1)
        self.services = {
            name: self._process(name, port)
            for name, port in zip((*self.names, SPARE), ports, strict=True)
        }
        self.troubled = False
        """Whether something is in the way, so that a stop may have to cut what it waits for."""
        self._ready: set[str] = set()
        self._stopped: set[str] = set()
        self.disks: dict[str, Disk] = {}

    def _process(self, name: str, port: int) -> Process:
        kind = name.partition("-")[0]
        to_valkey = self._socket(f"{name}-to-valkey")
        self.links.open(f"{name}>valkey", to_valkey, self._valkey_socket())
        own = {
            "BOTTOMLESS_DATA_DIR": str(self.data_dir(name)),
            "BOTTOMLESS_COORDINATION_URL": f"unix://{to_valkey}?db=0",
            f"BOTTOMLESS_{kind.upper()}_INTERNAL_LISTEN": self.internal_url(name),
        }
        if name in MANIFEST_OF:
            manifest = MANIFEST_OF[name]
            way = self._socket(f"{name}-to-{manifest}")
            self.links.open(f"{name}>{manifest}", way, self._socket(manifest))
            own["BOTTOMLESS_MANIFEST_URL"] = f"unix://{way}"
        if kind == "ingest":
            own["BOTTOMLESS_INGEST_URL"] = self.internal_url(f"to-{name}")
        log = self.directory / f"{name}.log"
        return Process([kind], log, {**self._settings, **own}, port, self._nursery)

    def data_dir(self, name: str) -> Path:
        return self.directory / f"data-{name}"

    def _socket(self, name: str) -> str:
        return str(self._sockets / name)

    def _valkey_socket(self) -> Address:
        return urlsplit(self.valkey.url).path

    def has_started(self, name: str) -> bool:
        """Whether it has logged that it takes requests, since it was spawned."""
        process = self[name]
        return process.started and not process.is_dead and process.announced()

    def links_of(self, name: str) -> list[str]:
        """All ways between a service and the others."""
        return [
            link
            for link in self.links.by_name
            if link.startswith(f"{name}>") or link.endswith(f">{name}")
        ]

    def client(self, seconds: float = 30, *, direct: bool = True) -> httpx.Client:
        return httpx.Client(base_url=self.direct_url if direct else self.url, timeout=seconds)

    def internal_url(self, name: str) -> str:
        return f"unix://{self._socket(name)}"

    @property
    def stopped(self) -> frozenset[str]:
        """Who was sent SIGSTOP and not SIGCONT."""
        return frozenset(self._stopped)

    def kill_running(self, *names: str) -> Counter[str]:
        """SIGKILL those of these that run, at the same moment."""
        victims = [name for name in names if self._is_alive(name)]
        if victims:
            self.kill(*victims)
        self._ready.difference_update(victims)
        self._stopped.difference_update(victims)
        return Counter(victims)

    def terminate(self, name: str, kill_after: float | None) -> str:
        """SIGTERM, and SIGKILL in the middle of the drain if it is told when; what happened."""
        if not self._is_alive(name):
            return "was dead"
        process = self[name]
        was_ready = name in self._ready
        process.send(signal.SIGTERM)
        if kill_after is not None:
            deadline = time.monotonic() + kill_after
            while not process.is_dead and time.monotonic() < deadline:
                threading.Event().wait(0.01)
            if not process.is_dead:
                self.kill_running(name)
                return "killed"
        self._ready.discard(name)
        deadline = time.monotonic() + STOP_SECONDS
        while not process.is_dead:
            if time.monotonic() > deadline:
                self.faults.append(f"{name} did not end within {STOP_SECONDS} s of SIGTERM")
                return "still there"
            threading.Event().wait(0.01)
        code = process.wait_dead()
        allowed = {0, EXIT_STOP_FAILED} if self.troubled else {0}
        if not was_ready:
            allowed |= {EXIT_CANNOT_START, EXIT_KILLED, -signal.SIGTERM}
        if code not in allowed:
            self.faults.append(f"{name} answered SIGTERM with exit code {code}")
        return "drained"

    def stop(self, name: str) -> None:
        """SIGSTOP."""
        if self._is_alive(name):
            self._stopped.add(name)
            self[name].send(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """SIGCONT, if it is still the one that was stopped."""
        if name in self._stopped:
            self._stopped.discard(name)
            self[name].send(signal.SIGCONT)

    def kill_valkey(self) -> None:
        os.kill(self.valkey.pid, signal.SIGKILL)

    def revive_valkey(self) -> None:
        while self.valkey.running:
            threading.Event().wait(0.01)
        self.valkey.start()

    def spawn(self) -> None:
        """Start again who does not run, and do not wait for anything."""
        self._reap()
        super().spawn()

    def start(self) -> None:
        """Start again who does not run, and return when all are ready.

        Nothing may be in the way any more. Who gave up meanwhile is started once more.
        """
        deadline = time.monotonic() + START_SECONDS
        self.spawn()
        for name in self.names:
            while name not in self._ready:
                try:
                    self[name].start()
                except AssertionError:
                    if time.monotonic() > deadline:
                        raise
                    until(partial(_is_dead, self[name]), what=f"the end of {name}")
                    self._reap()
                    self[name].spawn()
                else:
                    self._ready.add(name)

    def _is_alive(self, name: str) -> bool:
        self._reap()
        return self[name].started

    def _reap(self) -> None:
        """Take note of who ended by itself."""
        for name, process in self.services.items():
            if process.started and process.is_dead:
                code = process.wait_dead()
                if name in self._ready:
                    self._ready.discard(name)
                    self.faults.append(
                        f"{name} ended by itself, with {code}: {process.log()[-1500:]}"
                    )
                else:
                    self.exits[name] += 1

    def bugs(self) -> dict[str, str]:
        """Of each service that met what it takes for a bug, its log from there on."""
        logs = {name: process.log() for name, process in self.services.items()}
        found = {name: _BUG.search(log) for name, log in logs.items()}
        return {
            name: logs[name][one.start() : one.start() + _BUG_SIZE]
            for name, one in found.items()
            if one is not None
        }

    @property
    def fenced_count(self) -> int:
        """Upload sessions that ended because of a newer one."""
        return sum(len(_FENCED.findall(self[name].log())) for name in ("uploader", SPARE))

    def retried(self, ask: Callable[[httpx.Client], httpx.Response], seconds: float = 240) -> Any:
        """The body of an answer that has to come, however often it is asked for."""
        deadline = time.monotonic() + seconds
        while True:
            with self.client() as client:
                try:
                    answer = ask(client)
                except httpx.TransportError as error:
                    last = repr(error)
                else:
                    if answer.is_success:
                        return answer.json()
                    last = answer.text
            assert time.monotonic() < deadline, f"no good answer: {last}"
            threading.Event().wait(0.1)


class QueueDeployment(ChaosDeployment):
    """The same with the queues service."""

    names = (*NAMES, QUEUES)


class ThirdNodeDeployment(ChaosDeployment):
    """The same with a third ingest node."""

    names = (*NAMES, "ingest-3")
    ingests = (*INGESTS, "ingest-3")


def _is_dead(process: Process) -> bool:
    return process.is_dead


@contextmanager
def chaos_deployment(
    directory: Path,
    s3: S3Server,
    settings: Mapping[str, str] | None = None,
    *,
    seed: int = 0,
    make: type["ChaosDeployment"] | Callable[..., "ChaosDeployment"] = ChaosDeployment,
) -> Iterator[ChaosDeployment]:
    """Start all of it on an empty directory and a prefix of its own; from the main thread only."""
    with ExitStack() as running:
        valkey = running.enter_context(running_valkey(directory / "valkey"))
        nursery = running.enter_context(running_nursery(settings))
        proxy, stored = running.enter_context(stored_behind_proxy(s3, seed))
        links = running.enter_context(running_links(seed))
        deployment = make(directory, valkey, proxy, links, stored, nursery, settings or {})
        for name in deployment.ingests:
            disk = open_disk(deployment.data_dir(name), partial(_pid_of, deployment, name))
            deployment.disks[name] = running.enter_context(disk)
        start_behind_nginx(deployment, running)
        deployment.direct_url = deployment.url
        parts = urlsplit(deployment.direct_url)
        link = links.open(
            "clients>nginx", ("127.0.0.1", 0), (parts.hostname or "", parts.port or 0)
        )
        deployment.url = f"http://127.0.0.1:{link.address[1]}"
        yield deployment


def _pid_of(deployment: ChaosDeployment, name: str) -> int | None:
    process = deployment[name]
    return process.pid if process.started and not process.is_dead else None
