"""Lines and events that no stored value can break."""

import json
from contextlib import suppress

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from unit.reader.harness import Sent, a_batch

from bottomless import client
from bottomless.errors import Code, InvalidRequest
from bottomless.model.names import StreamId
from bottomless.model.record import Content
from bottomless_server.core.json_nesting import NESTED_MAX
from bottomless_server.core.shown_values import ValueEncoding
from bottomless_server.reader.core.arrow_schema import Rows, as_table
from bottomless_server.reader.core.framing import Events, Lines, one_line, parse_event_id
from bottomless_server.reader.core.rendering import as_json

STREAM_ID = StreamId("01890a5d-ac96-774b-bcce-b302099a8057")
BREAKERS = '\n\r\u0085\u2028\u2029\x0b\x0c\x1c\x1d\x1e:,"{}[] event: x data: aé\u00e2'


@given(st.recursive(st.text(BREAKERS), st.lists, max_leaves=5), st.sampled_from([None, 1]))
def test_json_on_one_line_is_the_same_json(value: object, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    line = one_line(text.encode())

    assert len(line.decode().splitlines()) == 1
    assert json.loads(line) == value


@given(st.lists(st.text(BREAKERS), max_size=4))
def test_frames_hold_what_was_put_in(values: list[str]) -> None:
    batch = a_batch([Sent(value.encode()) for value in values])
    table = as_table([Rows(5, 1_000, batch)])
    members = {"next_offset": 5 + len(values), "up_to_date": True}

    lines = Lines().batch(table, ValueEncoding.TEXT, members).decode()
    event = Events(STREAM_ID).batch(table, ValueEncoding.TEXT, members).decode()

    assert len(lines.splitlines()) == lines.count("\n") == len(values) + 1
    *records, control = [json.loads(line) for line in lines.splitlines()]
    assert [record["value"] for record in records] == values
    assert control == {"_control": members}
    name, event_id, data, end = event.split("\n", 3)
    assert (name, end) == ("event: records", "\n")
    assert len(event.splitlines()) == 4
    assert json.loads(data.removeprefix("data: ")) == {"records": records, **members}
    assert parse_event_id(event_id.removeprefix("id: ")) == (STREAM_ID, 5 + len(values))


@pytest.mark.parametrize("bracket", [b"[]", b"{}"])
@given(levels=st.integers(1, 1_100))
@example(levels=254)
@example(levels=255)
@example(levels=1_022)
@example(levels=1_024)
def test_no_nesting_of_stored_json_keeps_a_reader_from_what_stands_beside_it(
    bracket: bytes, levels: int
) -> None:
    """An earlier build stored by Arrow what is nested beyond the parsers of readers.

    The client of Python stood at such a record for good. The test above could not see that:
    it looked at text alone, with a parser that goes deeper than the client's.
    """
    opening, closing = (b"[", b"]") if bracket == b"[]" else (b'{"a":', b"}")
    deep = opening * levels + b"0" + closing * levels
    values = [b'{"before":1}', deep, b'["after"]']
    table = as_table([Rows(5, 1_000, a_batch([Sent(v, content=Content.JSON) for v in values]))])
    members = {"next_offset": 8}

    page = as_json(members, table, ValueEncoding.AUTO)
    lines = Lines().batch(table, ValueEncoding.AUTO, members).splitlines()
    event = Events(STREAM_ID).batch(table, ValueEncoding.AUTO, members).splitlines()[2]

    # These are the parser and the record of the client.
    shown = [orjson.loads(page)["records"], [orjson.loads(line) for line in lines[:-1]]]
    shown.append(orjson.loads(event.removeprefix(b"data: "))["records"])
    for records in shown:
        assert [client.Record(record).value for record in records] == values
        assert ["json" in record for record in records] == [True, levels <= NESTED_MAX, True]


def test_what_is_no_batch_has_no_id() -> None:
    events = Events(STREAM_ID)
    assert events.heartbeat({"next_offset": 1}) == b'event: heartbeat\ndata: {"next_offset":1}\n\n'
    assert (
        events.end("rotate", {"next_offset": 1})
        == b'event: end\ndata: {"reason":"rotate","next_offset":1}\n\n'
    )
    assert (
        Lines().end("rotate", {"next_offset": 1})
        == b'{"_control":{"end":"rotate","next_offset":1}}\n'
    )


@given(st.text())
def test_any_text_is_an_event_id_or_refused(text: str) -> None:
    for whole in (text, f"{STREAM_ID}:{text}", f"{text}:1"):
        with suppress(InvalidRequest):
            stream_id, offset = parse_event_id(whole)
            assert whole == f"{stream_id}:{offset}"


def test_an_event_id_is_read() -> None:
    assert parse_event_id(f"{STREAM_ID}:1043") == (STREAM_ID, 1043)
    with pytest.raises(InvalidRequest) as caught:
        parse_event_id(f"{STREAM_ID.upper()}:1043")
    assert caught.value.code is Code.BAD_HEADER
