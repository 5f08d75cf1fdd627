"""Why appends are refused whatever their stream is, and whom pieces answer."""

from collections.abc import Iterable

from bottomless.errors import Code, Outcome, Overloaded, Unavailable
from bottomless_server.ingest.leaderless.core.pieces import WaitingAppend, WaitingPiece


def appends_of(pieces: Iterable[WaitingPiece]) -> list[WaitingAppend]:
    """List the appends of pieces, in their order."""
    return [append for piece in pieces for append in piece.appends]


def is_told(piece: WaitingPiece) -> bool:
    """Tell whether the appends of a piece were answered: they are not stored any more after that."""
    return any(append.decided for append in piece.appends)


def contended() -> Overloaded:
    """The answer where a stream met other writers too often; nothing is stored."""
    return Overloaded("others write to this stream all the time", retry_after_seconds=1)


def away() -> Unavailable:
    """The answer where coordination was away for too long; nothing is stored."""
    sentence = "the coordination store does not answer"
    return Unavailable(sentence, code=Code.COORDINATION_UNAVAILABLE)


def timed_out() -> Unavailable:
    """The answer where a commit was sent, and nobody said in time what became of it."""
    return Unavailable(
        "the coordination store did not say in time whether the records are stored",
        code=Code.COMMIT_TIMEOUT,
        outcome=Outcome.UNKNOWN,
    )


def taken_for_dead() -> Unavailable:
    """The answer where others settled what this node had put; nothing is stored."""
    sentence = "this node was taken for dead; send the same again"
    return Unavailable(sentence, code=Code.COORDINATION_UNAVAILABLE, retry_after_seconds=1)


def beginning() -> Unavailable:
    """The answer before a writer has begun, and after it has lost its instance."""
    sentence = "no leaderless stream can be written yet"
    return Unavailable(sentence, code=Code.COORDINATION_UNAVAILABLE, retry_after_seconds=1)


def stopping() -> Unavailable:
    """The answer of a node that ends; nothing is stored."""
    return Unavailable("this node stops", code=Code.DRAINING, retry_after_seconds=1)
