"""The records of a request, divided among the partitions of a super stream."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guards import remove

from bottomless.errors import Code, InvalidRequest
from bottomless.formats.batch import Codec, decode_frames
from bottomless.formats.rows import build_batch, encode_frames
from bottomless.model.limits import MIB
from bottomless.model.record import Content
from bottomless.model.routing import SEED
from bottomless.model.rows import Rows
from bottomless_server.ingest.records.dividing import Divided, Routes, divide
from bottomless_server.ingest.records.intake import Append, take_arrow, take_frames

SIZE_MAX = 8 * MIB
THREE = Routes(3)
BOUND = Routes(2, (b"amer", b"emea"))


def of_rows(keys: Sequence[bytes | None], **columns: Any) -> Append:
    values = [b"v%d" % number for number in range(len(keys))]
    rows = Rows(values, [Content.TEXT] * len(keys), list(keys), **columns)
    return Append(len(keys), rows.size, 77, rows)


def records_of(part: Divided) -> list[dict[str, Any]]:
    data = b"".join(bytes(frame.data) for frame in part.append.frames)
    return [row for batch in decode_frames(memoryview(data)) for row in batch.to_pylist()]


def values_of(parts: Mapping[int, Divided]) -> dict[int, list[bytes]]:
    return {index: [row["value"] for row in records_of(part)] for index, part in parts.items()}


def indexes_of(parts: Mapping[int, Divided]) -> dict[int, list[int]]:
    return {index: part.record_indexes.tolist() for index, part in parts.items()}


def test_each_record_goes_where_its_key_leads_in_the_order_of_the_request() -> None:
    """Scenario P1."""
    parts = divide(of_rows([b"hello%d" % number for number in range(1, 11)]), THREE, SIZE_MAX)
    assert indexes_of(parts) == {0: [1, 4, 6, 8], 1: [0, 2, 7], 2: [3, 5, 9]}
    assert values_of(parts)[2] == [b"v3", b"v5", b"v9"]
    assert SEED == 104_729


def test_all_columns_of_a_record_go_with_it() -> None:
    headers = [[("type", b"order")], None]
    append = of_rows(
        [b"hello1", b"hello2"],
        headers=headers,
        event_times=[5, None],
        filter_values=[None, "emea"],
    )
    parts = divide(append, THREE, SIZE_MAX)
    [first] = records_of(parts[1])
    [second] = records_of(parts[0])
    assert (first["headers"], first["filter_value"]) == (headers[0], None)
    assert (second["event_time"], second["filter_value"]) == (None, "emea")


def test_a_part_has_the_checksum_of_the_whole_body_and_the_size_of_its_own() -> None:
    parts = divide(of_rows([b"hello1", b"hello2"]), THREE, SIZE_MAX)
    for part in parts.values():
        assert part.append.body_crc == 77
        assert part.append.record_count == 1
        assert part.append.size == sum(frame.size for frame in part.append.frames)


def test_a_record_without_a_key_refuses_all_of_them_and_is_pointed_to() -> None:
    """Scenario P5."""
    with pytest.raises(InvalidRequest) as raised:
        divide(of_rows([b"a", None, b"b"]), THREE, SIZE_MAX, "/records")
    assert raised.value.code is Code.VALIDATION_FAILED
    assert [fault.pointer for fault in raised.value.faults] == ["/records/1/key"]


def test_without_a_column_of_keys_every_record_is_pointed_to() -> None:
    with pytest.raises(InvalidRequest) as raised:
        divide(of_rows([None, None]), THREE, SIZE_MAX)
    assert [fault.pointer for fault in raised.value.faults] == ["/0/key", "/1/key"]


def test_a_key_that_no_partition_is_bound_to_refuses_all_of_them() -> None:
    """Scenario P8."""
    with pytest.raises(InvalidRequest) as raised:
        divide(of_rows([b"emea", b"apac", b"amer"]), BOUND, SIZE_MAX, "/records")
    assert raised.value.code is Code.NO_ROUTE
    assert [fault.pointer for fault in raised.value.faults] == ["/records/1/key"]
    parts = divide(of_rows([b"emea", b"amer", b"emea"]), BOUND, SIZE_MAX)
    assert indexes_of(parts) == {0: [1], 1: [0, 2]}


def test_without_that_check_it_goes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    remove(monkeypatch, "the route of every record before any is written", lambda *_: None)
    with pytest.raises(pytest.fail.Exception):
        test_a_key_that_no_partition_is_bound_to_refuses_all_of_them()


def arrow_of(**columns: list[Any]) -> bytes:
    stream = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue()


def test_an_arrow_body_is_divided_as_rows_are() -> None:
    body = arrow_of(value=["a", "b", "c"], key=["hello1", "hello2", "hello3"])
    parts = divide(take_arrow(body, SIZE_MAX), THREE, SIZE_MAX)
    assert values_of(parts) == {0: [b"b"], 1: [b"a", b"c"]}


def frames_of(*rows: Rows, codec: Codec = Codec.NONE) -> bytes:
    frames = [frame for one in rows for frame in encode_frames(build_batch([one]), MIB, codec)]
    return b"".join(bytes(frame.data) for frame in frames)


def test_frames_of_different_columns_become_one_batch_and_keep_their_codec() -> None:
    body = frames_of(
        Rows([b"a"], [Content.BYTES], [b"hello1"]),
        Rows([b"b"], [Content.TEXT], [b"hello3"], filter_values=["emea"]),
        codec=Codec.ZSTD,
    )
    parts = divide(take_frames(body, SIZE_MAX), THREE, SIZE_MAX)
    rows = records_of(parts[1])
    assert [row["value"] for row in rows] == [b"a", b"b"]
    assert [row["content"] for row in rows] == [Content.BYTES, Content.TEXT]
    assert [row["filter_value"] for row in rows] == [None, "emea"]
    assert parts[1].append.frames[0].data[5] == Codec.ZSTD


def test_a_part_larger_than_a_chunk_is_several_frames() -> None:
    rows = Rows([b"x" * 1_000] * 30, [Content.BYTES] * 30, [b"hello1"] * 30)
    parts = divide(Append(30, rows.size, 7, rows), THREE, 10_000)
    assert len(parts[1].append.frames) > 3
    assert sum(frame.record_count for frame in parts[1].append.frames) == 30


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=40), st.integers(1, 7))
def test_every_record_is_in_one_part(keys: list[bytes], count: int) -> None:
    parts = divide(of_rows(keys), Routes(count), SIZE_MAX)
    found = sorted(number for part in parts.values() for number in part.record_indexes.tolist())
    assert found == list(range(len(keys)))
    for part in parts.values():
        assert [row["key"] for row in records_of(part)] == [keys[n] for n in part.record_indexes]
