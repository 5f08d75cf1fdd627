"""Queues as a program: message files on a disk that forgets, and beside them the real ledger.

The ledger is SQLite on files of this machine, since nobody writes C for a simulation: what its own
syncs are worth is looked at where its file calls are recorded (unit/queues/test_ledger_power_losses.py).
Here a loss of power leaves every round whose COMMIT has returned, and a death takes back what was not
committed. docs/decisions/0122.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from support.power_loss import PowerLossDisk

from bottomless_server.node.file_calls import RealFileCalls
from bottomless_server.queues.app import create_service
from bottomless_server.queues.directory import opening
from bottomless_server.queues.ledger.base import LedgerFailed
from bottomless_server.queues.ledger.sqlite import SqliteLedger
from bottomless_server.queues.operator_settings import QueuesSettings
from bottomless_server.queues.service import QueuesService
from simulation.loop import Killed
from simulation.network import SimulatedForwarding, SimulatedPeer
from simulation.programs import Ground, Program, Service, clocks_of, manifest_url

SECTOR_SIZE: Final = 512
_REAL_BELOW: Final = 1_000_000
"""Descriptors of the simulated disk are above."""
QUEUES: Final[dict[str, Any]] = {
    "queues_file_bytes_max": 65_536,
    "queues_compact_quiet_ms": 300,
    "queues_compact_bytes_per_second": 0,
    "queues_free_bytes_min": 0,
    "queues_lease_ms": 3_000,
    "queues_lease_margin_ms": 500,
    "queues_renew_ms": 700,
    "queues_forward_ms": 4_000,
    "queues_wal_bytes_max": 131_072,
    "queues_round_change_count_max": 20,
    "queues_sweep_count": 20,
    "queues_ledger_cache_bytes": 2**20,
}


@dataclass
class LedgerFaults:
    """What befalls the next calls of the ledger of one machine."""

    commits: int = 0
    """So many fail."""
    lands: bool = False
    """Whether what fails is there all the same."""
    reopens: int = 0
    begins: int = 0

    def heal(self) -> None:
        self.commits = self.reopens = self.begins = 0


class LedgerDisk(PowerLossDisk):
    """A disk with a ledger on it, whose files are real ones."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, sector_size=SECTOR_SIZE)
        self.faults = LedgerFaults()
        self.ledger: SqliteLedger | None = None
        self.in_use = False
        """Whether a process lives that has it open."""
        self._real = RealFileCalls()

    def end_processes(self) -> None:
        super().end_processes()
        self.in_use = False
        ledger, self.ledger = self.ledger, None
        if ledger is not None:
            ledger.close()

    def open(self, path: Path, *, create: bool = False) -> int:
        if _is_ledger(path.name):
            return self._real.open(path, create=create)
        return super().open(path, create=create)

    def close(self, fd: int) -> None:
        if not self.in_use:
            # It stands in a `finally`, which would make an error of the death.
            raise Killed
        self._real.close(fd) if fd < _REAL_BELOW else super().close(fd)

    def names(self, path: Path) -> list[str]:
        return [*super().names(path), *self._ledger_names(path)]

    def _ledger_names(self, path: Path) -> list[str]:
        there = sorted(one.name for one in path.iterdir()) if path.is_dir() else []
        return list(filter(_is_ledger, there))

    def size(self, fd: int) -> int:
        return self._real.size(fd) if fd < _REAL_BELOW else super().size(fd)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        of = self._real.pread if fd < _REAL_BELOW else super().pread
        return bytes(of(fd, size, position))

    def pwritev(self, fd: int, parts: Any, position: int) -> int:
        of = self._real.pwritev if fd < _REAL_BELOW else super().pwritev
        return of(fd, parts, position)

    def fdatasync(self, fd: int) -> None:
        # A file in memory, which no loss of power befalls.
        if fd >= _REAL_BELOW:
            super().fdatasync(fd)


def _is_ledger(name: str) -> bool:
    return name.startswith(opening.LEDGER)


class SimulatedLedger(SqliteLedger):
    """The ledger as it is, on a disk that may refuse it a call."""

    def __init__(self, path: Path, files: LedgerDisk, store_id: bytes, **given: Any) -> None:
        self._faults = files.faults
        # A death in here would leave a connection that nobody can close.
        before, files.before = files.before, lambda _, __: None
        super().__init__(path, files, store_id, **given)
        files.before, files.ledger = before, self

    def begin(self) -> int:
        if self._faults.begins > 0:
            self._faults.begins -= 1
            raise LedgerFailed("the database refused it", full=True)
        return super().begin()

    def commit(self) -> None:
        if self._faults.commits <= 0:
            super().commit()
            return
        self._faults.commits -= 1
        if self._faults.lands:
            super().commit()
        raise LedgerFailed("the database refused it")

    def reopen(self) -> None:
        if self._faults.reopens > 0:
            self._faults.reopens -= 1
            raise LedgerFailed("the database refused it")
        super().reopen()


@contextmanager
def simulated_ledgers() -> Iterator[None]:
    """Let whoever opens a directory of queues get such a ledger."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "SqliteLedger", SimulatedLedger)
        yield


def queues_program(ground: Ground, name: str) -> Program:
    """A node of queues."""
    disk = LedgerDisk(ground.directory)

    def make(program: Program) -> Service:
        # For the lock, the ledger, and whoever asks how much room there is.
        disk.in_use = True
        (program.data_dir / opening.MESSAGES).mkdir(parents=True, exist_ok=True)
        return create_service(
            QueuesSettings(
                data_dir=program.data_dir, queues_url=program.url, drain_seconds=10, **QUEUES
            ),
            ground.coordination,
            manifest=SimulatedPeer(ground.network, name, manifest_url(), "manifest"),
            files=disk,
            clocks=clocks_of(program),
            forwarding=SimulatedForwarding(ground.network, name, 6.0, service="queues"),
            to_streams=SimulatedForwarding(ground.network, name, 4.0),
        )

    return Program(ground, name, make, disk=disk)


def service_of(program: Program) -> QueuesService | None:
    """The service of this life, once it has started."""
    service = program.service
    return service if isinstance(service, QueuesService) and program.started else None
