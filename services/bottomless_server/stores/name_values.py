"""What the value of a name says: which stream has it, or which super stream.

Streams and super streams have their names of one space, so that no two things of a tenant share one.
The value of a stream's name is its id; that of a super stream's begins with a mark, which no id does.
"""

from typing import Final, NamedTuple

from bottomless.model.names import StreamId, SuperId

_SUPER: Final = "super:"


def value_of_super(super_id: SuperId) -> bytes:
    """The value of the name of a super stream."""
    return f"{_SUPER}{super_id}".encode("ascii")


def super_in(value: bytes | None) -> SuperId | None:
    """The super stream that has a name, by the name's value; None of any other name."""
    text = "" if value is None else value.decode("ascii", "backslashreplace")
    return SuperId(text.removeprefix(_SUPER)) if text.startswith(_SUPER) else None


def stream_in(value: bytes | None) -> StreamId | None:
    """The stream that has a name, by the name's value; None of any other name."""
    if value is None or super_in(value) is not None:
        return None
    return StreamId(value.decode("ascii"))


class Holder(NamedTuple):
    """The stream, or the super stream, that has a name."""

    stream_id: StreamId | None
    super_id: SuperId | None


def holder_in(value: bytes | None) -> Holder:
    """Find the holder of a name by the value of the name."""
    return Holder(stream_in(value), super_in(value))
