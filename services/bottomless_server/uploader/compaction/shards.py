"""The shards of streams that this uploader compacts, held by leases, and its seat among the uploaders.

    bottomless:compactor-seat:{seat:02d}     an uploader that compacts
    bottomless:compactor:{shard:02d}         the one that compacts this shard

Each uploader takes a seat, sees which seats are taken, and holds its share of the shards; what becomes
another's by that it gives up, and takes what is its own as soon as the other has given it up. Whoever
finds no seat stands by: there are as many as there are shards, so nothing would be left for it.

Both are for efficiency alone: of two that work on one stream the manifest lets one go on, by its
session. So no work is given up when a lease is lost; what is under way is fenced, or is the last of it.
After a crash both leases run out, and the others share what was held. An uploader of a release that
knows no seats takes whatever shard nobody holds, and the others do without it.
"""

import contextlib
import secrets
from collections.abc import Iterable
from typing import Final

from bottomless.errors import StoreError
from bottomless_server.coordination.base import Coordination, Hold
from bottomless_server.leaderless.tail import SHARD_COUNT
from bottomless_server.uploader.compaction.core.sharing import share_of


def shard_key(shard: int) -> str:
    return f"bottomless:compactor:{shard:02d}"


def seat_key(seat: int) -> str:
    return f"bottomless:compactor-seat:{seat:02d}"


SEAT_COUNT: Final = SHARD_COUNT
RENEWALS_IN_A_LEASE: Final = 3


class Shards:
    """The shards that are held by this process, as far as it knows."""

    def __init__(self, coordination: Coordination, lease_ms: int) -> None:
        self._coordination = coordination
        self._lease_ms = lease_ms
        self._holder = secrets.token_hex(16).encode("ascii")
        self._seat: int | None = None
        self.held: frozenset[int] = frozenset()
        self.version = 0
        """Changes whenever others may have had one of them, or may have one from now on."""

    @property
    def renew_seconds(self) -> float:
        return self._lease_ms / 1_000 / RENEWALS_IN_A_LEASE

    async def renew(self) -> None:
        """Renew the seat and what is held of its share, take what nobody holds of it, and give up
        what is another's.

        Raises:
            CoordinationUnavailable, CoordinationUnknown: what is held is as it was, or less.
        """
        share = await self._share()
        if others := self.held - share:
            self.held -= others
            self.version += 1
            await self._release(shard_key(shard) for shard in sorted(others))
        held, changed = set[int](), False
        for shard in sorted(share):
            hold = await self._hold(shard_key(shard))
            if hold:
                held.add(shard)
            changed = changed or hold is Hold.TAKEN
        if changed or held != self.held:
            self.held = frozenset(held)
            self.version += 1

    async def give_up(self) -> None:
        """Let others take them at once."""
        held, self.held = self.held, frozenset()
        seat, self._seat = self._seat, None
        self.version += 1
        keys = [shard_key(shard) for shard in sorted(held)]
        if seat is not None:
            keys.append(seat_key(seat))
        for key in keys:
            with contextlib.suppress(StoreError):
                await self._release([key])

    async def _share(self) -> frozenset[int]:
        """Take a seat, or keep it, and find the share that comes with it."""
        values = await self._coordination.get_many([seat_key(one) for one in range(SEAT_COUNT)])
        taken = {
            seat for seat, value in enumerate(values) if value is not None and value != self._holder
        }
        wanted = [] if self._seat is None else [self._seat]
        for seat in (*wanted, *range(SEAT_COUNT)):
            if seat not in taken:
                if await self._hold(seat_key(seat)):
                    self._seat = seat
                    return share_of(seat, taken)
                taken.add(seat)
        self._seat = None
        return frozenset()

    async def _hold(self, key: str) -> Hold:
        return await self._coordination.hold(key, self._holder, self._lease_ms)

    async def _release(self, keys: Iterable[str]) -> None:
        for key in keys:
            await self._coordination.release(key, self._holder)
