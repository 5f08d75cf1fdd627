"""The stack of a load test: an S3 server, Valkey and all services, each behind an S3 proxy of its own.

    clients ─ ingest-1 … ingest-N, manifest, reader      services ─ a proxy each ─ S3
                                                         services ─ Valkey

A proxy for each service is what tells whose request it was. All of it lives in one process, the
keeper, which `up` leaves behind: it starts and kills services as it is told over a socket, and if it
ends, however that happens, everything ends with it.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from support.fault_proxy import FaultProxy, running_fault_proxy
from support.faults import Fault, Rule
from support.latencies import STORES
from support.ports import lasting_ports
from support.processes import Process
from support.s3 import BUCKET, CREDENTIALS, S3Server, s3_client
from support.seaweed import running_seaweed
from support.separate_processes import SeparateProcesses
from support.stored import StoredInS3
from support.valkey import running_valkey

from bench.loadtest.control import ControlServer
from bench.loadtest.place import SOCKETS, Birth, LoadTestError, RunDirectory
from bench.loadtest.scenarios import Scenario
from bottomless_server.coordination.embedded import EmbeddedValkey

CONNECTIONS: Final = 16
"""To the object store, of each service: at most so many requests are under way at a time."""
PREFIX: Final = "load"
CLOSE_SECONDS: Final = 30.0
"""By then a dead process has no connection to its proxy any more."""


class LoadStack(SeparateProcesses):
    """All services of one scenario."""

    def __init__(
        self,
        run: RunDirectory,
        scenario: Scenario,
        sockets: Path,
        stored: StoredInS3,
        valkey: EmbeddedValkey,
        proxies: dict[str, FaultProxy],
    ) -> None:
        super().__init__(run.state, stored, valkey.url)
        self.names = scenario.service_names
        self._run = run
        self._scenario = scenario
        self._sockets = sockets
        self._valkey = valkey
        self._proxies = proxies
        self._keeper = Birth.of(os.getpid())
        self._lives = dict.fromkeys(self.names, 0)
        self._births: dict[str, Birth] = {}
        self._seen_before: dict[str, dict[str, int]] = {}
        """What the proxy of each service had seen when its life began."""
        self._stopped: set[str] = set()
        ports = lasting_ports(len(self.names))
        self.services = {
            name: self._process(name, port) for name, port in zip(self.names, ports, strict=True)
        }

    def internal_url(self, name: str) -> str:
        return f"unix://{self._sockets}/{name}"

    def _process(self, name: str, port: int) -> Process:
        kind = name.partition("-")[0]
        settings = {
            **CREDENTIALS,
            "BOTTOMLESS_STORE_URL": S3Server(self._proxies[name].endpoint).store_url(PREFIX),
            "BOTTOMLESS_STORE_CONNECTION_COUNT_MAX": str(CONNECTIONS),
            "BOTTOMLESS_COORDINATION_URL": self.coordination_url,
            "BOTTOMLESS_MANIFEST_URL": self.internal_url("manifest"),
            "BOTTOMLESS_DATA_DIR": str(self.directory / name),
            f"BOTTOMLESS_{kind.upper()}_INTERNAL_LISTEN": self.internal_url(name),
            **self._scenario.settings,
        }
        if kind == "ingest":
            settings["BOTTOMLESS_INGEST_URL"] = self.internal_url(name)
        return Process([kind], self._run.logs / f"{name}.log", settings, port)

    def begin(self) -> None:
        """Start all services, and write stack.json when all are ready."""
        for name in self.names:
            self._begin_life(name)
        for name in self.names:
            self[name].start()
        self.note()

    def begin_again(self, name: str) -> int:
        """Start one again, and do not wait for it; which life that is."""
        self._stopped.discard(name)
        self._begin_life(name)
        self.note()
        return self._lives[name]

    def _begin_life(self, name: str) -> None:
        self._lives[name] += 1
        self._seen_before[name] = dict(self._proxies[name].kinds)
        self[name].spawn()
        self._births[name] = Birth.of(self[name].pid)

    def end_life(self, name: str, which: signal.Signals) -> dict[str, Any]:
        """End one by a signal; what its life had asked of the object store, all in all."""
        self._stopped.add(name)
        if which is signal.SIGKILL:
            self[name].kill()
        else:
            self[name].stop(which)
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._proxies[name].connection_count and time.monotonic() < deadline:
            time.sleep(0.01)
        self.note()
        return self.seen(name)

    def seen(self, name: str) -> dict[str, Any]:
        """What the proxy was asked by the life of a service that goes on, or was the last."""
        before, proxy = self._seen_before[name], self._proxies[name]
        seen = {kind: count - before.get(kind, 0) for kind, count in dict(proxy.kinds).items()}
        return {"life": self._lives[name], "seen": seen, "connections": proxy.connection_count}

    def facts(self) -> dict[str, Any]:
        """Who runs, and who should and does not."""
        return {
            name: {
                **self.seen(name),
                "state": self._state(name),
                "url": self[name].url,
            }
            for name in self.names
        }

    def _state(self, name: str) -> str:
        process = self[name]
        if name in self._stopped:
            return "stopped"
        if not process.started or process.is_dead:
            return "ended by itself"
        if not process.announced():
            return "starts"
        process.start()
        return "runs"

    def trouble(self, fault: str, method: str, chance: float) -> int:
        """Disturb requests of all services, until `calm`; how many services that are."""
        for proxy in self._proxies.values():
            proxy.arm(Rule(Fault[fault], method, chance=chance))
        return len(self._proxies)

    def calm(self) -> int:
        """Disturb nothing more; how many requests were, all in all."""
        for proxy in self._proxies.values():
            proxy.calm()
        return sum(len(proxy.story) for proxy in self._proxies.values())

    def note(self) -> None:
        """Write stack.json: what later commands need."""
        self._run.write(
            "stack.json",
            {
                "scenario": self._scenario.name,
                "keeper": self._keeper._asdict(),
                "control": str(self._sockets / "control"),
                "sockets": str(self._sockets),
                "valkey": Birth.of(self._valkey.pid)._asdict(),
                "store_url": self.stored.url,
                "services": {
                    name: {
                        "life": self._lives[name],
                        "url": self[name].url,
                        "internal": self.internal_url(name),
                        "object_store": self._proxies[name].endpoint,
                        **self._births[name]._asdict(),
                    }
                    for name in self.names
                },
            },
        )


@contextmanager
def running_stack(run: RunDirectory, scenario: Scenario) -> Iterator[tuple[LoadStack, Path]]:
    """Start everything but the services; the stack, and where it takes orders. From the main thread
    only."""
    with ExitStack() as held:
        # Below the directory of a run, a socket's path might be too long for the kernel.
        sockets = Path(tempfile.mkdtemp(prefix=SOCKETS))
        held.callback(shutil.rmtree, sockets, ignore_errors=True)
        valkey = held.enter_context(running_valkey(run.state / "valkey"))
        s3 = held.enter_context(running_seaweed(run.state / "s3"))
        client = held.enter_context(s3_client(s3))
        # The server's very first put makes volumes, which takes longer than others.
        client.put_object(Bucket=BUCKET, Key="first", Body=bytes(65_536))
        proxies = {
            name: held.enter_context(
                running_fault_proxy(s3.endpoint, scenario.seed + place, STORES[scenario.store])
            )
            for place, name in enumerate(scenario.service_names)
        }
        stored = StoredInS3(s3.store_url(PREFIX), client, PREFIX)
        stack = LoadStack(run, scenario, sockets, stored, valkey, proxies)
        for process in stack.services.values():
            held.push(process)
        yield stack, sockets / "control"


def keep(directory: Path) -> int:
    """Be the keeper: run the stack of a run, and do what is asked for, until SIGTERM."""
    run = RunDirectory(directory)

    def end(_: int, __: FrameType | None) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    try:
        with running_stack(run, run.scenario()) as (stack, path):
            server = ControlServer(path, _orders(stack))
            stack.begin()
            server.serve()
    except (LoadTestError, AssertionError, RuntimeError, OSError) as error:
        # The one that waits for it tells this, and the log has the rest.
        print(f"the stack does not run: {error}", file=sys.stderr)
        return 2
    return 0


def _orders(stack: LoadStack) -> dict[str, Any]:
    def done(value: Any) -> dict[str, Any]:
        return {"done": value}

    return {
        "facts": stack.facts,
        "kill": lambda service: stack.end_life(service, signal.SIGKILL),
        "stop": lambda service: stack.end_life(service, signal.SIGTERM),
        "start": lambda service: done(stack.begin_again(service)),
        "trouble": lambda **rule: done(stack.trouble(**rule)),
        "calm": lambda: done(stack.calm()),
    }
