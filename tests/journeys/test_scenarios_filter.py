"""Reads with a filter over HTTP, from every place that they are read from: scenarios F1 to F10.

F7 and F9 append frames of each codec; F10 restarts the server between two consumers.
"""

import json
from typing import Any, Final

import pyarrow as pa
import pytest
from support.contract import ARROW, QUICK, Stream, new_stream, problem_of
from support.places import FREEING, LOCAL, Here, free_local
from support.served import Served

from bottomless import Client
from bottomless.formats.batch import Codec, decode_frames, encode_frame, schema_of
from bottomless.formats.chunk import batches_of, split_chunks
from bottomless.model.record import Columns

SETTINGS = FREEING
CHUNKS: Final = "application/vnd.bottomless.chunks"
FRAMES: Final = "application/vnd.bottomless.batches"
NDJSON: Final = "application/x-ndjson"
MIXED: Final = ("a", "b", None, "", "a", None, "c")
COUNT: Final = 70
MANY: Final = 2_000


def value_at(offset: int) -> str | None:
    return MIXED[offset % len(MIXED)]


def record(offset: int) -> dict[str, str]:
    value = value_at(offset)
    kept = {} if value is None else {"filter_value": value}
    return {"value": str(offset), "key": f"k{offset % 3}", **kept}


def appended(stream: Stream, *records: dict[str, str]) -> None:
    answer = stream.post(*records)
    assert answer.status_code == 200, answer.text


def fill_mixed(stream: Stream, freed: bool) -> None:
    """Batches in which all values stand beside each other; each a fragment, where there are any."""
    for first in range(0, COUNT, 10):
        appended(stream, *(record(offset) for offset in range(first, first + 10)))
        if freed:
            stream.wait_uploaded()


def fill_many(stream: Stream, _: bool) -> None:
    """So many values that no filter of a few bytes could tell them apart."""
    for first in range(0, MANY, 500):
        appended(
            stream,
            *({"value": "v", "filter_value": f"v{n}"} for n in range(first, first + 500)),
        )


def fill_framed(stream: Stream, _: bool) -> None:
    """F9: a batch of each codec, of records that are alike."""
    for codec in Codec:
        columns = Columns.VALUE | Columns.CONTENT | Columns.FILTER_VALUE
        values = [None if number % 2 else "even" for number in range(10)]
        batch = pa.record_batch(
            [
                pa.array([b"x" * 200] * 10),
                pa.array([0] * 10, pa.uint8()),
                pa.array(values, pa.utf8()),
            ],
            schema=schema_of(columns),
        )
        answer = stream.client.post(
            stream.records, content=encode_frame(batch, codec), headers={"Content-Type": FRAMES}
        )
        assert answer.status_code == 200, answer.text


FILLS = {"mixed": fill_mixed, "many": fill_many, "framed": fill_framed}


@pytest.fixture(scope="module")
def mixed(here: Here) -> Stream:
    return here.streams["mixed"]


def offsets_of(page: dict[str, Any]) -> list[int]:
    return [each["offset"] for each in page["records"]]


def expected(*values: str | None, first: int = 0) -> list[int]:
    return [offset for offset in range(first, COUNT) if value_at(offset) in values]


def test_f1_a_filter_tells_records_of_one_batch_apart(mixed: Stream) -> None:
    page = mixed.page(filter="a")

    assert offsets_of(page) == expected("a")
    assert {each["filter_value"] for each in page["records"]} == {"a"}
    assert (page["next_offset"], page["up_to_date"]) == (COUNT, True)


def test_f2_several_values_come_in_the_order_of_offsets(mixed: Stream) -> None:
    assert offsets_of(mixed.page(filter=["b", "a"])) == expected("a", "b")


def test_f3_records_without_a_value_come_where_they_are_asked_for(mixed: Stream) -> None:
    assert offsets_of(mixed.page(filter="a", match_unfiltered="true")) == expected("a", None)


def test_f4_they_are_not_asked_for_alone(mixed: Stream) -> None:
    problem_of(mixed.get(match_unfiltered="true"), 400, "bad-parameter")


def test_f5_a_value_that_never_was_is_looked_for_in_bounded_steps(mixed: Stream) -> None:
    page = mixed.page(filter="never")

    assert page["records"] == []
    assert (page["next_offset"], page["up_to_date"]) == (COUNT, True)
    assert page["scanned_bytes"] + page["skipped_bytes"] > 0
    assert mixed.page(10, filter="never", until_offset=30)["next_offset"] == 30


def test_f6_reads_are_exact_whatever_number_of_values_there_is(here: Here) -> None:
    many = here.streams["many"]
    for number in (0, 7, MANY - 1):
        assert offsets_of(many.page(filter=f"v{number}")) == [number]
    assert many.page(filter="v")["records"] == []


def test_f7_chunks_that_hold_a_match_come_whole(mixed: Stream) -> None:
    answer = mixed.client.get(
        mixed.records,
        params={"offset": "first", "filter": "c", "key": "k0", "filter_mode": "chunk"},
        headers={"Accept": CHUNKS},
    )
    assert answer.status_code == 200, answer.text
    found: list[int] = []
    for header, chunk in split_chunks(memoryview(answer.content)):
        count = 0
        first = header.first_offset
        for batch in decode_frames(batches_of(header, chunk)):
            rows = zip(batch["filter_value"].to_pylist(), batch["key"].to_pylist(), strict=True)
            matching = [n for n, row in enumerate(rows) if row == ("c", b"k0")]
            found += [first + number for number in matching]
            count += len(matching)
            first += batch.num_rows
        assert count > 0, "no chunk comes that holds nothing"
    assert found == [offset for offset in expected("c") if offset % 3 == 0]
    assert int(answer.headers["page-next-offset"]) == COUNT


def test_f8_the_longest_value_is_taken_and_the_empty_one_is_a_value(mixed: Stream) -> None:
    assert mixed.page(filter="x" * 255)["records"] == []
    assert mixed.page(filter=[str(number) for number in range(16)])["records"] == []
    assert offsets_of(mixed.page(filter="")) == expected("")
    problem_of(mixed.get(filter="x" * 256), 400, "bad-parameter")
    problem_of(mixed.get(filter=[str(number) for number in range(17)]), 400, "bad-parameter")


def test_f9_batches_of_every_codec_are_filtered(here: Here) -> None:
    framed = here.streams["framed"]
    count = 10 * len(Codec)

    assert offsets_of(framed.page(filter="even")) == list(range(0, count, 2))


def test_keys_are_asked_for_as_values_are_and_with_them(mixed: Stream) -> None:
    of_key = [offset for offset in range(COUNT) if offset % 3 == 1]

    assert offsets_of(mixed.page(key="k1")) == of_key
    assert offsets_of(mixed.page(key_base64="azE=")) == of_key
    both = [offset for offset in of_key if value_at(offset) == "a"]
    assert offsets_of(mixed.page(key="k1", filter="a")) == both


def test_no_form_has_a_record_that_was_not_asked_for(mixed: Stream) -> None:
    parameters = {"offset": "5", "filter": "b", "limit": "100"}
    arrow = mixed.client.get(mixed.records, params=parameters, headers={"Accept": ARROW})
    lines = mixed.client.get(mixed.records, params=parameters, headers={"Accept": NDJSON})
    until = {**parameters, "until_offset": str(COUNT)}
    open_lines = mixed.client.get(
        mixed.records, params={**until, "follow": "true"}, headers={"Accept": NDJSON}
    )
    events = mixed.client.get(mixed.records, params=until, headers={"Accept": "text/event-stream"})

    wanted = expected("b", first=5)
    assert pa.ipc.open_stream(arrow.content).read_all()["offset"].to_pylist() == wanted
    for answer in (lines, open_lines):
        told = [json.loads(line) for line in answer.text.splitlines()]
        assert [each["offset"] for each in told if "offset" in each] == wanted
    data = [
        json.loads(line.removeprefix("data: "))
        for line in events.text.splitlines()
        if line.startswith("data: ")
    ]
    found = [each["offset"] for batch in data for each in batch.get("records", ())]
    assert found == wanted
    assert data[-1]["reason"] == "until-offset"


@pytest.mark.parametrize("config", [LOCAL, QUICK], ids=["tail", "object storage"])
def test_f10_no_match_is_missed_by_who_goes_on_after_a_restart(
    running: Served, config: dict[str, Any]
) -> None:
    """The stored offset is after what was passed over."""
    with Client(running.url) as client, running.client() as plain:
        stream = new_stream(plain, config)

        def fill(first: int) -> None:
            for offset in range(first, first + 20):
                appended(stream, record(offset))
            if config is QUICK:
                free_local(running, stream)

        fill(0)
        with client.consumer(stream.name, "billing", filter=["c"], commit_seconds=0) as consumer:
            found = [each.offset for each in next(consumer).records]
            consumer.commit()
        running.restart()
        fill(20)
        with client.consumer(stream.name, "billing", filter=["c"]) as consumer:
            while found[-1] < 34:
                found += [each.offset for each in next(consumer).records]
        pages = client.arrow_pages(stream.name, "first", filter=("c",), columns="offset")
        paged = [offset for page in pages for offset in page.table["offset"].to_pylist()]

    wanted = [offset for offset in range(40) if value_at(offset) == "c"]
    assert found == paged == wanted
