"""The shards of streams that this uploader compacts, held by leases.

    bottomless:compactor:{shard:02d}

They are for efficiency alone: of two that work on one stream the manifest lets one go on, by its
session. So nothing is given up when a lease is lost; what is under way is fenced, or is the last of it.
After a crash leases run out, and the others take them.
"""

import contextlib
import secrets
from typing import Final

from bottomless.errors import StoreError
from bottomless_server.coordination.base import Coordination, Hold
from bottomless_server.leaderless.tail import SHARD_COUNT


def shard_key(shard: int) -> str:
    return f"bottomless:compactor:{shard:02d}"


RENEWALS_IN_A_LEASE: Final = 3


class Shards:
    """The shards that are held by this process, as far as it knows."""

    def __init__(self, coordination: Coordination, lease_ms: int) -> None:
        self._coordination = coordination
        self._lease_ms = lease_ms
        self._holder = secrets.token_hex(16).encode("ascii")
        self.held: frozenset[int] = frozenset()
        self.version = 0
        """Changes whenever others may have had one of them, or may have one from now on."""

    @property
    def renew_seconds(self) -> float:
        return self._lease_ms / 1_000 / RENEWALS_IN_A_LEASE

    async def renew(self) -> None:
        """Renew what is held, and take what nobody holds.

        Raises:
            CoordinationUnavailable, CoordinationUnknown: what is held is as it was.
        """
        held, changed = set[int](), False
        for shard in range(SHARD_COUNT):
            hold = await self._coordination.hold(shard_key(shard), self._holder, self._lease_ms)
            if hold:
                held.add(shard)
            changed = changed or hold is Hold.TAKEN
        if changed or held != self.held:
            self.held = frozenset(held)
            self.version += 1

    async def give_up(self) -> None:
        """Let others take them at once."""
        held, self.held = self.held, frozenset()
        self.version += 1
        for shard in held:
            with contextlib.suppress(StoreError):
                await self._coordination.release(shard_key(shard), self._holder)
