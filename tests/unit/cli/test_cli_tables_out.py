"""Records out of the command line as files and by templates: exact, whole, or refused."""

import csv
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command_line import CommandLine

from bottomless.cli.whole_file import whole_file

VALUES = [b"a", b'comma, "quote"\nline', b"\xff", "ü".encode()]


@pytest.fixture
def stream(cli: CommandLine) -> str:
    cli.stream("out")
    if cli.json("offsets", "out")["next_offset"] == 0:
        for number, value in enumerate(VALUES):
            key = ("--key", f"k{number}", "--header", "h=v") if number else ()
            cli.json("produce", "out", cli.file(value), "--format", "raw", *key)
    return "out"


def test_parquet_has_every_record_and_is_read_back_as_such(
    cli: CommandLine, stream: str, tmp_path: Path
) -> None:
    file = tmp_path / "out.parquet"
    file.write_bytes(b"before")
    result = cli.run("read", stream, "-o", "parquet", "--to", file)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "wrote 4 records\n", "")
    assert pq.read_table(file).column("value").to_pylist() == VALUES
    assert not [*tmp_path.glob(".out*")]

    cli.stream("back")
    assert cli.json("produce", "back", file)["stored"] == 4
    again = tmp_path / "again.parquet"
    assert cli.run("read", "back", "-o", "parquet", "--to", again).exit_code == 0
    for name in ("value", "key", "headers"):
        assert pq.read_table(again).column(name) == pq.read_table(file).column(name)


def test_csv_has_the_same_columns_always_and_base64_for_what_is_no_text(
    cli: CommandLine, stream: str, tmp_path: Path
) -> None:
    file = tmp_path / "out.csv"
    result = cli.run("read", stream, "--limit", 3, "-o", "csv", "--to", file)
    assert (result.exit_code, result.stdout) == (0, "wrote 3 records\n")
    with file.open(newline="", encoding="utf-8") as source:
        rows = list(csv.DictReader(source))
    assert [row["value"] for row in rows] == ["a", 'comma, "quote"\nline', ""]
    assert [row["value_base64"] for row in rows] == ["", "", "/w=="]
    assert [row["headers"] for row in rows] == ["", '{"h":"v"}', '{"h":"v"}']
    assert cli.run("read", stream, "-n", 3, "-o", "csv").stdout_bytes == file.read_bytes()


def test_only_the_columns_that_were_asked_for_are_written(
    cli: CommandLine, stream: str, tmp_path: Path
) -> None:
    file = tmp_path / "some.parquet"
    result = cli.run("read", stream, "-o", "parquet", "--columns", "value,offset", "--to", file)
    assert (result.exit_code, result.stdout) == (0, "wrote 4 records\n")
    assert pq.read_table(file).to_pydict() == {"offset": [0, 1, 2, 3], "value": VALUES}
    arrow = cli.run("read", stream, "-o", "arrow", "--columns", "key")
    with pa.ipc.open_stream(arrow.stdout_bytes) as reader:
        assert reader.read_all().to_pydict() == {"key": [None, b"k1", b"k2", b"k3"]}
    assert cli.run("read", stream, "-o", "ndjson", "--columns", "value").exit_code == 2


def test_an_empty_stream_is_a_file_with_columns_and_no_rows(
    cli: CommandLine, tmp_path: Path
) -> None:
    cli.stream("none")
    for form in ("csv", "parquet"):
        file = tmp_path / f"none.{form}"
        result = cli.run("read", "none", "-o", form, "--to", file)
        assert (result.exit_code, result.stdout) == (0, "wrote 0 records\n")
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0
    assert (tmp_path / "none.csv").read_bytes().startswith(b"offset,timestamp,")


def _interrupted(file: Path) -> None:
    with whole_file(file) as half:
        half.write(b"half")
        raise KeyboardInterrupt


def test_a_file_is_there_whole_or_as_it_was(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt):
        _interrupted(file)
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
    assert file.read_bytes() == b"before"

    missing = tmp_path / "no" / "out.csv"
    cli.stream("nowhere-to-go")
    result = cli.run("read", "nowhere-to-go", "-o", "csv", "--to", missing)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (r"%k %s\n", b" a\nk1 " + VALUES[1] + b"\nk2 \xff\nk3 \xc3\xbc\n"),
        (r"%o:%S:%K;", b"0:1:-1;1:19:2;2:1:2;3:2:2;"),
        (
            r"%h%%\x41\t\0\\%t,",
            b"".join(headers + b"%A\t\0\\out," for headers in (b"{}", *[b'{"h":"v"}'] * 3)),
        ),
        ("ä%e", "ä".encode() * 4),
        ("", b""),
    ],
)
def test_a_template_writes_what_it_says_and_nothing_else(
    cli: CommandLine, stream: str, template: str, written: bytes
) -> None:
    assert cli.run("read", stream, "-f", template).stdout_bytes == written


def test_a_template_shows_times_in_milliseconds(cli: CommandLine, stream: str) -> None:
    shown = cli.run("read", stream, "-n", 1, "-f", "%T").stdout
    assert 1_600_000_000_000 < int(shown) < 10_000_000_000_000


@pytest.mark.parametrize(
    "words",
    [
        ("-f", "%x"),
        ("-f", "100%"),
        ("-f", r"\q"),
        ("-f", "\\"),
        ("-f", r"\x4"),
        ("-f", "%s", "-o", "json"),
        ("-f", "%s", "--details"),
        ("-o", "parquet"),
        ("--to", "x.txt"),
        ("-o", "json", "--to", "x.json"),
    ],
)
def test_what_a_read_cannot_mean_is_refused_before_anything_is_read(
    cli: CommandLine, words: tuple[str, ...]
) -> None:
    result = cli.run("read", "never-created", *words)
    assert (result.exit_code, result.stdout) == (2, "")


def test_a_table_that_was_read_is_the_same_as_arrow(
    cli: CommandLine, stream: str, tmp_path: Path
) -> None:
    file = tmp_path / "same.parquet"
    cli.run("read", stream, "-o", "parquet", "--to", file)
    arrow = pa.ipc.open_stream(cli.run("read", stream, "-o", "arrow").stdout_bytes).read_all()
    assert pq.read_table(file).to_pylist() == arrow.to_pylist()
