"""Seal what one stream has in a flush into pieces: whole chunks that have no place yet.

Neighbours without a promise share a chunk. An append with one (a producer's number, a key, an
expected offset) is a piece of its own, since it is accepted or refused alone; so is one that is
larger than a chunk. Appends that expect an offset come first, so that the others of their flush do
not take it from them; but none comes before an earlier one of its own producer.

On the record's path: after accumulator.py, before ../flusher.py. ../committer.py has the pieces of
a repeated append sealed anew, without what is stored already.
"""

from collections.abc import Sequence

from bottomless.model.names import StreamId
from bottomless_server.ingest.leaderless.core.pieces import WaitingAppend, WaitingPiece, name_of
from bottomless_server.ingest.log.core.batcher import Round, RoundSpace, seal_round
from bottomless_server.ingest.records.conditions import NO_CONDITIONS
from bottomless_server.ingest.records.intake import Append


def seal_pieces(
    stream_id: StreamId, appends: Sequence[WaitingAppend], chunk_size_max: int
) -> list[WaitingPiece]:
    """Seal appends of one stream, which are given in the order in which they came."""
    pieces: list[WaitingPiece] = []
    together: list[WaitingAppend] = []
    space = RoundSpace(chunk_size_max)

    def seal_together() -> None:
        if together:
            sealed = _seal([one.append for one in together], chunk_size_max)
            pieces.append(WaitingPiece(stream_id, tuple(together), sealed))
            together.clear()

    for one in _in_order(appends):
        if one.append.conditions is not NO_CONDITIONS:
            seal_together()
            pieces.append(WaitingPiece(stream_id, (one,), _seal([one.append], chunk_size_max)))
            continue
        if not together or not space.take(one.append):
            seal_together()
            space = RoundSpace(chunk_size_max)
            space.take(one.append)
        together.append(one)
    seal_together()
    return pieces


def seal_again(piece: WaitingPiece, duplicates: int, chunk_size_max: int) -> WaitingPiece:
    """Seal the append of a piece without its first `duplicates` records, which are stored."""
    [one] = piece.appends
    sealed = _seal([one.append.without_first(duplicates)], chunk_size_max)
    # One that only waits for an earlier one of its producer is not trimmed.
    trim_count = piece.trim_count + (duplicates != piece.duplicates)
    return WaitingPiece(piece.stream_id, piece.appends, sealed, duplicates, trim_count)


def _in_order(appends: Sequence[WaitingAppend]) -> list[WaitingAppend]:
    """Put appends that expect an offset first, unless an earlier one of their producer is not."""
    first: list[WaitingAppend] = []
    others: list[WaitingAppend] = []
    names = set[object]()
    for one in appends:
        conditions = one.append.conditions
        name = None if conditions.identity is None else name_of(conditions.identity)
        if conditions.expected_offset is not None and name not in names:
            first.append(one)
            continue
        others.append(one)
        if name is not None:
            names.add(name)
    return [*first, *others]


def _seal(appends: Sequence[Append], chunk_size_max: int) -> Round:
    # Unplaced: offsets count from the start of the piece.
    return seal_round(appends, next_offset=0, timestamp=0, epoch=0, chunk_size_max=chunk_size_max)
