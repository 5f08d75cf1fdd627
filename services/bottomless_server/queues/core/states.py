"""States of what the ledger has rows of. The numbers stand in the database: none is ever given anew."""

from enum import IntEnum


class ItemState(IntEnum):
    """Where a message is in the life that it has in one queue."""

    READY = 0
    """The next consumer gets it."""
    IN_FLIGHT = 1
    """A consumer has it, until `due_at`."""
    DELAYED = 2
    """Nobody gets it before `due_at`."""
    DAMAGED = 3
    """Its bytes are lost or wrong; it stays for an operator."""


class FileState(IntEnum):
    """What is done with a message file."""

    OPEN = 0
    """New records go to its end. One file at most is open."""
    SEALED = 1
    """It gets no more records."""
    MOVING = 2
    """Compaction or a rewrite is at work on it."""
    DAMAGED = 3
    """Its framing is broken; it lies aside for an operator."""
    DOOMED = 4
    """No message needs it: it is removed as soon as nobody reads it."""


class QueueState(IntEnum):
    """Whether a queue is there."""

    LIVE = 0
    DELETED = 1
    """Its row stays until its registry object is removed."""


def state_without(state: FileState, valid: int) -> FileState:
    """The state of a file with `valid` bytes of live records: a sealed one without any is doomed."""
    return FileState.DOOMED if state is FileState.SEALED and valid == 0 else state
