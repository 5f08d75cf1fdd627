"""What every part of the manifest service works with: made once, in app.py, passed down."""

import secrets
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, dataclass, field
from pathlib import Path

from bottomless.drives.base import Drive
from bottomless.model.names import Uid
from bottomless_server.coordination.base import Coordination
from bottomless_server.drives.table import DriveTable
from bottomless_server.manifest.common.damaged_sources import DamagedSources
from bottomless_server.manifest.common.drive_states import DriveStates
from bottomless_server.manifest.common.groups import Groups
from bottomless_server.manifest.common.held_moves import HeldMoves
from bottomless_server.manifest.common.metrics import ManifestCounts
from bottomless_server.manifest.common.owners import Owners
from bottomless_server.manifest.common.quotas import Quotas
from bottomless_server.manifest.common.registry_objects import RegistryObjects
from bottomless_server.manifest.common.trusted_time import TrustedTime, elapsed_ms
from bottomless_server.manifest.settings import ManifestSettings
from bottomless_server.stores.streams import Streams


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def random_uid() -> Uid:
    return Uid(secrets.token_hex(16))


@dataclass(frozen=True, slots=True)
class Context:
    settings: ManifestSettings
    drive: Drive
    coordination: Coordination
    streams: Streams
    owners: Owners
    clock: Callable[[], int] = now_ms
    """Milliseconds since 1970: for what is written down or told, and for no timer."""
    elapsed: Callable[[], int] = elapsed_ms
    """Milliseconds that nobody can set: for timers."""
    new_uid: Callable[[], Uid] = random_uid
    counts: ManifestCounts = field(default_factory=ManifestCounts)
    clock_directory: Path | None = None
    """Where it is written down what is known of the wall clock."""
    table: InitVar[DriveTable | None] = None
    drives: DriveTable = field(init=False)
    """The drives of fragments, by the numbers that their entries say; `drive` has all else. Without
    a `table` all of them are on `drive` too."""
    time: TrustedTime = field(init=False)
    """The time for whatever is deleted because enough time has passed."""
    groups: Groups = field(init=False)
    quotas: Quotas = field(init=False)
    registry_objects: RegistryObjects = field(init=False)
    drive_states: DriveStates = field(init=False)
    held_moves: HeldMoves = field(init=False)
    damaged_sources: DamagedSources = field(init=False)

    def __post_init__(self, table: DriveTable | None) -> None:
        trusted = TrustedTime(
            self.drive, self.coordination, self.clock, self.elapsed, self.clock_directory
        )
        object.__setattr__(self, "time", trusted)
        object.__setattr__(self, "drives", table or DriveTable.of_one(self.drive))
        object.__setattr__(self, "groups", Groups(self.drive))
        object.__setattr__(self, "quotas", Quotas(self.coordination))
        objects = RegistryObjects(
            self.drive, self.coordination, self.streams, trusted, self.settings
        )
        object.__setattr__(self, "registry_objects", objects)
        object.__setattr__(self, "drive_states", DriveStates(self.drive))
        object.__setattr__(self, "held_moves", HeldMoves(self.elapsed))
        object.__setattr__(self, "damaged_sources", DamagedSources(self.elapsed))

    @property
    def served(self) -> AbstractSet[str]:
        """Features of streams that this process serves; of a stream with another it touches nothing."""
        return self.streams.served
