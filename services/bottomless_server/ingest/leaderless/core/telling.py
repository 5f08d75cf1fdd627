"""What each append of a commit is told, once it is known what became of its stream."""

from collections.abc import Sequence
from typing import Final

from bottomless.errors import (
    Code,
    Corrupt,
    InvalidRequest,
    Outcome,
    Overloaded,
    StoreError,
    WrongOffset,
)
from bottomless_server.core.not_found import stream_not_found
from bottomless_server.ingest.leaderless.core.pieces import TrimAgain, Verdict, WaitingPiece
from bottomless_server.ingest.producers.producers import Appended
from bottomless_server.leaderless.tail_changes import Committed, Refusal

_FULL_RETRY_SECONDS: Final = 5
"""The fragment-uploader looks every second, and what it packs takes a moment."""


def told(
    found: Committed | Refusal, verdicts: Sequence[Verdict] | None, pieces: Sequence[WaitingPiece]
) -> list[Appended | StoreError | TrimAgain]:
    """What each append of these pieces is told, in their order.

    `found` and `verdicts` are of the same attempt, `Commit.streams` and `Commit.answers`.
    """
    count = sum(len(piece.appends) for piece in pieces)
    if isinstance(found, Committed):
        assert verdicts is not None
        assert len(verdicts) == count
        return [verdict.said for verdict in verdicts]
    if verdicts is None:
        return [refused(found) for _ in range(count)]
    return [verdict.said if verdict.certain else refused(found) for verdict in verdicts]


def refused(refusal: Refusal) -> StoreError:
    """Why a stream takes nothing new; nothing is stored."""
    if refusal is Refusal.GONE:
        return stream_not_found()
    if refusal is Refusal.FENCED:
        sentence = "the stream is fenced: an operator stopped its appends"
        return WrongOffset(sentence, code=Code.STREAM_FENCED)
    if refusal is Refusal.FULL:
        return Overloaded(
            "too much of this stream waits to be put into fragments",
            code=Code.TAIL_BOUND,
            retry_after_seconds=_FULL_RETRY_SECONDS,
        )
    if refusal is Refusal.ENDED:
        sentence = "the stream has no offsets left for these records; create another one"
        return InvalidRequest(sentence, code=Code.NUMBER_OUT_OF_RANGE)
    sentence = "what coordination holds of this stream cannot be read"
    return Corrupt(sentence, outcome=Outcome.NONE)
