"""What it would be to do without guards of queues, and the seeds that miss them."""

from itertools import count
from typing import Any, Final, NamedTuple

from support.guards import guarded

from bottomless_server.queues.ledger import statements
from bottomless_server.queues.rounds.round_writer import RoundWriter
from bottomless_server.queues.rounds.work import Ended


class QueueGuard(NamedTuple):
    """A guard of queues, without which these seeds fail."""

    variant: Any
    """Stands in its place."""
    seeds: list[int]
    troubles: str = "crashes"
    place: tuple[Any, str] | None = None
    """Where it stands, of a guard without a name of its own."""


_REPEAT: Final = "a repeat of a publish is told what the first one was told"


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _committed_all_the_same(writer: RoundWriter) -> None:
    """Rows are committed of messages whose bytes are nowhere."""
    writer._ledger.commit()


def _as_hoped(writer: RoundWriter, ended: Ended) -> Ended | None:
    """Whatever became of a round in doubt, it is answered as if it were there."""
    found = writer.settle()
    return None if found is None else ended


def _as_new(_: Any, *rest: Any) -> Any:
    """Nobody remembers a publish."""
    return guarded(_REPEAT)(None, *rest)


_numbers = count(1_000_000)


def _next_number(_: Any) -> int:
    """Each time that a row is sent it has another number."""
    return next(_numbers)


QUEUE_GUARDS: Final[dict[str, QueueGuard]] = {
    "the bytes of a round are durable before its rows": QueueGuard(_nothing, [2]),
    "sync of a new file's directory": QueueGuard(_nothing, [1], "power"),
    "a round whose bytes are not durable is rolled back": QueueGuard(_committed_all_the_same, [1]),
    "a round in doubt is answered after the ledger was opened anew and checkpointed": QueueGuard(
        _as_hoped, [1], "ledgers"
    ),
    _REPEAT: QueueGuard(_as_new, [7]),
    "the number of an outgoing row is its publishing id": QueueGuard(_next_number, [2]),
    "the home's lease, at a takeover of queues": QueueGuard(_nothing, [1], "clocks"),
    "the reference count of a message": QueueGuard(
        "DELETE FROM message WHERE id = ? AND refs >= ?",
        [1],
        place=(statements, "MESSAGE_LAST_REF"),
    ),
}
