"""The time by which something may be deleted, if it is known: for ages, leases and graces alike.

Other clocks are asked now and then and not for every stream: once a minute, and whenever our own
was set since they were asked. What is known of our own clock is written down beside the lock of
this service's directory: after a crash before that the next process knows what was known earlier.
A process that finds nothing written down believes its clock at once only where there is no stream
yet: else its directory was not kept, and its clock has to stand first.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import orjson
import structlog

from bottomless.drives.base import Drive
from bottomless.errors import Code, StoreError, Unavailable
from bottomless_server.coordination.base import Coordination
from bottomless_server.manifest.common.core.clock_trust import ClockTrust, Doubt, KnownClock, Others
from bottomless_server.stores.streams import STREAMS_KEY

log = structlog.get_logger(__name__)

_ASK_MS: Final = 60_000
_SET_MS: Final = 1_000
_FILE_NAME: Final = "clock.json"
_VERSION: Final = 1
_NOTHING: Final = KnownClock("", 0, settled=False)
"""Not the first process, so what it believed is to be found out anew."""


class Moment(NamedTuple):
    now: int
    """The time of the slowest clock, in ms since 1970: nothing is older than by this one."""
    doubt: Doubt | None


class TrustedTime:
    def __init__(
        self,
        drive: Drive,
        coordination: Coordination,
        clock: Callable[[], int],
        elapsed: Callable[[], int],
        directory: Path | None,
    ) -> None:
        self._drive = drive
        self._coordination = coordination
        self._clock = clock
        self._elapsed = elapsed
        self._path = None if directory is None else directory / _FILE_NAME
        self._trust: ClockTrust | None = None
        self._written: KnownClock | None = None
        self._others: Others | None = None
        self._asked_at = self._asked_line = 0
        self.doubt: Doubt | None = None
        """The doubt at the last look; an alarm."""

    async def look(self) -> Moment:
        """Compare the clocks.

        Raises:
            DriveUnavailable, DriveRefused, CoordinationUnavailable: one cannot be asked now.
        """
        try:
            trust = await self._opened()
            others = await self._asked()
        except StoreError:
            self._note(Doubt.UNKNOWN, None)
            raise
        wall, elapsed = self._clock(), self._elapsed()
        doubt = trust.look(wall, elapsed, others)
        self._write(trust.known)
        self._note(doubt, others)
        return Moment(trust.earliest(wall, elapsed, others), doubt)

    def _note(self, doubt: Doubt | None, others: Others | None) -> None:
        if doubt is not self.doubt:
            level = log.info if doubt is None else log.critical
            level(
                "clocks agree again" if doubt is None else "nothing is deleted for its age",
                why=None if doubt is None else doubt.value,
                store_ahead_ms=None if others is None else others.store,
                coordination_ahead_ms=None if others is None else others.coordination,
            )
        self.doubt = doubt

    async def require(self) -> int:
        """The time by which a lease or a grace is over.

        Raises:
            Unavailable: `clock-skew`: it is not known.
            DriveUnavailable, DriveRefused, CoordinationUnavailable
        """
        moment = await self.look()
        if moment.doubt is not None:
            raise Unavailable(
                f"nothing is deleted: {moment.doubt.value}",
                code=Code.CLOCK_SKEW,
                retry_after_seconds=60,
            )
        return moment.now

    @property
    def is_counted(self) -> bool:
        """Whether a duration that began earlier can be told, even while the clock is doubted: by
        the time that passed since it was believed. `Moment.now` of the last look says it."""
        return self._trust is not None and self._trust.known is not None

    async def over(self) -> int:
        """The time by which leases may be dropped: what ended at or before it has ended for
        certain. 0 where that is not known, and then nothing has; ms since 1970.
        """
        try:
            return await self.require()
        except StoreError:
            return 0

    def latest(self) -> int:
        """The time from which a grace or a lease counts: of a slow clock it would be too short.

        By what the last look found; ms since 1970.
        """
        wall = self._clock()
        if self._trust is None:
            return wall
        return self._trust.latest(wall, self._elapsed(), self._others)

    def passed(self) -> int:
        """The time from which counts what must not last longer than somebody asked for, like the
        last hour of a secret: our clock without the steps ahead that are not believed; ms since
        1970.
        """
        wall = self._clock()
        return wall if self._trust is None else self._trust.passed(wall, self._elapsed())

    async def _asked(self) -> Others:
        wall, elapsed = self._clock(), self._elapsed()
        line = wall - elapsed
        old = elapsed - self._asked_at >= _ASK_MS or abs(line - self._asked_line) > _SET_MS
        if self._others is None or old:
            store = await self._drive.clock() if self._drive.has_own_clock else None
            coordination = await self._coordination.clock()
            # Read again: an answer that was long on its way is no difference of clocks.
            now = self._clock()
            self._others = Others(None if store is None else store - now, coordination - now)
            self._asked_at, self._asked_line = elapsed, line
        return self._others

    async def _opened(self) -> ClockTrust:
        if self._trust is None:
            known = self._read()
            if known is None and await self._coordination.members(STREAMS_KEY, b"", 1):
                known = _NOTHING
            self._written = known
            self._trust = ClockTrust(_boot_id(), known)
        return self._trust

    def _read(self) -> KnownClock | None:
        if self._path is None:
            return None
        try:
            return _decoded(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("what is known of the clock cannot be read", error=str(error))
            return _NOTHING

    def _write(self, known: KnownClock | None) -> None:
        if self._path is None or known is None or _says_the_same(known, self._written):
            return
        data = {
            "version": _VERSION,
            "boot_id": known.boot_id,
            "line": known.line,
            "settled": known.settled,
        }
        aside = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            aside.write_bytes(orjson.dumps(data))
            aside.replace(self._path)
        except OSError as error:
            log.warning("what is known of the clock cannot be written", error=str(error))
            return
        self._written = known


def _decoded(data: bytes) -> KnownClock:
    found = orjson.loads(data)
    if found["version"] != _VERSION:
        raise ValueError("an unknown version")
    return KnownClock(str(found["boot_id"]), int(found["line"]), bool(found["settled"]))


def _says_the_same(one: KnownClock, other: KnownClock | None) -> bool:
    same = other is not None and (one.boot_id, one.settled) == (other.boot_id, other.settled)
    return same and other is not None and abs(one.line - other.line) <= _SET_MS


def elapsed_ms() -> int:
    """Since the machine started, its sleep included where the system tells that."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return int(time.monotonic() * 1000)
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
