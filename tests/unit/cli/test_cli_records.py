"""Records in and out of the command line: every format, exactly, and never twice."""

import gc
import io

import httpx
import orjson
import pyarrow as pa
import pytest
from support.command_line import CommandLine
from support.waiting import until_later

from bottomless.client import Client

LINES = ["plain", "", "ünï — \u2028 codé", "0"]
BINARY = b"\xff\x00bytes"


def read(cli: CommandLine, *words: object) -> bytes:
    result = cli.run("read", *words)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout_bytes


def test_lines_come_back_as_they_were_whatever_bytes_they_are(cli: CommandLine) -> None:
    data = b"".join(line.encode() + b"\n" for line in LINES) + BINARY
    cli.stream("lines")
    assert cli.json("produce", "lines", cli.file(data))["stored"] == 5
    assert read(cli, "lines") == data + b"\n"


def test_a_dash_is_stdin_as_no_file_is(cli: CommandLine) -> None:
    cli.stream("piped")
    for words in (("-",), ()):
        assert cli.run("produce", "piped", *words, stdin=b"one\ntwo\n").exit_code == 0
    assert read(cli, "piped") == b"one\ntwo\n" * 2


def test_ndjson_is_stored_as_json_and_a_member_can_be_the_key(cli: CommandLine) -> None:
    source = cli.file(b'{"id":"a","n":1}\n\n  {"id":7}  \n[1, 2]\n')
    cli.stream("ndjson")
    keyed = ("--format", "ndjson", "--key-field", "id", "--key-optional")
    result = cli.run("produce", "ndjson", source, *keyed)
    assert result.exit_code == 0
    assert result.stderr == "bottomless: 1 record had no member of that name, and no key then\n"

    records = cli.json("read", "ndjson")
    assert [record["json"] for record in records] == [{"id": "a", "n": 1}, {"id": 7}, [1, 2]]
    assert [record.get("key") for record in records] == ["a", "7", None]
    assert read(cli, "ndjson", "--from", "last", "-n", 1) == b'{"id":"a","n":1}\n'
    offset, _, key, value = read(cli, "ndjson", "--details", "-n", 1).split(b"\t")
    assert (offset, key, value) == (b"0", b"a", b'{"id":"a","n":1}\n')


def test_a_key_field_that_a_record_does_not_have_is_refused_with_its_line(
    cli: CommandLine,
) -> None:
    cli.stream("misspelt")
    source = cli.file(b'{"k":"a"}\n{"k":null}\n{"k":"b"}\n')
    for field, line, stored in (("nokey", 1, 0), ("k", 2, 1)):
        result = cli.run("produce", "misspelt", source, "-f", "ndjson", "--key-field", field)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "(validation-failed)" in result.stderr
        assert f"line={line}" in result.stderr
        assert "nokey" not in result.stderr
        assert cli.json("offsets", "misspelt")["next_offset"] == stored


def test_a_file_can_be_one_record(cli: CommandLine) -> None:
    cli.stream("raw")
    cli.ok("produce", "raw", cli.file(b"a\nb"), "--format", "raw")
    assert read(cli, "raw") == b"a\nb\n"
    too_long = cli.run("produce", "raw", cli.file(bytes(2**20 + 1)), "-f", "raw")
    assert (too_long.exit_code, "record-too-large" in too_long.stderr) == (1, True)


@pytest.mark.parametrize(("written", "taken"), [("arrow", "arrow"), ("ndjson", "records")])
def test_what_one_stream_gives_another_takes(cli: CommandLine, written: str, taken: str) -> None:
    cli.stream(f"from-{written}")
    source = cli.file(b'{"id":"a"}\n[2]\n')
    keyed = ("-f", "ndjson", "--key-field", "id", "--key-optional")
    assert cli.run("produce", f"from-{written}", source, *keyed).exit_code == 0
    cli.ok("produce", f"from-{written}", cli.file(BINARY))

    copied = cli.file(read(cli, f"from-{written}", "-o", written))
    cli.stream(f"to-{written}")
    cli.ok("produce", f"to-{written}", copied, "--format", taken)

    def bare(name: str) -> list[dict[str, object]]:
        records = cli.json("read", name)
        return [{k: v for k, v in record.items() if k != "timestamp"} for record in records]

    assert bare(f"to-{written}") == bare(f"from-{written}")


def test_arrow_is_one_stream_also_of_many_pages_and_of_none(cli: CommandLine) -> None:
    cli.stream("arrow", *map(str, range(30)))
    for start, limit, wanted in (("first", 1000, 30), ("tail:10", 4, 4), ("next", 9, 0)):
        data = read(cli, "arrow", "--from", start, "-n", limit, "-o", "arrow")
        table = pa.ipc.open_stream(io.BytesIO(data)).read_all()
        assert (table.num_rows, table.column_names[0]) == (wanted, "offset")


def test_a_read_of_many_pages_is_whole_and_keeps_to_its_bounds(cli: CommandLine) -> None:
    cli.ok("create", "long")
    lines = [str(n) for n in range(12_000)]
    cli.ok("produce", "long", cli.file("\n".join(lines).encode()), "--batch-count", 999)

    assert cli.ok("read", "long").split() == lines
    assert (
        cli.ok("read", "long", "--from", 10, "--until", 11_010, "-n", 10_500).split()
        == lines[10:10_510]
    )
    assert (
        cli.ok("read", "long", "--from", 11_990, "--until", 11_995).split() == lines[11_990:11_995]
    )
    assert cli.json("read", "long", "--from", "next") == []
    assert cli.ok("tail", "long", "-n", 2) == "11998\n11999\n"
    assert [
        orjson.loads(text)["offset"]
        for text in cli.ok("tail", "long", "-n", 2, "-o", "ndjson").split("\n")[:2]
    ] == [11_998, 11_999]


def test_a_place_may_be_a_time_and_so_may_the_end(cli: CommandLine) -> None:
    cli.stream("timed", "a", "b")
    until_later()
    cli.ok("produce", "timed", cli.file(b"c\n"))
    last = cli.json("read", "timed")[2]["timestamp"]
    assert cli.ok("read", "timed", "--until", last) == "a\nb\n"
    assert cli.ok("read", "timed", "--from", last) == "c\n"
    assert cli.ok("read", "timed", "--from", "2000-01-01", "--until", "tail:2") == "a\n"
    assert cli.ok("read", "timed", "--until", "2000-01-01") == ""
    assert cli.ok("resolve", "timed", "2000-01-01") == "0\n"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("read", "s", "--from", "yesterday"), "--from"),
        (("read", "s", "--until", "2026-13-01"), "--until"),
        (("tail", "s", "--from", "tail:x"), "--from"),
        (("resolve", "s", "earliest"), "'spec'"),
    ],
)
def test_a_place_that_is_none_is_told_with_the_option_and_its_choices(
    cli: CommandLine, words: tuple[str, ...], named: str
) -> None:
    result = cli.run(*words)
    told = " ".join(result.stderr.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert named in told
    assert "tail:10, timestamp:T or a time such as 2026-11-22" in told


def test_a_start_that_is_not_there_is_said(cli: CommandLine) -> None:
    cli.stream("short", "a", "b")
    result = cli.run("read", "short", "--from", 99)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "bottomless: offset 99 is not there; this starts at 2\n"


def test_a_range_that_is_the_wrong_way_round_is_told(cli: CommandLine) -> None:
    cli.stream("turned", "a", "b", "c")
    refused = cli.run("read", "turned", "--from", 3, "--until", 1)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--until: it lies before --from" in refused.stderr
    empty = cli.run("read", "turned", "--from", "next", "--until", "tail:2")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert empty.stderr == "bottomless: nothing is read: --from leads to 3 and --until to 1\n"
    assert cli.ok("read", "turned", "--from", 1, "--until", 1) == ""
    assert cli.ok("read", "turned", "--from", "next", "--until", "next") == ""


def test_a_producer_that_resumes_stores_only_what_is_missing(cli: CommandLine) -> None:
    cli.stream("resumed")
    part, whole = cli.file(b"0\n1\n2\n"), cli.file(b"0\n1\n2\n3\n4\n")
    numbered = ("--producer", "loader", "--batch-count", 2)
    cli.ok("produce", "resumed", part, *numbered)

    again = cli.json("produce", "resumed", whole, *numbered, "--resume")
    assert (again["skipped"], again["stored"], again["next_offset"]) == (3, 2, 5)
    nothing = cli.ok("produce", "resumed", whole, *numbered, "--resume")
    assert nothing == "stored 0 records; 5 were stored before\n"
    cli.ok("produce", "resumed", cli.file(b"other\n"), *numbered)
    assert cli.ok("read", "resumed").split() == ["0", "1", "2", "3", "4", "other"]


@pytest.mark.parametrize(
    ("form", "data", "code"),
    [
        ("ndjson", b'1\n2\n{"a"\n', "line=3 stored_before=2 (malformed-json)"),
        ("records", b'{"value":"a"}\n{"value":"b"}\n7\n', "line=3 stored_before=2"),
        ("lines", b"a\nb\n" + b"x" * (3 * 2**20), "line=3 stored_before=2 (record-too-large)"),
    ],
)
def test_a_bad_line_is_named_and_so_is_what_was_stored_before(
    cli: CommandLine, form: str, data: bytes, code: str
) -> None:
    cli.stream(f"bad-{form}")
    result = cli.run("produce", f"bad-{form}", cli.file(data), "-f", form, "--batch-count", 5)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert code in result.stderr
    assert "nothing more was stored" in result.stderr


def test_what_the_server_refuses_of_a_record_is_told_with_its_place(cli: CommandLine) -> None:
    cli.stream("refused")
    result = cli.run("produce", "refused", cli.file(b'{"valve":"x"}\n'), "-f", "records")
    assert (result.exit_code, "/records/0" in result.stderr) == (1, True)
    not_arrow = cli.run("produce", "refused", cli.file(b"no arrow"), "-f", "arrow")
    assert (not_arrow.exit_code, "not an Arrow IPC stream" in not_arrow.stderr) == (1, True)


def test_a_page_that_was_read_does_not_wait_for_the_garbage_collector(cli: CommandLine) -> None:
    cli.stream("pages", "a", "b", "c")
    gc.collect()
    gc.disable()
    try:
        of_others = answers_in_memory()
        with Client(cli.url) as client:
            for offset in range(3):
                client.read("pages", offset, limit=1)
        kept = answers_in_memory()
        assert [each for each in kept if all(each is not other for other in of_others)] == []
    finally:
        gc.enable()


def answers_in_memory() -> list[httpx.Response]:
    return [each for each in gc.get_objects() if isinstance(each, httpx.Response)]


def test_only_records_of_a_filter_value_or_a_key_are_written(cli: CommandLine) -> None:
    cli.stream("chosen")
    lines = [
        {"value": "one", "filter_value": "a", "key": "k"},
        {"value": "two", "filter_value": "b"},
        {"value": "three", "key": "k"},
        {"value": "four", "filter_value": "a"},
    ]
    source = cli.file(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert cli.run("produce", "chosen", source, "--format", "records").exit_code == 0

    assert read(cli, "chosen", "--filter", "a") == b"one\nfour\n"
    assert read(cli, "chosen", "--filter", "b", "--match-unfiltered") == b"two\nthree\n"
    assert read(cli, "chosen", "--filter", "a", "--key", "k") == b"one\n"
    assert read(cli, "chosen", "--key", "k", "-n", 1) == b"one\n"
    assert read(cli, "chosen", "--key-base64", "aw==") == b"one\nthree\n"
    assert read(cli, "chosen", "--key-base64", "aw", "--key", "other") == b"one\nthree\n"
    assert cli.run("tail", "chosen", "-n", 2, "--key-base64", "aw").stdout == "three\n"
    wrong = cli.run("read", "chosen", "--key-base64", "!")
    assert (wrong.exit_code, "must be base64" in wrong.stderr) == (2, True)
    tail = cli.run("tail", "chosen", "-n", 2, "--filter", "a")
    assert (tail.exit_code, tail.stdout) == (0, "four\n")
    with pa.ipc.open_stream(read(cli, "chosen", "--filter", "a", "-o", "arrow")) as table:
        assert table.read_all()["offset"].to_pylist() == [0, 3]
    refused = cli.run("read", "chosen", "--match-unfiltered")
    assert (refused.exit_code, "goes with --filter" in refused.stderr) == (2, True)
