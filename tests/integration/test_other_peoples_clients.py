"""Arrow is the contract: programs that know nothing of us read and produce with it."""

import io
from urllib.request import Request, urlopen

import duckdb
import httpx
import polars as pl
import pyarrow as pa
import pytest
from support.server import AllInOne

ARROW = "application/vnd.apache.arrow.stream"
VALUES = ["plain", "", "snow ❄", "x" * 1000]


@pytest.fixture
def url(server: AllInOne) -> str:
    """A stream with records of every shape that a column can have."""
    with server.client() as client:
        client.put("/v1/streams/arrow").raise_for_status()
        records = [{"value": value, "key": f"k{n}"} for n, value in enumerate(VALUES)]
        records[0] |= {"headers": {"a": "1", "b": "2"}, "event_time": 1_700_000_000_123}  # type: ignore[dict-item]
        client.post("/v1/streams/arrow/records", json={"records": records}).raise_for_status()
    return f"{server.url}/v1/streams/arrow/records"


def fetch(url: str) -> bytes:
    """With nothing but the standard library, as a stranger would."""
    with urlopen(Request(f"{url}?offset=first", headers={"Accept": ARROW})) as answer:
        assert answer.headers["Content-Type"] == ARROW
        body: bytes = answer.read()
    return body


def test_pyarrow_reads_records(url: str) -> None:
    table = pa.ipc.open_stream(fetch(url)).read_all()
    table.validate(full=True)
    assert table["offset"].to_pylist() == [0, 1, 2, 3]
    assert table["value"].to_pylist() == [value.encode() for value in VALUES]


def test_polars_reads_records(url: str) -> None:
    frame = pl.read_ipc_stream(io.BytesIO(fetch(url)))
    assert frame["offset"].to_list() == [0, 1, 2, 3]
    assert frame["value"].cast(pl.String).to_list() == VALUES
    assert frame["key"].cast(pl.String).to_list() == ["k0", "k1", "k2", "k3"]


def test_duckdb_reads_records(url: str) -> None:
    records = pa.ipc.open_stream(fetch(url))
    with duckdb.connect() as database:
        database.register("records", records)
        rows = database.sql("select count(*), max(octet_length(value)) from records").fetchall()
    assert rows == [(4, 1000)]


def test_polars_produces_with_string_views(url: str) -> None:
    frame = pl.DataFrame({"value": ["from polars", "zwölf"], "key": ["a", None]})
    body = io.BytesIO()
    frame.write_ipc_stream(body)
    assert pa.ipc.open_stream(body.getvalue()).schema.field("value").type == pa.string_view()

    answer = httpx.post(url, content=body.getvalue(), headers={"Content-Type": ARROW})

    assert answer.status_code == httpx.codes.OK, answer.text
    assert answer.json()["first_offset"] == 4
    page = httpx.get(url, params={"offset": 4}).json()
    assert [record["value"] for record in page["records"]] == ["from polars", "zwölf"]
    assert [record.get("key") for record in page["records"]] == ["a", None]


def test_pandas_produces_through_pyarrow(url: str) -> None:
    table = pa.table({"value": [b"\xff\x00", b"two"], "key": pa.array([b"k", None], pa.binary())})
    body = io.BytesIO()
    with pa.ipc.new_stream(body, table.schema) as writer:
        writer.write_table(table)

    answer = httpx.post(url, content=body.getvalue(), headers={"Content-Type": ARROW})

    assert answer.status_code == httpx.codes.OK, answer.text
    page = httpx.get(url, params={"offset": 4}).json()
    assert page["records"][0]["value_base64"] == "/wA="
    assert page["records"][1]["value"] == "two"
