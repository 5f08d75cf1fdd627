from dataclasses import replace

import pytest

from bottomless.model.stream import EpochStart, Intent, StreamRecord, check_record, epoch_at
from unit.formats.examples import OTHER_UID, RECORD, UID


def with_epochs(*starts: tuple[int, int]) -> StreamRecord:
    return replace(RECORD, epochs=tuple(EpochStart(*start) for start in starts))


def test_an_offset_is_of_the_last_epoch_that_started_at_or_below_it() -> None:
    record = with_epochs((2, 10), (3, 20), (5, 20), (6, 30))
    assert [epoch_at(record, offset) for offset in (9, 10, 19, 20, 29, 30, 10**9)] == [
        None,
        2,
        2,
        5,
        5,
        6,
        6,
    ]


def test_no_epoch_is_known_of_a_stream_without_an_owner() -> None:
    assert epoch_at(with_epochs(), 0) is None


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, reserved_next=0),
        replace(RECORD, root=None),
        with_epochs((2, 10), (3, 10)),
    ],
)
def test_possible_records_pass(record: StreamRecord) -> None:
    check_record(record)


@pytest.mark.parametrize(
    "record",
    [
        replace(RECORD, published_next=RECORD.reserved_next + 1),
        replace(RECORD, version=16),
        with_epochs((3, 10), (3, 20)),
        with_epochs((2, 20), (3, 10)),
        replace(RECORD, intents=(Intent(UID, 0, "a"), Intent(UID, 1, "a")), quarantine=()),
        replace(RECORD, intents=(Intent(OTHER_UID, 0, "a"),), quarantine=RECORD.intents),
    ],
)
def test_impossible_records_are_found(record: StreamRecord) -> None:
    with pytest.raises(AssertionError):
        check_record(record)
