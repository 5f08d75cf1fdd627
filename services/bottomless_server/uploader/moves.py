"""Take up moves that the manifest has entered, copy what they say, and tell when it is done.

Nothing is kept here. A move is taken up (`claim`), its objects are copied (mover.py), and the manifest
names the copies (`finish`). After a crash, or a lost reply, at any moment:

1. before `claim` is done   nothing; whoever looks next finds the move
2. after it                 the record names this session. It finds its own moves again when it looks
                            next; after a minute without a word of it another session takes the move up
3. while objects are copied some copies are on the drive, which only the move names; whoever goes on
                            finds them there
4. after `finish` is done   the move has ended. Who did not hear of it, and says it again, is told
                            `fenced`, as is a session that was too late: in both cases nothing is left
                            to do here

While it copies a session says again and again that it is at the move. One that hears that it is not
any more, or could not say it for as long as after which another one may be, stops; what it puts until
then are the same bytes as those of the session that took over. A move from or to a drive that this
process does not know is left to others.

Each walk looks at the marker of each drive of a move once, and begins nothing with a drive that is away,
or on which anything has failed during the walk: so however many moves wait for it, those between other
drives go on.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from bottomless.errors import Fenced, NotFound, StoreError
from bottomless.guards import guard
from bottomless.model.drive import DEFAULT_NUMBER
from bottomless.model.names import StreamId
from bottomless.model.tiers import copy_text
from bottomless_server.protocol.moves import MoveClaimed, MoveFound
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.endless import endless
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.uploader.calls import ManifestCalls
from bottomless_server.uploader.core.moving import copies_of
from bottomless_server.uploader.failures import Failures
from bottomless_server.uploader.metrics import MoveCounts
from bottomless_server.uploader.mover import Copied, Mover

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 60.0
"""How late a move is taken up, and how long one waits that failed."""
RENEW_SECONDS: Final = 15.0
"""How often a session says that it is at a move; a quarter of the time after which it is taken over."""
TAKE_OVER_SECONDS: Final = 60.0
"""After so long without a word of a session the manifest gives its move to another one."""
_LOOKING: Final = "moves"


class Moves:
    """All moves of one run of an uploader, from `run` to its end."""

    def __init__(
        self,
        manifest: ManifestCalls,
        mover: Mover,
        session: str,
        *,
        in_flight: int,
        look_seconds: float = LOOK_SECONDS,
        renew_seconds: float = RENEW_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`session` is of this run alone; `in_flight` bounds the moves that are under way at once. `clock`
        tells seconds that nobody sets."""
        self._manifest = manifest
        self._mover = mover
        self._session = session
        self._in_flight = asyncio.Semaphore(in_flight)
        self._look_seconds = look_seconds
        self._renew_seconds = renew_seconds
        self._clock = clock
        self._failures = Failures()
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self.counts = MoveCounts()

    async def run(self) -> None:
        """Look for moves, and carry them out, until cancelled."""
        try:
            await endless("uploader-moves", self._look_once)
        finally:
            await self.end()

    async def end(self) -> None:
        """End what is under way; each move is left as it is."""
        await end_tasks(*self._under_way.values())

    @property
    def is_busy(self) -> bool:
        """Whether any move is under way."""
        return bool(self._under_way)

    def report(self) -> Mapping[str, Any]:
        """What failed at the last try, by the move."""
        return self._failures.report()

    async def _look_once(self) -> float:
        try:
            await self.look()
            self._failures.clear(_LOOKING)
        except StoreError as error:
            self._failures.note(_LOOKING, error)
        return self._look_seconds

    async def look(self) -> None:
        """Walk all streams once and begin what waits, as far as so many moves may be under way at once.

        A move that fails is left to the next walk.

        Raises:
            StoreError: the manifest did not say what waits.
        """
        after: str | None = None
        waiting = set()
        self._mover.trouble.clear()
        looked: set[int] = {DEFAULT_NUMBER}
        while True:
            found = await self._manifest.find_moves(self._session, after)
            for move in filter(self._is_able, found.moves):
                waiting.add(_name_of(move))
                error = await self._trouble_of(move, looked)
                if error is None:
                    await self._begin(move)
                elif move.copy not in self._under_way:
                    self.counts.failures += 1
                    self._failures.note(_name_of(move), error)
            after = found.after
            if after is None:
                break
        for what in self._failures.report().keys() - waiting - {_LOOKING}:
            self._failures.drop(what)

    @guard("moves to other drives than one in trouble")
    async def _trouble_of(self, found: MoveFound, looked: set[int]) -> StoreError | None:
        """Why a move need not be begun in this walk, which has `looked` at the markers of these drives."""
        trouble = self._mover.trouble
        for number in set(found.drives) - looked:
            looked.add(number)
            try:
                await self._mover.drives.marked(number).look()
            except StoreError as error:
                trouble[number] = error
        return next((trouble[one] for one in found.drives if one in trouble), None)

    def _is_able(self, found: MoveFound) -> bool:
        """Whether this process reaches the drives of a move; another one may."""
        return set(found.drives) <= set(self._mover.drives.numbers)

    async def settle(self) -> None:
        """Wait until nothing is under way that was begun before."""
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()))

    async def _begin(self, found: MoveFound) -> None:
        if found.copy in self._under_way:
            return
        await self._in_flight.acquire()
        task = asyncio.create_task(self._try(found), name=_name_of(found))
        self._under_way[found.copy] = task
        task.add_done_callback(lambda _: self._ended(found.copy))

    def _ended(self, copy: int) -> None:
        del self._under_way[copy]
        self._in_flight.release()

    async def _try(self, found: MoveFound) -> None:
        try:
            await self._carry_out(found)
        except Fenced:
            log.info("a move has ended, or is another's", stream_id=found.stream_id)
            self._failures.drop(_name_of(found))
        except StoreError as error:
            self.counts.failures += 1
            self._failures.note(_name_of(found), error)
        except Exception:
            self.counts.failures += 1
            # A bug that one move brings to light ends no other.
            log.exception("a move met a bug", stream_id=found.stream_id)
        else:
            self._failures.clear(_name_of(found))

    async def _carry_out(self, found: MoveFound) -> None:
        stream_id, copy = found.stream_id, found.copy
        claimed = await self._manifest.claim_move(stream_id, copy, self._session)
        await reach("uploader.move.after-claim")
        if not claimed.fragments:
            # Retention was faster; nothing that is cut comes back.
            await self._manifest.give_up_move(stream_id, copy)
            return
        copied = await self._copy(stream_id, claimed)
        await reach("uploader.move.after-copies")
        made, damaged = ([one.uid for one in ones] for ones in (copied.made, copied.damaged))
        await self._manifest.finish_move(stream_id, copy, self._session, made, damaged)
        await reach("uploader.move.after-finish")
        self.counts.moves += bool(made)
        self.counts.bytes += copied.size
        log.info("moved fragments", stream_id=stream_id, count=len(made))
        for error in copied.errors:
            log.error("a fragment could not be moved", stream_id=stream_id, error=str(error))
        if copied.errors:
            # The others are where they belong; of this one the manifest knows when it is tried again.
            raise copied.errors[0]

    async def _copy(self, stream_id: StreamId, claimed: MoveClaimed) -> Copied:
        """Copy the objects of a move, and keep it meanwhile.

        Raises:
            Fenced: another session is at it by now, or it was given up.
            StoreError: as `Mover.copy_all`.
        """
        copies = copies_of(stream_id, claimed.tenant, claimed.move, claimed.fragments)
        copying = asyncio.create_task(self._mover.copy_all(copies), name=f"copies of {stream_id}")
        keeping = asyncio.create_task(
            self._keep(stream_id, claimed.move.copy), name=f"keeps the move of {stream_id}"
        )
        try:
            await asyncio.wait({copying, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if not copying.done():
                raise Fenced("the move is another session's by now, or was given up")
            return await copying
        finally:
            await end_tasks(copying, keeping)

    async def _keep(self, stream_id: StreamId, copy: int) -> None:
        """Say that this session is at a move, until it is not, or the stream is gone: what is put after
        its deletion was swept would stay for ever. So, too, until nobody has heard it for too long."""
        heard_at = self._clock()

        async def say() -> float | None:
            nonlocal heard_at
            said_at = self._clock()
            try:
                await self._manifest.claim_move(stream_id, copy, self._session)
            except (Fenced, NotFound):
                return None
            except StoreError as error:
                log.warning("could not keep a move", stream_id=stream_id, code=error.code)
                return None if is_overdue(self._clock() - heard_at) else self._renew_seconds
            heard_at = said_at
            return self._renew_seconds

        await asyncio.sleep(self._renew_seconds)
        await endless("uploader-keeps-move", say)


@guard("the end of a mover that nobody hears")
def is_overdue(seconds: float) -> bool:
    """Whether a session has not been heard of for so long that another one may be at its move."""
    return seconds >= TAKE_OVER_SECONDS


def _name_of(found: MoveFound) -> str:
    return f"move {copy_text(found.copy)} of {found.stream_id}"
