"""The four services as programs that can be started, killed and asked to stop.

Each is made as `app.py` makes it, with ports of this simulation: drive and coordination at the
end of a wire, peers over the network, file calls on a disk that forgets. What a program loses
when it dies is everything in memory; what its machine loses with its power is in `disk`.
"""

import asyncio
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from starlette.types import ASGIApp
from support.fault_coordination import FaultCoordination
from support.mounts import Directory
from support.power_loss import OWN, SILENT, PowerLossDisk
from support.wire import Wire

from bottomless.drives.base import Drive
from bottomless_server.drives.memory import MemoryDrive
from bottomless_server.drives.table import DriveTable
from bottomless_server.ingest.app import create_service as create_ingest
from bottomless_server.ingest.leaderless.making import LeaderlessStores
from bottomless_server.ingest.service import IngestService
from bottomless_server.ingest.settings import IngestSettings
from bottomless_server.manifest.app import ManifestService
from bottomless_server.manifest.app import create_service as create_manifest
from bottomless_server.manifest.common.owners import PeerOwners
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.node.lease import Clocks
from bottomless_server.queues.service import QueuesService
from bottomless_server.reader.app import create_service as create_reader
from bottomless_server.reader.settings import ReaderSettings
from bottomless_server.uploader.app import create_service as create_uploader
from bottomless_server.uploader.settings import UploaderSettings, WalCompaction
from simulation.clockwork import BEGIN_MS, MachineClock
from simulation.drives import AllDrives, OtherDrives
from simulation.links import LinkedCoordination, PagedDrive
from simulation.loop import Process, VirtualLoop
from simulation.network import Network, SimulatedForwarding, SimulatedPeer, SimulatedPeers
from simulation.story import Story
from simulation.weather import Weather

STOP_SECONDS: Final = 20.0
"""For a drain and a stop; then it is killed."""

INGEST: Final[dict[str, Any]] = {
    "ingest_segment_size_max": 65_536,
    "ingest_group_bytes_max": 4_096,
    "ingest_local_keep_ms": 200,
    "ingest_lease_ms": 3_000,
    "ingest_lease_margin_ms": 500,
    "ingest_renew_ms": 700,
    "ingest_checkpoint_ms": 2_000,
    "ingest_checkpoint_bytes": 65_536,
    "ingest_forward_ms": 4_000,
    "ingest_wal_put_seconds": 4.0,
    "ingest_wal_commit_seconds": 4.0,
    "ingest_wal_note_ms": 400,
    "ingest_wal_cache_bytes": 200_000,
}
MANIFEST: Final[dict[str, Any]] = {
    "manifest_fanout": 2,
    "manifest_debounce_ms": 20,
    "manifest_root_grace_ms": 3_000,
    "manifest_delete_grace_ms": 1_000,
    "manifest_upload_deadline_ms": 15_000,
    "manifest_delete_interval_ms": 500,
    "manifest_operation_interval_ms": 300,
    "manifest_operation_lease_ms": 2_000,
    "manifest_operation_keep_ms": 60_000,
    "manifest_close_ms": 5_000,
    "manifest_retention_interval_ms": 1_000,
    "manifest_register_wait_ms": 2_000,
    "manifest_gc_interval_ms": 0,
    "manifest_wal_vacuum_ms": 1_000,
    # A note and a put, as ingest is set here.
    "manifest_rebuild_wal_wait_ms": 4_400,
    "manifest_stream_count_max": 16,
}
UPLOADER: Final[dict[str, Any]] = {
    "uploader_retry_initial_seconds": 0.05,
    "uploader_retry_max_seconds": 1.0,
    "uploader_retry_jitter_seconds": 0.1,
    "uploader_upload_deadline_seconds": 10.0,
    "uploader_damage_retry_seconds": 2.0,
    "uploader_idle_seconds": 5.0,
    "uploader_nodes_ms": 500,
    "uploader_poll_wait_ms": 3_000,
    "uploader_wal_entries": 30,
    "uploader_wal_lease_ms": 5_000,
}
READER: Final[dict[str, Any]] = {
    "reader_block_bytes": 16_384,
    "reader_root_ttl_ms": 50,
    "reader_name_ttl_ms": 500,
    "reader_blocked_seconds": 1.5,
    "reader_heartbeat_seconds": 1.0,
    "reader_rotate_seconds": 6.0,
    "reader_tail_poll_ms": 100,
    "page_token_secret": "a secret of the simulation, long enough",
}


class Service(Protocol):
    """What is used of one of the four."""

    @property
    def name(self) -> str: ...

    @property
    def public(self) -> ASGIApp: ...

    @property
    def internal(self) -> ASGIApp: ...

    async def start(self) -> None: ...

    async def drain(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass
class Ground:
    """What all programs stand on."""

    loop: VirtualLoop
    weather: Weather
    network: Network
    drive: MemoryDrive
    coordination: FaultCoordination
    story: Story
    directory: Path
    """A real one, for locks only."""
    valkey_clock: MachineClock
    """Its wall clock, by which leases run out; true until it is stepped."""
    blind_until: float = 0.0
    """Until then a node may believe in a lease that it lost: nothing that it can look at says so,
    before it renews. docs/guarantees.md, "What does not"."""
    hindered: dict[str, float] = field(default_factory=dict)
    """Until when a program stood still or had a wrong clock, or the `drive` was bad, last."""

    others: OtherDrives | None = None
    """The drives beside drive 0, if there are some."""
    stages_objects: bool = False
    """Whether nodes put what is staged of streams with replicas into the object store."""
    settings: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """What services are set to by a course, by their names."""

    @property
    def stored(self) -> MemoryDrive | AllDrives:
        """What lies on all drives."""
        return self.drive if self.others is None else AllDrives(self.drive, self.others)

    def table(self, default: Drive) -> DriveTable | None:
        """The drives of one life of a program; None where there is drive 0 alone."""
        return None if self.others is None else self.others.table(default)

    def hinder(self, what: str, seconds: float = 0.0) -> None:
        """Something keeps a program, or all who use a store, from what they do in time."""
        self.hindered[what] = max(self.hindered.get(what, 0.0), self.loop.now + seconds)

    def blind(self) -> None:
        """A clock went wrong in a way that no node can see."""
        seconds = (INGEST["ingest_lease_ms"] - INGEST["ingest_lease_margin_ms"]) / 1000
        self.blind_until = self.loop.now + seconds

    def valkey_ms(self) -> int:
        """What the clock of coordination says."""
        return true_ms(self.loop) + self.valkey_clock.skew_ms

    @property
    def is_blind(self) -> bool:
        return self.loop.now < self.blind_until


def true_ms(loop: VirtualLoop) -> int:
    """True time, in ms since 1970."""
    return BEGIN_MS + int(loop.now * 1000)


def lay_ground(loop: VirtualLoop, story: Story, directory: Path, chance: random.Random) -> Ground:
    weather = Weather(chance, lambda: loop.now)
    valkey_clock = MachineClock()

    return Ground(
        loop,
        weather,
        Network(weather),
        Directory(lambda: true_ms(loop)),
        FaultCoordination(lambda: true_ms(loop) + valkey_clock.skew_ms, Wire(weather)),
        story,
        directory,
        valkey_clock,
    )


@dataclass(eq=False)
class Program:
    """One service on one machine, through its lives."""

    ground: Ground
    name: str
    make: "Callable[[Program], Service]"
    clock: MachineClock = field(default_factory=MachineClock)
    disk: PowerLossDisk | None = None
    process: Process | None = None
    service: Service | None = None
    started: bool = False
    wanted: bool = True
    """Whether somebody starts it again when it has died."""
    lives: int = 0
    noted: bool = False
    """Whether it answers for leaderless streams once the note is durable."""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def url(self) -> str:
        """Of its internal listener."""
        return f"unix:///{self.name}.sock"

    @property
    def public_url(self) -> str:
        return f"http://{self.name}"

    @property
    def data_dir(self) -> Path:
        return self.ground.directory / self.name

    def start(self) -> None:
        """Begin a life; it serves when its start has succeeded, and dies when that fails."""
        assert not self.alive
        # Whoever starts a program has woken its machine.
        self.clock.wake(self.ground.loop.now)
        self.lives += 1
        self.started = False
        process = self.process = Process(self.ground.loop, self.name, self.clock)
        process.on_death.append(self._died)
        process.spawn(self._run(process))

    async def _run(self, process: Process) -> None:
        service = self.service = self.make(self)
        try:
            await service.start()
        except Exception as error:  # noqa: BLE001 a start that fails ends the process
            self.ground.story.tell(self.name, f"cannot start: {type(error).__name__} {error}")
            process.kill()
            return
        self.ground.network.serve(process, self.url, service.internal)
        self.ground.network.serve(process, self.public_url, service.public)
        self.started = True
        self.ground.story.tell(self.name, f"serves, life {self.lives}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    async def stop(self) -> None:
        """SIGTERM: drain, stop, end."""
        process, service = self.process, self.service
        if process is None or service is None or not self.started:
            self.kill()
            return
        ending = process.spawn(_end(service))
        await asyncio.wait({ending}, timeout=STOP_SECONDS)
        done = ending.done() and not ending.cancelled() and ending.exception() is None
        self.ground.story.tell(self.name, "stopped" if done else "did not stop in time")
        process.kill()

    def _died(self) -> None:
        self.started = False
        service = self.service
        if isinstance(service, IngestService | QueuesService):
            # The system's part of a death: locks and descriptors are gone.
            service.directory.close()
        if self.disk is not None:
            self.disk.end_processes()


async def _end(service: Service) -> None:
    await service.drain()
    await service.stop()


def _link(ground: Ground) -> LinkedCoordination:
    return LinkedCoordination(ground.coordination, ground.valkey_ms, Wire(ground.weather))


def ingest_program(
    ground: Ground, name: str, notes: str | None = None, linger_ms: int = 250
) -> Program:
    """A node; `notes` is how it answers for leaderless streams, None where it serves none."""
    disk = PowerLossDisk(ground.directory)
    serving: dict[str, Any] = {"ingest_wal_linger_ms": linger_ms}
    if notes is not None:
        serving["ingest_wal_notes"] = notes

    def make(program: Program) -> Service:
        shutil.rmtree(program.data_dir, ignore_errors=True)
        program.data_dir.mkdir()
        # By chance in each life of a node: everything is synced at once, or, since it would not be
        # told of every loss, file by file.
        disk.lies_on = OWN if ground.weather.chance.random() < 0.5 else SILENT
        assert program.process is not None
        settings = IngestSettings(
            data_dir=program.data_dir,
            ingest_url=program.url,
            drain_seconds=10,
            **INGEST,
            **serving,
            **ground.settings.get("ingest", {}),
        )
        stores = None
        if notes is not None:
            # A link of its own: the writer counts how often it was connected.
            wire = Wire(ground.weather)
            stores = LeaderlessStores(PagedDrive(ground.drive, wire), _link(ground))
        return create_ingest(
            settings,
            ground.coordination,
            manifest=SimulatedPeer(ground.network, name, manifest_url(), "manifest"),
            files=disk,
            clocks=clocks_of(program),
            forwarding=SimulatedForwarding(ground.network, name, 4.0),
            leaderless=stores,
            drive=PagedDrive(ground.drive, Wire(ground.weather)) if ground.stages_objects else None,
        )

    return Program(ground, name, make, disk=disk, noted=notes == "sync")


def clocks_of(program: Program) -> Clocks:
    """Of its machine, whoever asks: those who look at a claim stand on no machine."""
    loop, machine = program.ground.loop, program.clock
    return Clocks(
        wall=lambda: BEGIN_MS + machine.skew_ms + int(loop.now * 1000),
        monotonic=lambda: machine.monotonic(loop.now),
        boot=lambda: machine.boot(loop.now),
    )


def manifest_url() -> str:
    return "unix:///manifest.sock"


def manifest_program(ground: Ground) -> Program:
    def make(program: Program) -> ManifestService:
        drive = PagedDrive(ground.drive, Wire(ground.weather))
        more = ground.settings.get("manifest", {})
        return create_manifest(
            ManifestSettings(data_dir=program.data_dir, **MANIFEST, **more),
            drive,
            ground.coordination,
            PeerOwners(SimulatedPeers(ground.network, program.name, "ingest")),
            table=ground.table(drive),
        )

    return Program(ground, "manifest", make)


def uploader_program(
    ground: Ground, name: str = "uploader", *, leaderless: bool = False, only: bool = False
) -> Program:
    """An uploader, of leaderless streams too, or of nothing else."""

    def make(program: Program) -> Service:
        wal = WalCompaction.ONLY if only else WalCompaction.ON
        drive = PagedDrive(ground.drive, Wire(ground.weather))
        more = ground.settings.get("uploader", {})
        return create_uploader(
            UploaderSettings(drain_seconds=5, uploader_wal=wal, **UPLOADER, **more),
            drive,
            ingest=SimulatedPeers(ground.network, program.name, "ingest"),
            manifest=SimulatedPeer(ground.network, program.name, manifest_url(), "manifest"),
            coordination=_link(ground) if leaderless else None,
            table=ground.table(drive),
        )

    return Program(ground, name, make)


def reader_program(ground: Ground, *, leaderless: bool = False) -> Program:
    def make(program: Program) -> Service:
        drive = PagedDrive(ground.drive, Wire(ground.weather))
        return create_reader(
            ReaderSettings(**READER),
            drive,
            coordination=_link(ground) if leaderless else None,
            manifest=SimulatedPeer(ground.network, program.name, manifest_url(), "manifest"),
            ingest=SimulatedPeers(ground.network, program.name, "ingest"),
            table=ground.table(drive),
        )

    return Program(ground, "reader", make)
