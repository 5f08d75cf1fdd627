"""The end of a stream is asked for seldom, and waited for where there is nothing new."""

from typing import Any

from bottomless.spark.tip import SPACING_SECONDS, WAIT_MS, Tip


class Reader:
    """Answers as `GET …/offsets` does; a wait is over at once, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.next_offset = 10
        self.asked: list[dict[str, int]] = []

    def ask(self, query: dict[str, int]) -> dict[str, Any]:
        self.asked.append(query)
        if query.get("after") == self.next_offset:
            self.now += query["wait_ms"] / 1000
        return {
            "stream_id": "0198d2a4-5b1e-7c3a-9a51-0f7e6f0d2c11",
            "first_offset": 0,
            "next_offset": self.next_offset,
            "object_store_next_offset": 4,
        }

    def tip(self, *, tail: bool = True) -> Tip:
        return Tip(self.ask, lambda: self.now, tail=tail)


def test_a_busy_stream_is_asked_at_most_every_quarter_of_a_second() -> None:
    reader = Reader()
    tip = reader.tip()
    for _ in range(100):
        assert tip.beyond(0).next_offset == 10
        reader.now += 0.01
    assert len(reader.asked) == 4
    assert not any(reader.asked)


def test_an_idle_stream_is_waited_for() -> None:
    reader = Reader()
    tip = reader.tip()
    began = reader.now
    while reader.now < began + 10:
        assert tip.beyond(10).next_offset == 10
        reader.now += 0.01
    assert len(reader.asked) <= 21
    assert reader.asked[1:] == [{"wait_ms": WAIT_MS, "after": 10}] * (len(reader.asked) - 1)


def test_news_are_seen_by_the_next_request() -> None:
    reader = Reader()
    tip = reader.tip()
    tip.beyond(10)
    reader.next_offset = 11
    assert tip.beyond(10).next_offset == 10
    reader.now += SPACING_SECONDS
    assert tip.beyond(10).next_offset == 11


def test_what_is_known_costs_nothing() -> None:
    reader = Reader()
    tip = reader.tip()
    assert tip.known is None
    tip.refresh()
    known = tip.known
    assert known is not None
    assert (tip.end(known), reader.tip(tail=False).end(known)) == (10, 4)
    assert len(reader.asked) == 1
