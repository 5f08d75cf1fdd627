"""Pieces of one stream, as a commit asks about them."""

from collections.abc import Sequence

from bottomless_server.ingest.leaderless.core.deciding import decide_pieces
from bottomless_server.ingest.leaderless.core.pieces import WaitingPiece
from bottomless_server.ingest.leaderless.core.remembered import KnownBounds
from bottomless_server.leaderless.tail import SeenTail
from bottomless_server.stores.tail_commits import Asked


def asked_of(
    seen: SeenTail, pieces: Sequence[WaitingPiece], clock: int, bounds: KnownBounds
) -> Asked:
    """Ask for pieces of one stream, which are given in their order and have their places.

    `clock` is the one that the commit is given: answers name its timestamp. So each attempt asks
    anew. What each append is told `core/telling.py` makes of the commit's answer.
    """
    names = dict.fromkeys(name for piece in pieces for name in piece.names)
    return Asked(
        pieces[0].stream_id,
        list(names),
        seen,
        lambda tail, known: decide_pieces(tail, known, pieces, clock, bounds),
    )
