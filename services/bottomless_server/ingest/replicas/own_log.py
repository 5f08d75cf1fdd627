"""The log of a stream that this node owns, as it is sent to the nodes that follow it."""

from bottomless.formats.segment import HEADER_SIZE
from bottomless_server.ingest.log.segments import SegmentLog, Unsynced
from bottomless_server.ingest.replicas.pieces import ask_after, ends_of, opening_of, read_piece
from bottomless_server.node.core.sends import Piece, Told
from bottomless_server.node.file_calls import FileCalls
from bottomless_server.protocol.replica import NOWHERE, Opening, Place
from bottomless_server.runtime.base.shared_hops import SharedHops


class OwnLog:
    """One log under one epoch; made at the claim, before anything is written."""

    def __init__(
        self, files: FileCalls, hops: SharedHops, local: SegmentLog, epoch: int, told: Told
    ) -> None:
        """`told` are the bounds of the record that was claimed."""
        self.epoch = epoch
        self.told = told
        """The bounds that other nodes are to know."""
        self.is_shown = False
        """Whether all nodes in sync had what was found at the claim: nobody has more from then on."""
        self._files = files
        self._hops = hops
        self._local = local
        # What is written from now on is of the new epoch, and an opening names those before it.
        self._ends = ends_of(local)

    @property
    def end(self) -> Place:
        """Where its last synced chunk ends; `NOWHERE` of a log without chunks."""
        end = self._local.chunks_end()
        return NOWHERE if end is None else Place(*end)

    def place(self, end: tuple[int, int]) -> Place:
        """A place of the synced log in the words of other nodes, who have no segment without a chunk."""
        return Place(*end) if end[1] > HEADER_SIZE else self.end

    def written(self, written: Unsynced) -> Piece:
        """What was just written, as it is sent; before the log counts it."""
        segment, position = written.segment, written.places[0].position
        begins = position == HEADER_SIZE
        before = 0
        if begins:
            older = [one for one in self._local.segments[-2:] if one is not segment]
            before = older[-1].size if older else 0
        data = b"".join(written.buffers)
        return Piece(Place(segment.first_offset, position), begins, before, data)

    def opening(self) -> Opening:
        """What is said of it when another log is opened."""
        _, published_next, version = self.told
        return opening_of(
            self._local, self.epoch, self._ends, (published_next, version), shown=self.is_shown
        )

    async def read(self, end: Place | None) -> Piece | None:
        """What comes after a place, synced; None if nothing does.

        Raises:
            Freed: it does not go on from there.
            Corrupt, OSError: it cannot be read.
        """
        ask = ask_after(self._local, end, self.told.published_next)
        return None if ask is None else await self._hops.call(read_piece, self._files, ask)
