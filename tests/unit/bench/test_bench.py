"""The parts of the bench that compute: whatever they get wrong, a table states as measured."""

import struct
from dataclasses import replace

import fastcrc
import pyarrow as pa
import pytest

from bench import tables
from bench.figures import Figure, Goal, Spread, at_most, ratios, times
from bench.pump import HEADER, Request, pack
from bench.rows import ROWS
from bench.wire import http, kafka, nats, rabbit, resp


def figure(rate: float, **more: float) -> Figure:
    return replace(Figure(units=rate * 2, seconds=2), **more)  # type: ignore[arg-type]


def test_a_ratio_compares_the_two_figures_of_one_round() -> None:
    sides = {"ours": [figure(100), figure(10)], "theirs": [figure(50), figure(5)]}
    assert ratios(sides, "ours", "theirs") == [2, 2]
    assert ratios(sides, "ours", "nobody") is None


def test_a_goal_is_met_by_the_median_round() -> None:
    theirs = [figure(10)] * 3
    goal = times("twice", "ours", "theirs", 2)
    met = goal.judge({"ours": [figure(10), figure(20), figure(90)], "theirs": theirs})
    missed = goal.judge({"ours": [figure(10), figure(19), figure(90)], "theirs": theirs})
    assert (met.met, missed.met) == (True, False)
    assert met.found == Spread(1, 2, 9)


def test_a_goal_without_its_peer_is_neither_met_nor_missed() -> None:
    verdict = times("twice", "ours", "theirs", 2).judge({"ours": [figure(10)]})
    assert verdict.met is None
    assert verdict.found is None


def test_a_goal_may_be_a_bound_from_above_or_none_at_all() -> None:
    sides = {"ours": [figure(1, p99_ms=4.0)]}
    bounded = at_most("p99", "ours", lambda one: one.p99_ms, 5, "ms").judge(sides)
    known = Goal("p99", lambda given: [one.p99_ms for one in given["ours"]]).judge(sides)
    assert (bounded.met, known.met) == (True, None)
    assert known.found == Spread(4, 4, 4)


def test_cpu_is_per_million_of_all_that_was_answered() -> None:
    found = Figure(units=1_000_000, seconds=1, cpu_seconds=3, units_all=2_000_000)
    assert found.cpu_per_million == 1.5
    assert Figure.from_json(found.to_json()) == found


def test_requests_are_packed_behind_their_numbers() -> None:
    packed = pack([Request(b"abc", 10, 2), Request(b"", 1)])
    assert packed == HEADER.pack(3, 10, 2, 0) + b"abc" + HEADER.pack(0, 1, 1, 0)


def test_our_appends_are_what_they_say() -> None:
    body = http.arrow_body(50)
    assert pa.ipc.open_stream(body).read_all().num_rows == 50
    head, _, sent = http.append("s", http.ARROW, body).partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(sent) in head


@pytest.mark.parametrize("make", [rabbit.plain_request, rabbit.batch_request])
def test_a_frame_of_rabbitmq_says_its_size_and_holds_each_message(make: object) -> None:
    request = make(http.values(3))  # type: ignore[operator]
    (size,) = struct.unpack_from(">I", request.content)
    assert size == len(request.content) - 4
    assert request.content[4:8] == bytes([0, rabbit.PUBLISH, 0, rabbit.VERSION])
    assert all(rabbit.message(value) in request.content for value in http.values(3))
    assert (request.units, request.replies) == (3, 3 if make is rabbit.plain_request else 1)


def test_a_sub_entry_of_rabbitmq_counts_its_messages_and_bytes() -> None:
    content = rabbit.publish_batch(1, [b"ab", b"c"])
    block = b"\0\0\0\x07\0\x53\x75\xa0\x02ab" + b"\0\0\0\x06\0\x53\x75\xa0\x01c"
    entry = struct.pack(">QBHII", 0, 0x80, 2, len(block), len(block)) + block
    assert content[8:] == b"\x01\0\0\0\x01" + entry


def test_a_batch_of_kafka_has_its_size_and_crc() -> None:
    batch = kafka.record_batch(http.values(200))
    first, size, _ = kafka.BATCH_HEAD.unpack_from(batch)
    magic, crc = struct.unpack_from(">bI", batch, 16)
    assert (first, size, magic) == (0, len(batch) - 12, 2)
    assert crc == fastcrc.crc32.iscsi(batch[21:])
    assert kafka.next_offset(batch + batch[:100]) == 200
    assert kafka.next_offset(batch[:-1]) is None


def test_numbers_of_kafka_are_zigzag() -> None:
    found = {number: kafka.varint(number) for number in (0, -1, 1, 63, 64, 300)}
    expected = {0: b"\0", -1: b"\1", 1: b"\2", 63: b"\x7e", 64: b"\x80\1", 300: b"\xd8\4"}
    assert found == expected


def test_the_others_have_one_command_a_record() -> None:
    assert nats.publish([b"ab"]).content == b"PUB bench _INBOX.bench 2\r\nab\r\n"
    assert resp.command(b"PING", b"a") == b"*2\r\n$4\r\nPING\r\n$1\r\na\r\n"
    assert resp.add(http.values(7)).replies == nats.publish(http.values(7)).replies == 7


def test_numbers_are_told_with_three_digits() -> None:
    told = [tables.number(value) for value in (0.123456, 12.345, 1_234, 9_876_543)]
    assert told == ["0.123", "12.3", "1.23 k", "9.88 M"]


def test_tables_say_what_was_missed_and_what_was_not_measured() -> None:
    row = {
        "title": "Work",
        "unit": "records",
        "started": "2026-01-01 00:00",
        "machine": {"commit": "abc", "kernel": "6"},
        "rounds": 1,
        "seconds": 1,
        "load_before": 1,
        "load_after": 2,
        "sides": {"ours": [figure(1_000, rss_mib=10.0).to_json()]},
        "goals": [
            {"goal": "much", "met": False, "unit": "x", "found": [1, 2, 3]},
            {"goal": "more", "met": None, "unit": "x", "found": None},
        ],
        "missing": {"theirs": "no | such\nthing"},
        "notes": ["A note."],
        "versions": {"RabbitMQ": "3"},
    }
    page = tables.page({"work": row})
    assert "| Work | much | 2 (1 to 3) x | **not met** |" in page
    assert "| Work | more |  | not measured |" in page
    assert "| theirs | not measured: no / such thing |" in page
    assert "| ours | 1 k |" in page
    assert tables.waiting({"work": "Work", "more": "More"}, {"work": row}) == (
        "Not measured yet: More (`more`).\n\n"
    )


def test_every_row_has_a_goal_but_those_that_only_count() -> None:
    assert {name for name, row in ROWS.items() if not row.goals} == {"idle-streams", "instructions"}
