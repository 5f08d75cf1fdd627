"""Tables and packed files into the command line: every row once, or a line that says why not."""

import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command_line import CommandLine

CSV = b'\xef\xbb\xbfid,note\r\n01,"a, ""b""\nc"\r\n\r\n2,\xc3\xbc\r\n'
ROWS = [{"id": "01", "note": 'a, "b"\nc'}, {"id": "2", "note": "ü"}]


def packed(data: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        half = len(data) // 2
        return gzip.compress(data[:half]) + gzip.compress(data[half:])
    if suffix == ".zst":
        return bytes(pa.compress(data, codec="zstd", asbytes=True))
    return data


def stored(cli: CommandLine, stream: str) -> list[Any]:
    result: list[Any] = cli.json("read", stream)
    return result


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_each_row_of_csv_is_a_record_of_texts(
    cli: CommandLine, tmp_path: Path, suffix: str
) -> None:
    name = f"csv{suffix}"
    source = tmp_path / f"rows.csv{suffix}"
    source.write_bytes(packed(CSV, suffix))
    cli.stream(name)
    words = ("--format", "csv", "--key-field", "id", "--header", "from=till", "--header", "x=a=b")
    assert cli.json("produce", name, source, *words)["stored"] == 2
    records = stored(cli, name)
    assert [record["json"] for record in records] == ROWS
    assert [record["key"] for record in records] == ["01", "2"]
    assert [record["headers"] for record in records] == [{"from": "till", "x": "a=b"}] * 2


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("Rows.CSV", "id,total\n1,2\n", ['{"id":"1","total":"2"}']),
        ("rows.ndjson", '{"id":1}\n\n{"id":2}\n', ['{"id":1}', '{"id":2}']),
        ("rows.jsonl", '{"id":1}\n', ['{"id":1}']),
        ("rows.csv.gz", "id\n1\n", ['{"id":"1"}']),
        ("rows.log", "id\n1\n", ["id", "1"]),
        ("rows", "id\n1\n", ["id", "1"]),
    ],
)
def test_the_name_of_a_file_says_its_format(
    cli: CommandLine, tmp_path: Path, name: str, text: str, values: list[str]
) -> None:
    source = tmp_path / name
    source.write_bytes(packed(text.encode(), source.suffix))
    cli.stream("by-name")
    cli.ok("produce", "by-name", source)
    assert cli.ok("read", "by-name").splitlines() == values


def test_the_option_counts_more_than_the_name(cli: CommandLine, tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("id\n1\n")
    cli.stream("by-option")
    cli.ok("produce", "by-option", source, "--format", "lines")
    assert cli.ok("read", "by-option").splitlines() == ["id", "1"]


@pytest.mark.parametrize("name", ["rows.json", "rows.tsv.gz"])
def test_what_is_taken_as_lines_against_its_name_is_said(
    cli: CommandLine, tmp_path: Path, name: str
) -> None:
    source = tmp_path / name
    source.write_bytes(packed(b"[\n1]\n", source.suffix))
    cli.stream("doubtful")
    said = cli.run("produce", "doubtful", source)
    assert (said.exit_code, said.stderr) == (
        0,
        "bottomless: each line of this file becomes a record; --format says what it is otherwise\n",
    )
    assert cli.ok("produce", "doubtful", source, "--format", "lines")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_every_format_is_read_from_a_packed_file_and_resumed_by_its_records(
    cli: CommandLine, tmp_path: Path, suffix: str
) -> None:
    name = f"packed{suffix}"
    source = tmp_path / f"lines.txt{suffix}"
    source.write_bytes(packed(b"".join(b"%d\n" % number for number in range(50_000)), suffix))
    cli.stream(name)
    words = ("produce", name, source, "--producer", "p", "--key", "k")
    assert cli.json(*words)["stored"] == 50_000
    again = cli.json(*words, "--resume")
    assert (again["stored"], again["skipped"]) == (0, 50_000)
    source.write_bytes(packed(b"".join(b"%d\n" % number for number in range(50_003)), suffix))
    assert cli.json(*words, "--resume")["stored"] == 3
    [last] = cli.json("read", name, "--from", "last")[-1:]
    assert (last["value"], last["key"]) == ("50002", "k")


@pytest.mark.parametrize("rows", [0, 3_000])
def test_each_row_of_parquet_is_a_json_object_and_resume_counts_rows(
    cli: CommandLine, tmp_path: Path, rows: int
) -> None:
    name = f"parquet-{rows}"
    table = pa.table(
        {
            "n": pa.array(range(rows), pa.int64()),
            "price": pa.array([Decimal("1.50")] * rows, pa.decimal128(9, 2)),
            "at": pa.array([0] * rows, pa.timestamp("us", "UTC")),
            "naive": pa.array([1] * rows, pa.timestamp("us")),
            "times": pa.array([[0]] * rows, pa.list_(pa.timestamp("ms"))),
            "data": pa.array([b"\xff"] * rows, pa.binary()),
        }
    )
    source = tmp_path / "rows.parquet"
    pq.write_table(table, source)
    cli.stream(name)
    words = ("produce", name, source, "--producer", "p", "--key-field", "n")
    assert cli.json(*words)["stored"] == rows
    assert cli.json(*words, "--resume") == {
        "stored": 0,
        "skipped": rows,
        "first_offset": None,
        "next_offset": None,
    }
    if rows:
        [record] = cli.json("read", name, "--from", "last", "-n", 1)[-1:]
        whole = {
            "n": 0,
            "price": "1.50",
            "at": "1970-01-01T00:00:00+00:00",
            "naive": "1970-01-01T00:00:00.000001+00:00",
            "times": ["1970-01-01T00:00:00+00:00"],
            "data": "/w==",
        }
        assert cli.json("read", name, "-n", 1)[0]["json"] == whole
        assert record["key"].isdigit()


@pytest.mark.parametrize("kind", ["parquet", "arrow", "arrows", "arrow.gz"])
def test_a_file_with_the_columns_of_records_is_read_as_those(
    cli: CommandLine, tmp_path: Path, kind: str
) -> None:
    name = f"columns-{kind}"
    table = pa.table({"offset": [7, 8], "value": [b"a", b"\xff"], "key": ["k", None]})
    source = tmp_path / f"records.{kind}"
    if kind == "parquet":
        pq.write_table(table, source)
    else:
        sink = pa.BufferOutputStream()
        make = pa.ipc.new_stream if kind == "arrows" else pa.ipc.new_file
        with make(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue().to_pybytes()
        source.write_bytes(gzip.compress(data) if kind.endswith(".gz") else data)
    cli.stream(name)
    assert cli.json("produce", name, source)["stored"] == 2
    shown = [
        (one.get("value", one.get("value_base64")), one.get("key")) for one in stored(cli, name)
    ]
    assert shown == [("a", "k"), ("/w==", None)]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", 1),
        (b"a,a\n1,2\n", 1),
        (b"a,\n1,2\n", 1),
        (b"a,b\n1,2\n1\n", 3),
        (b"a,b\n1,2,3\n", 2),
        (b'a,b\n1,"2\n', 2),
        (b'a,b\n1,"2"x\n', 2),
        (b"a,b\n1,\xff\n", 2),
        (b"a,b\n1," + b"x" * 2 * 1024 * 1024 + b"\n", 2),
    ],
)
def test_csv_that_is_none_is_refused_with_its_line(
    cli: CommandLine, data: bytes, line: int
) -> None:
    cli.stream("bad-csv")
    before = cli.json("offsets", "bad-csv")["next_offset"]
    result = cli.run("produce", "bad-csv", cli.file(data), "--format", "csv")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"line={line}" in result.stderr
    # Rows before the one that is refused are stored, as with lines of every format.
    assert cli.json("offsets", "bad-csv")["next_offset"] == before + (line == 3)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.gz", b"not gzip"),
        ("x.gz", gzip.compress(b"a\n" * 100_000, mtime=0)[:-20]),
        ("x.zst", b"not zstd"),
        ("x.zst", packed(b"a\n" * 100_000, ".zst")[:-5]),
        ("x.parquet", b"PAR1 and no more"),
        ("x.parquet.gz", gzip.compress(b"PAR1", mtime=0)),
        ("x.arrow", b"ARROW1\0\0 and no more"),
        ("x.arrows", b"\xff\xff\xff\xff\xff\xff\xff\x7f"),
    ],
)
def test_a_damaged_file_is_refused_and_never_a_traceback(
    cli: CommandLine, tmp_path: Path, name: str, data: bytes
) -> None:
    cli.stream("damaged")
    source = tmp_path / name
    source.write_bytes(data)
    result = cli.run("produce", "damaged", source)
    assert result.exit_code == 1, result.stderr
    assert "(validation-failed)" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--key", "a", "--key-field", "b", "--format", "csv"),
        ("--key", "a", "--format", "records"),
        ("--header", "a=b", "--format", "arrow"),
        ("--header", "ab"),
        ("--header", "=b"),
        ("--header", "a=b", "--header", "a=c"),
        ("--key-field", "b", "--format", "lines"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_sent(
    cli: CommandLine, words: tuple[str, ...]
) -> None:
    assert cli.run("produce", "nowhere", cli.file(b"a\n"), *words).exit_code == 2


def test_a_column_that_is_not_there_is_refused_as_a_key(cli: CommandLine) -> None:
    cli.stream("typo")
    result = cli.run("produce", "typo", cli.file(b"id\n1\n"), "-f", "csv", "--key-field", "di")
    assert result.exit_code == 1
    assert "line=1" in result.stderr
    assert cli.json("offsets", "typo")["next_offset"] == 0


def test_a_whole_input_may_have_a_key_and_headers(cli: CommandLine) -> None:
    cli.stream("raw-key")
    words = ("--format", "raw", "--key", "k", "--header", "a=b")
    assert cli.json("produce", "raw-key", cli.file(b"\xff\n"), *words)["stored"] == 1
    [record] = stored(cli, "raw-key")
    assert (record["value_base64"], record["key"], record["headers"]) == ("/wo=", "k", {"a": "b"})
