"""What WAL objects prove of coordination, and what they do not."""

from typing import Any

import pytest

from bottomless_server.leaderless.proof import lacks, shows_less
from bottomless_server.leaderless.tail import TailState
from unit.formats.examples import NOTE, TAIL, WAL_INSTANCE, a_wal

HEADER = a_wal().header


@pytest.mark.parametrize(
    ("changed", "less"),
    [
        ({"attempt": WAL_INSTANCE.attempt}, False),
        ({"attempt": WAL_INSTANCE.attempt + 1}, True),
        ({"attempt": WAL_INSTANCE.attempt + 1, "generation": 2}, False),
        ({"attempt": 0, "sequence": WAL_INSTANCE.reserved - 1}, False),
        ({"attempt": 0, "sequence": WAL_INSTANCE.reserved}, True),
    ],
)
def test_a_record_below_what_an_object_of_its_generation_says_is_an_older_one(
    changed: dict[str, Any], less: bool
) -> None:
    assert shows_less(WAL_INSTANCE, HEADER._replace(**changed)) is less


def test_a_tail_below_what_is_noted_of_its_stream_is_an_older_one() -> None:
    note = NOTE._replace(epoch=TAIL.epoch, number=TAIL.number)
    later = note._replace(number=TAIL.number + 1)
    assert not lacks(TAIL, note)
    assert lacks(TAIL, later)
    assert not lacks(TAIL._replace(state=TailState.CLOSED), later), "its stream is being deleted"
    assert not lacks(TAIL._replace(epoch=TAIL.epoch + 1), later), "a rebuild counts anew"
