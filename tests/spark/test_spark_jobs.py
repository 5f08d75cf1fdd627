"""Jobs against a running service: verify, export, replay, stats and import, over what they are of."""

import io
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.iceberg import iceberg_catalog
from support.server import AllInOne
from support.spark_session import Streams, spark
from support.waiting import until

from bottomless.client import Client
from bottomless.errors import InvalidRequest, OffsetGone, WrongOffset
from bottomless.spark.jobs import export, import_frame, import_parquet, replay, stats, verify
from bottomless.spark.jobs.rounds import ROUND_SIZE
from bottomless.spark.jobs.stats import draw

SMALL = {"fragment": {"target_bytes": 64 * 1024, "max_age_ms": 200}}
SETTINGS = {"BOTTOMLESS_MANIFEST_FANOUT": "4", "BOTTOMLESS_INGEST_LOCAL_KEEP_MS": "500"}
ALL = "offset,timestamp,value,key,headers,event_time,content,filter_value"
ROUND = 50_000
"""Bytes: a few rounds of what is produced here."""
FORMATS = ("parquet", "delta", "iceberg")

__all__ = ["spark"]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    with AllInOne(tmp_path_factory.mktemp("jobs") / "data", SETTINGS) as server:
        yield server


@pytest.fixture
def streams(running: AllInOne, spark: SparkSession) -> Iterator[Streams]:
    with Client(running.url) as client:
        yield Streams(client, spark, running)


@pytest.fixture
def name(streams: Streams) -> str:
    made = f"job-{next(_numbers)}"
    streams.client.create_stream(made, SMALL)
    return made


def rows(first: int, count: int) -> pa.Table:
    """Rows of all columns; numbered, so that none can be lost or doubled unseen."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "value": pa.array(
                [b'{"n":%d,"t":"%s"}' % (n, b"x" * (n % 90)) for n in numbers], pa.binary()
            ),
            "key": pa.array(
                [None if n % 5 == 0 else b"k%d" % (n % 40) for n in numbers], pa.binary()
            ),
            "filter_value": [f"f{n % 3}" for n in numbers],
        }
    )


def fill(streams: Streams, name: str) -> None:
    """Several fragments, and a tail."""
    for number in range(4):
        streams.client.append_arrow(name, rows(600 * number, 600))
    streams.client.wait_until_stored(name, timeout_seconds=240)
    streams.client.update_stream(name, {"fragment": {"max_age_ms": 3_600_000}})
    streams.client.append_arrow(name, rows(2400, 100))


def options(streams: Streams, name: str, **more: str) -> dict[str, str]:
    return {"url": streams.server.url, "stream": name, **more}


def of_stream(streams: Streams, name: str) -> list[dict[str, Any]]:
    """All records as plain reads have them."""
    table = pa.concat_tables(
        [page.table for page in streams.client.arrow_pages(name, 0)], promote_options="default"
    )
    chosen: list[dict[str, Any]] = table.select(
        ["offset", "value", "key", "filter_value"]
    ).to_pylist()
    return chosen


class Place:
    """Where an export of one form goes, and how others read it."""

    def __init__(self, form: str, directory: Path, catalog: Any) -> None:
        self.form = form
        self._catalog = catalog
        iceberg = form == "iceberg"
        self.output = f"exports.t{next(_numbers)}" if iceberg else str(directory / "table")

    def rows(self) -> pa.Table:
        if self.form == "iceberg":
            found: pa.Table = self._catalog.load_table(self.output).scan().to_arrow()
            return found
        if self.form == "delta":
            return ds.dataset(DeltaTable(self.output).file_uris()).to_table()
        return ds.dataset(self.output).to_table()


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with iceberg_catalog(tmp_path_factory.mktemp("warehouse")) as made:
        yield made


@pytest.fixture(params=FORMATS)
def place(request: pytest.FixtureRequest, tmp_path: Path, catalog: Any) -> Place:
    return Place(request.param, tmp_path, catalog)


def test_an_export_has_every_row_and_goes_on_where_it_ended(
    streams: Streams, name: str, place: Place
) -> None:
    fill(streams, name)
    wanted = options(streams, name, columns=ALL, jsonSchema="n BIGINT, t STRING")
    first = export(
        streams.spark, wanted, place.output, form=place.form, round_size=ROUND, compression="zstd"
    )
    assert (first.next_offset, first.rows) == (2500, 2500)
    again = export(streams.spark, wanted, place.output, form=place.form)
    assert (again.first_offset, again.rows, again.files) == (2500, 0, 0)
    streams.client.append_arrow(name, rows(2500, 50))
    more = export(streams.spark, wanted, place.output, form=place.form)
    assert (more.first_offset, more.next_offset, more.rows) == (2500, 2550, 50)

    found = place.rows().sort_by("offset")
    chosen = found.select(["offset", "value", "key", "filter_value"]).to_pylist()
    assert chosen == of_stream(streams, name)
    parsed: Any = found["json"].to_pylist()
    numbers = [row["n"] for row in parsed]
    assert numbers == list(range(2550))


def test_an_export_refuses_another_stream_of_the_name_and_other_columns(
    streams: Streams, name: str, place: Place
) -> None:
    streams.client.append_arrow(name, rows(0, 10))
    export(streams.spark, options(streams, name), place.output, form=place.form)
    with pytest.raises(InvalidRequest, match="other columns"):
        export(
            streams.spark,
            options(streams, name, columns="offset,value"),
            place.output,
            form=place.form,
        )
    streams.client.delete_stream(name)
    streams.client.create_stream(name)
    streams.client.append_arrow(name, rows(0, 20))
    with pytest.raises(WrongOffset, match="another stream"):
        export(streams.spark, options(streams, name), place.output, form=place.form)
    assert place.rows().num_rows == 10


def test_an_export_says_that_what_comes_next_was_trimmed(
    streams: Streams, name: str, tmp_path: Path
) -> None:
    for number in range(3):
        streams.client.append_arrow(name, rows(600 * number, 600))
        # A fragment each: a trim goes by whole ones.
        streams.client.wait_until_stored(name, timeout_seconds=240)
        if not number:
            export(streams.spark, options(streams, name), str(tmp_path / "out"))
    streams.client.trim(name, 1200)
    until(lambda: streams.client.offsets(name).first_offset > 600, 240, "the trim")
    floor = streams.client.offsets(name).first_offset
    with pytest.raises(OffsetGone, match="data lost"):
        export(streams.spark, options(streams, name), str(tmp_path / "out"))
    lossy = options(streams, name, failOnDataLoss="false")
    assert export(streams.spark, lossy, str(tmp_path / "out")).rows == 1800 - floor


def test_a_verification_finds_what_is_damaged_and_nothing_else(
    streams: Streams, name: str, tmp_path: Path
) -> None:
    fill(streams, name)
    sound = verify(streams.spark, options(streams, name))
    assert (sound.sound, sound.records, sound.next_offset) == (True, 2400, 2400)
    listed = list(streams.client.list_fragments(name, {"locations": "true"}))
    damaged, gone = listed[0], listed[-1]
    file = streams.server.objects / damaged["object_key"]
    data = bytearray(file.read_bytes())
    data[200] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    (streams.server.objects / gone["object_key"]).unlink()

    report = tmp_path / "report"
    found = verify(streams.spark, options(streams, name, minPartitions="2"), str(report), 60_000)
    assert not found.sound
    assert {fault["fragment_id"] for fault in found.faults} == {damaged["id"], gone["id"]}
    assert {"chunk", "checksum", "object"} <= {fault["what"] for fault in found.faults}
    told = json.loads((report / "report.json").read_text())
    assert (told["sound"], told["fault_count"]) == (False, found.fault_count)
    parts = pq.read_table(report / "fragments")
    verified: Any = parts["fragment_id"].to_pylist()
    # The tail may become a fragment while Spark starts: it is verified too, and once.
    now = {item["id"] for item in streams.client.list_fragments(name)}
    assert {item["id"] for item in listed} <= set(verified) <= now
    assert len(set(verified)) == len(verified)
    assert len(list((report / "fragments").iterdir())) > 1
    with pytest.raises(InvalidRequest, match="report is done"):
        verify(streams.spark, options(streams, name), str(report))


def test_a_replay_copies_what_is_wanted_once(streams: Streams, name: str) -> None:
    fill(streams, name)
    target = f"{name}-again"
    streams.client.create_stream(target)
    wanted = options(streams, name, startingOffsets="100")
    for _ in range(2):
        done = replay(streams.spark, wanted, target, "copy", round_size=2 * ROUND)
        assert (done.first_offset, done.next_offset) == (100, 2500)
    copied = [{**row, "offset": row["offset"] + 100} for row in of_stream(streams, target)]
    assert copied == of_stream(streams, name)[100:]
    with pytest.raises(WrongOffset, match="take another name"):
        replay(streams.spark, wanted, target, "copy", where="offset > 5")

    some = f"{name}-some"
    streams.client.create_stream(some)
    replay(
        streams.spark,
        wanted,
        some,
        "some",
        where="offset >= 2000",
        select=["concat('#', cast(value as string)) as value", "key"],
        records_per_second=100_000,
    )
    values = [row["value"] for row in of_stream(streams, some)]
    assert values == [b"#" + row["value"] for row in of_stream(streams, name)[2000:]]


def test_stats_count_what_there_is(streams: Streams, name: str, tmp_path: Path) -> None:
    fill(streams, name)
    found = stats(streams.spark, options(streams, name))
    records = of_stream(streams, name)
    sizes = [len(row["value"]) for row in records]
    keys = [row["key"] for row in records if row["key"] is not None]
    assert (found.records, found.value_size) == (2500, sum(sizes))
    assert (found.smallest, found.largest) == (min(sizes), max(sizes))
    assert (found.keys, found.distinct_keys) == (len(keys), len(set(keys)))
    assert found.filter_values == {"f0": 834, "f1": 833, "f2": 833}
    assert sum(found.sizes.values()) == sum(found.times.values()) == 2500
    assert found.sizes[64] == sum(32 < size <= 64 for size in sizes)
    assert found.compressed_to is not None
    assert 0 < found.compressed_to < 1
    draw(found, str(tmp_path / "stats.png"))
    assert (tmp_path / "stats.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidRequest, match="a plot is a file"):
        draw(found, str(tmp_path / "stats.unknown"))


def test_an_import_writes_every_row_once(streams: Streams, name: str, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(3):
        pq.write_table(rows(500 * number, 500), files / f"{number}.parquet", row_group_size=200)
    (files / "_ignored.parquet").write_text("nobody's")
    done = import_parquet(
        streams.spark, str(files), streams.server.url, name, "first", round_size=20_000
    )
    assert (done.rows, done.rounds > 2) == (1500, True)
    # Rounds of another size: those of the first run count, of which the last is looked at again.
    for size in (1_000, ROUND_SIZE):
        done = import_parquet(
            streams.spark, str(files), streams.server.url, name, "first", round_size=size
        )
        assert done.rounds == 1
    found = [
        {k: row[k] for k in ("value", "key", "filter_value")} for row in of_stream(streams, name)
    ]
    assert found == rows(0, 1500).to_pylist()

    pq.write_table(rows(1500, 500), files / "3.parquet")
    with pytest.raises(WrongOffset, match="take another name"):
        import_parquet(streams.spark, str(files), streams.server.url, name, "first")
    with pytest.raises(WrongOffset, match="take another name"):
        import_parquet(streams.spark, str(files / "0.parquet"), streams.server.url, name, "first")


def test_rows_can_be_imported_as_json_and_frames_as_they_are(
    streams: Streams, name: str, tmp_path: Path
) -> None:
    table = pa.table({"id": [1, 2], "name": ["ü", None], "raw": [b"\x00", b""]})
    pq.write_table(table, tmp_path / "one.parquet")
    import_parquet(
        streams.spark,
        str(tmp_path / "one.parquet"),
        streams.server.url,
        name,
        "json",
        whole_rows=True,
        columns={"key": "name"},
    )
    found = of_stream(streams, name)
    assert [json.loads(row["value"]) for row in found] == [
        {"id": 1, "name": "ü", "raw": "AA=="},
        {"id": 2, "name": None, "raw": ""},
    ]
    assert [row["key"] for row in found] == ["ü".encode(), None]
    frame = streams.spark.range(3).selectExpr("cast(id as string) as value")
    for _ in range(2):
        import_frame(frame, streams.server.url, name, "frame")
    assert len(of_stream(streams, name)) == 5


def test_json_values_are_columns_of_a_frame(streams: Streams, name: str) -> None:
    fill(streams, name)
    streams.client.append_arrow(name, pa.table({"value": pa.array([b"no json", b'{"t":5}'])}))
    frame = streams.load(name, jsonSchema="n BIGINT, t STRING", columns="offset")
    found = frame.orderBy("offset").select("offset", "json.n", "json.t").collect()
    assert [row.n for row in found] == [*range(2500), None, None]
    assert [len(row.t) for row in found[:2500]] == [n % 90 for n in range(2500)]
    with pytest.raises(Exception, match="onBadJson=null"):
        streams.load(name, jsonSchema="n BIGINT", onBadJson="fail").collect()
    with pytest.raises(Exception, match="jsonSchema knows"):
        streams.load(name, jsonSchema="n MAP<STRING, INT>").collect()


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_many_tasks_are_done(
    streams: Streams, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.client.append_arrow(name, rows(0, 10))
    screen = _Screen()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", screen)
        assert stats(streams.spark, options(streams, name)).records == 10
    assert f"stats {name}" in screen.getvalue()
    assert streams.spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
