"""The parts of the bench that compute: whatever they get wrong, a table states as measured."""

import struct
from dataclasses import replace

import fastcrc
import numpy as np
import pyarrow as pa
import pytest

from bench import tables
from bench.__main__ import chosen
from bench.figures import (
    Figure,
    Goal,
    Spread,
    at_most,
    bytes_ratios,
    per_gib,
    quantile,
    ratios,
    times,
)
from bench.plan import seconds_of
from bench.pump import HEADER, Request, pack, quantiles
from bench.rows import ROWS
from bench.servers.ours import Counters
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


def test_a_quantile_is_a_value_that_was_measured_and_that_its_part_does_not_exceed() -> None:
    hundred = [float(number) for number in range(1, 101)]
    found = [quantile(hundred, part) for part in (0, 0.5, 0.99, 0.991, 0.999, 1)]
    assert found == [1, 50, 99, 100, 100, 100]
    assert [quantile([7.0], part) for part in (0, 0.5, 0.999)] == [7, 7, 7]
    assert quantile([float(number) for number in range(1, 1001)], 0.999) == 999
    assert quantile([], 0.99) == 0


def test_latencies_are_ordered_before_they_are_counted_and_told_in_milliseconds() -> None:
    slowest_first = np.arange(2_000, 0, -1, dtype="<u4")
    assert quantiles(slowest_first) == {"p50_ms": 1.0, "p99_ms": 1.98, "p999_ms": 1.998}
    assert set(quantiles(slowest_first[:0]).values()) == {0}


def test_what_is_sent_is_compared_in_bytes_and_paid_by_the_gib() -> None:
    half = Figure(units=1, seconds=2, cpu_seconds=0.75, extra={"received": 1 << 29})
    twice = Figure(units=9, seconds=1, cpu_seconds=1, extra={"received": 1 << 29})
    assert bytes_ratios({"ours": [twice], "theirs": [half]}, "ours", "theirs") == [2]
    assert bytes_ratios({"ours": [twice]}, "ours", "theirs") is None
    assert per_gib(half) == 1.5


def test_a_row_is_planned_by_how_long_it_took() -> None:
    kept = {"took_seconds": 100, "rounds": 3, "seconds": 2}
    assert seconds_of(kept, 7, 3, 2) == 100
    assert seconds_of(kept, 7, 6, 2) == 150
    assert seconds_of(None, 7, 6, 2) == 7


def test_rows_run_once_each_in_the_order_of_their_names() -> None:
    named = [row.name for row in chosen(["one-record", "append-pipelined", "append"])]
    assert named[:3] == ["one-record", "append-pipelined-10k", "append-pipelined-64k"]
    assert len(named) == len(set(named))
    assert [row.name for row in chosen([])] == list(ROWS)


def test_what_a_server_counted_is_added_up_by_its_labels() -> None:
    counted = Counters(
        "# TYPE calls counter\n"
        'calls{operation="put",outcome="ok"} 3\n'
        'calls{operation="put",outcome="late"} 1.5e1\n'
        'calls{operation="get",outcome="ok"} 2\n'
        "calls_more 100\n"
        "dollars 1e-05\n"
    )
    assert counted.by("calls", "operation") == {"put": 18, "get": 2}
    assert (counted.total("calls"), counted.total("dollars"), counted.total("none")) == (
        20,
        1e-5,
        0,
    )


def test_requests_are_packed_after_their_numbers() -> None:
    packed = pack([Request(b"abc", 10, 2), Request(b"", 1, tag=9)])
    assert packed == HEADER.pack(3, 10, 2, 0) + b"abc" + HEADER.pack(0, 1, 1, 9)


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


def test_streams_of_the_peers_are_told_apart() -> None:
    """Confirms and acknowledgements of a thousand streams come in any order."""
    frame = rabbit.plain_request(http.values(1), 200)
    assert (frame.content[8], frame.tag) == (200, 200)
    message = nats.publish([b"ab"], "many-1", "_INBOX.bench3", 17)
    assert message.content == b"PUB many-1 _INBOX.bench3.17 2\r\nab\r\n"
    assert message.tag == 17
    assert b"many-1" in kafka.produce([b"ab"], "many-1").content


def test_a_batch_of_nats_is_committed_and_acknowledged_once() -> None:
    request = nats.publish_atomic([b"ab", b"c"], "many-1", "_INBOX.bench3", 17)
    first = b"NATS/1.0\r\nNats-Batch-Id: 17\r\nNats-Batch-Sequence: 1\r\n\r\n"
    last = (
        b"NATS/1.0\r\nNats-Batch-Id: 17\r\nNats-Batch-Sequence: 2\r\nNats-Batch-Commit: 1\r\n\r\n"
    )
    assert request.content == (
        b"HPUB many-1 %d %d\r\n%sab\r\n" % (len(first), len(first) + 2, first)
        + b"HPUB many-1 _INBOX.bench3.17 %d %d\r\n%sc\r\n" % (len(last), len(last) + 1, last)
    )
    assert (request.units, request.replies) == (2, 1)


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
