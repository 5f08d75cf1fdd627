"""What the appenders of leaderless streams need of the writer of WAL objects."""

from collections.abc import AsyncIterator
from typing import Protocol

from bottomless.model.names import StreamId
from bottomless_server.ingest.leaderless.core.pieces import WaitingAppend
from bottomless_server.ingest.leaderless.seen_tails import SeenTails
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.ingest.records.intake import Append


class Writer(Protocol):
    """One run of a writer in this process, or one run after the other: a new instance takes the place
    of one that others settled."""

    @property
    def generation(self) -> int:
        """The generation of coordination in which it writes.

        Raises:
            Unavailable: there is none now: it has not begun, or coordination has gone back.
        """
        ...

    def doubt(self) -> None:
        """Find out soon whether it still writes in the generation that coordination has: somebody was
        shown another one. While nothing waits to be committed the writer would never notice."""
        ...

    @property
    def seen(self) -> SeenTails:
        """The highest that this process has seen of each tail, whoever asked for it."""
        ...

    def require_space(self) -> None:
        """Refuse an append, before its body is read, where too much waits.

        Raises:
            StoreError: nothing is stored.
        """
        ...

    def put(self, stream_id: StreamId, append: WaitingAppend) -> None:
        """Put an append in line; it is told what became of it, in its time.

        Raises:
            StoreError: it is refused now, and is not in line; outcome none.
        """
        ...

    async def noted(self, stream_id: StreamId, said: Appended) -> Appended:
        """What the repeat of a commit may be answered that was stored before, once it is as durable as
        its own answer promised.

        Raises:
            Unavailable: that did not come in time; outcome unknown.
        """
        ...

    async def commit_staged(self, stream_id: StreamId, parts: AsyncIterator[Append]) -> Appended:
        """Make one append of its parts, which all have its conditions: each becomes a piece in an
        object of its own, and one EXEC commits them all.

        A part is asked for when the one before it is durable, so one of them is in memory at a time.
        What it raises ends the commit, and nothing is stored.

        Raises:
            StoreError: with the outcome that is known.
        """
        ...
