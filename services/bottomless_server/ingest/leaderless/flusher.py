"""Put WAL objects: several at once, each with all notes that are not durable yet.

A piece gets its place when its object is durable, and then waits for its commit. A put that fails
refuses its appends, with the outcome none: an object that may be there after all is named by nothing,
and goes with the others of its instance.

In S3 after a crash, during a put: nothing, or an object that no entry names. No offset is used.

On the record's path: after core/sealing.py, before committer.py.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from bottomless.errors import Code, Corrupt, Outcome, StoreError, Unavailable
from bottomless.formats.keys import wal_key
from bottomless.formats.wal import PackedWal, pack_wal
from bottomless.model.wal import WalFlags
from bottomless_server.core.restated import restated
from bottomless_server.ingest.leaderless.answers import Answers
from bottomless_server.ingest.leaderless.context import WriterContext
from bottomless_server.ingest.leaderless.core.commit_queue import CommitQueue
from bottomless_server.ingest.leaderless.core.notes import Notes
from bottomless_server.ingest.leaderless.core.pieces import WaitingPiece
from bottomless_server.ingest.leaderless.core.sequences import Sequences
from bottomless_server.ingest.leaderless.wal_cache import WalCache
from bottomless_server.leaderless.attempts import AttemptNumbers
from bottomless_server.leaderless.tail_changes import Accepted
from bottomless_server.runtime.base.end import end_tasks
from bottomless_server.runtime.base.fault_points import reach
from bottomless_server.stores.put_retries import put_object

log = structlog.get_logger(__name__)

WAITING_COUNT_MAX: Final = 12
"""Objects that wait for their commit, or whose part does, while others are put: as many bytes are
held by requests all the same."""


class Flusher:
    """Puts the objects of one instance; `heard` is called after each that ended."""

    def __init__(
        self,
        context: WriterContext,
        numbers: AttemptNumbers,
        sequences: Sequences,
        notes: Notes,
        queue: CommitQueue,
        answers: Answers,
        cache: WalCache,
        heard: Callable[[], None],
    ) -> None:
        self._context = context
        self._numbers = numbers
        self._sequences = sequences
        self._notes = notes
        self._queue = queue
        self._answers = answers
        self._cache = cache
        self._heard = heard
        self._flushes: set[asyncio.Task[None]] = set()
        self._note_put: asyncio.Task[None] | None = None

    @property
    def can_begin(self) -> bool:
        """Whether another flush may be put now: as many are on their way as may be, or wait for
        their commit, or too many notes wait, or no sequence is left."""
        bounds = self._context.bounds
        return (
            len(self._flushes) < bounds.put_count_max
            and self._queue.flight_count < bounds.put_count_max + WAITING_COUNT_MAX
            and not self._notes.is_full
            and self._sequences.may_take
        )

    @property
    def puts_notes(self) -> bool:
        """Whether an object with notes alone is on its way."""
        return self._note_put is not None

    def begin(self, pieces: Sequence[WaitingPiece]) -> None:
        """Put an object with these pieces; `can_begin` was true."""
        sequence = self._sequences.take()
        assert sequence is not None
        self._queue.begin(sequence, pieces)
        task = asyncio.create_task(self._flush(sequence, pieces), name=f"wal-put-{sequence}")
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def put_staged(self, sequence: int, piece: WaitingPiece) -> None:
        """Return when a piece lies in a durable object of its own. It does not come in line: whoever
        asks commits it, and then leaves the queue.

        Raises:
            StoreError: with the outcome none.
        """
        self._queue.begin(sequence, [piece])
        try:
            packed = await self._put(sequence, [piece])
        except StoreError as error:
            raise restated(error, Outcome.NONE) from error
        take_places(packed, [piece], self._context.now())

    def begin_notes(self) -> bool:
        """Put an object with notes alone, one at a time; returns whether it could."""
        if self._note_put is not None:
            return False
        sequence = self._sequences.take(for_notes=True)
        if sequence is None:
            return False
        self._context.counts.note_objects += 1
        self._note_put = asyncio.create_task(self._put_notes(sequence), name="wal-put-notes")
        return True

    async def drop(self) -> None:
        """Give up all flushes: their pieces are put again by another instance."""
        await end_tasks(*self._flushes)

    async def aclose(self) -> None:
        """Give up all puts."""
        notes = () if self._note_put is None else (self._note_put,)
        await end_tasks(*self._flushes, *notes)

    async def _flush(self, sequence: int, pieces: Sequence[WaitingPiece]) -> None:
        try:
            packed = await self._put(sequence, pieces)
            await reach("ingest.wal.after-put")
        except StoreError as error:
            self._refuse(sequence, pieces, restated(error, Outcome.NONE))
        except Exception:
            log.exception("a flush met a bug", sequence=sequence)
            self._refuse(sequence, pieces, StoreError("an unexpected error", outcome=Outcome.NONE))
        else:
            now = self._context.now()
            take_places(packed, pieces, now)
            self._queue.put(sequence, now)
        # Before anybody is told, or they would find as many under way as before.
        task = asyncio.current_task()
        assert task is not None
        self._flushes.discard(task)
        self._heard()

    async def _put_notes(self, sequence: int) -> None:
        try:
            await self._put(sequence, ())
        except StoreError as error:
            log.warning("notes were not put; they go along again", error=str(error))
        except Exception:
            log.exception("an object with notes alone met a bug")
        finally:
            self._note_put = None
        self._heard()

    async def _put(self, sequence: int, pieces: Sequence[WaitingPiece]) -> PackedWal:
        """Return when an object is durable.

        Raises:
            StoreError: it may be there all the same, and nothing will ever name it.
        """
        durable = False
        # Before anything waits: what is settled, and which notes go along, is as of now.
        settled = self._numbers.settled(self._queue.first_undecided(sequence))
        carried = self._notes.carry(sequence, settled)
        context, bounds = self._context, self._context.bounds
        began_at = context.now()
        try:
            packed = pack_wal(
                self._numbers.instance,
                sequence,
                [piece.sealed for piece in pieces],
                carried.notes,
                noted_below=carried.noted_below,
                attempt=self._numbers.attempt,
                created_at=context.clocks.wall(),
                generation=self._numbers.generation,
                flags=WalFlags.SYNC if bounds.notes_sync else WalFlags.NONE,
            )
            object_key = wal_key(self._numbers.instance, sequence)
            await put_object(
                context.drive,
                object_key,
                packed.parts,
                packed.crc,
                deadline_seconds=bounds.put_seconds,
            )
            durable = True
        except Unavailable:
            raise
        except Corrupt as error:
            log.exception("a WAL object cannot be put", sequence=sequence)
            sentence = "what was sent cannot be stored now"
            raise Unavailable(sentence, code=Code.STORAGE_FAILED) from error
        finally:
            noted = self._notes.end(sequence, durable=durable)
        now = context.now()
        context.counts.note_ms("put", began_at, now)
        for committed_at in noted:
            context.counts.note_ms("note", committed_at, now)
        context.counts.sizes.note(packed.header.size)
        self._cache.add(self._numbers.instance, sequence, packed.parts)
        self._answers.release()
        return packed

    def _refuse(self, sequence: int, pieces: Sequence[WaitingPiece], error: StoreError) -> None:
        self._queue.fail(sequence, self._context.now())
        self._answers.refuse((one for piece in pieces for one in piece.appends), error)


def take_places(packed: PackedWal, pieces: Sequence[WaitingPiece], now: int) -> None:
    """Tell pieces where they lie, once their object is durable: from then on they are committed."""
    header = packed.header
    for piece, number in zip(pieces, packed.numbers, strict=True):
        line = packed.lines[number]
        piece.durable_at = now
        piece.accepted = Accepted(
            header.instance,
            header.sequence,
            number,
            line.position,
            line.size,
            line.record_count,
            piece.last_chunk,
        )
