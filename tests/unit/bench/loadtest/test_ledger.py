"""Whether a stream holds what was acknowledged: each record once, at its offset, with its bytes."""

import pytest
from support.numbered_records import value_of

from bench.loadtest.ledger import FAULT_COUNT_MAX, ProducerLedger, StreamReading

SIZE_MAX = 50


class Stream:
    """A stream of two producers that takes appends as a good server does."""

    def __init__(self) -> None:
        self.ledgers = [ProducerLedger(7, SIZE_MAX), ProducerLedger(8, SIZE_MAX)]
        self.values: list[str] = []

    def append(self, producer: int, count: int = 2, *, answered: bool = True) -> None:
        ledger = self.ledgers[producer]
        values = ledger.begin(count)
        first = len(self.values)
        self.values += values
        if answered:
            assert ledger.acknowledge(first, values) is None

    def read(self, values: list[str] | None = None, first: int = 0) -> StreamReading:
        reading = StreamReading("orders", self.ledgers)
        for offset, value in enumerate(self.values if values is None else values, first):
            reading.take(offset, value)
        reading.finish()
        return reading


@pytest.fixture
def stream() -> Stream:
    made = Stream()
    for producer in (0, 1, 1, 0, 0, 1):
        made.append(producer)
    return made


def test_what_was_acknowledged_and_is_there_adds_up(stream: Stream) -> None:
    reading = stream.read()
    assert reading.faults == []
    assert (reading.next_offset, reading.unknown_stored) == (12, 0)


@pytest.mark.parametrize("lost", range(12))
def test_a_record_that_is_lost_is_noticed(stream: Stream, lost: int) -> None:
    del stream.values[lost]
    assert stream.read().faults


def test_the_last_append_that_is_lost_is_noticed_and_told(stream: Stream) -> None:
    del stream.values[-2:]
    assert stream.read().faults == [
        "orders: producer 8: acknowledged, and not there: 4 to 5",
    ]


@pytest.mark.parametrize("doubled", range(12))
def test_a_record_that_is_doubled_is_noticed(stream: Stream, doubled: int) -> None:
    stream.values.append(stream.values[doubled])
    [fault] = stream.read().faults
    assert "is doubled, or out of order" in fault


def test_records_at_other_offsets_are_noticed_by_the_chain_alone(stream: Stream) -> None:
    """All of them are there once and in the order of their producers, and no offset is missing."""
    one = [value for value in stream.values if value.startswith("7 ")]
    two = [value for value in stream.values if value.startswith("8 ")]
    reading = stream.read(one + two)
    assert len(reading.faults) == 2
    assert all("is not what is there" in fault for fault in reading.faults)


def test_a_gap_in_the_offsets_is_noticed(stream: Stream) -> None:
    reading = stream.read(first=1)
    assert reading.faults[0] == "orders: after offset -1 came 1"


@pytest.mark.parametrize("place", range(12))
def test_other_bytes_are_noticed(stream: Stream, place: int) -> None:
    stream.values[place] += "x"
    assert "nobody sent what stands at offset" in stream.read().faults[0]


def test_other_bytes_are_noticed_by_the_chain_too() -> None:
    """Had a producer sent other bytes than those that its numbers say, the chain would know."""
    stream = Stream()
    ledger = stream.ledgers[0]
    ledger.begin(1)
    ledger.acknowledge(0, ["7 0 other"])
    [fault] = stream.read([value_of(7 << 40, SIZE_MAX)]).faults
    assert "with its bytes" in fault


@pytest.mark.parametrize("stored", [True, False])
def test_an_outcome_that_was_never_known_may_be_either(stream: Stream, stored: bool) -> None:
    stream.append(0, 3, answered=False)
    stream.append(1, 1)
    if not stored:
        del stream.values[12:15]
        # Then the offsets of what came after it were others.
        stream.ledgers[1].chain = b""
        stream = _told_again(stream)
    reading = stream.read()
    assert reading.faults == []
    assert reading.unknown_stored == (3 if stored else 0)


def _told_again(stream: Stream) -> Stream:
    again = Stream()
    for producer in (0, 1, 1, 0, 0, 1):
        again.append(producer)
    again.ledgers[0].begin(3)
    again.append(1, 1)
    return again


def test_a_record_that_was_never_sent_is_noticed(stream: Stream) -> None:
    stream.values.append(value_of(7 << 40 | 6, SIZE_MAX))
    [fault] = stream.read().faults
    assert "was never sent" in fault


def test_an_offset_that_was_told_twice_is_noticed() -> None:
    ledger = ProducerLedger(7, SIZE_MAX)
    assert ledger.acknowledge(4, ledger.begin(2)) is None
    assert ledger.acknowledge(5, ledger.begin(2)) is not None


def test_a_producer_has_one_append_under_way() -> None:
    ledger = ProducerLedger(7, SIZE_MAX)
    ledger.begin(1)
    with pytest.raises(AssertionError):
        ledger.begin(1)


def test_faults_of_a_stream_are_counted_and_the_first_are_told(stream: Stream) -> None:
    reading = stream.read([f"stranger {number}" for number in range(20)])
    assert len(reading.faults) == FAULT_COUNT_MAX
    assert reading.fault_count > 20
