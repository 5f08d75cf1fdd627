"""Import of RabbitMQ segments into a server: every message once, however often it is cut off."""

import shutil
import threading
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine
from support.guards import remove
from support.rabbitmq import GOLDEN, Publishing, publish_everything

from bottomless.cli.rabbitmq_parts import one_ahead
from bottomless.formats.osiris import CHUNK_HEADER_SIZE, SEGMENT_HEADER_SIZE, decode_chunk_header

COUNT = 1_221
SECOND = "00000000000000000922.segment"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A copy of the directory of a stream, under a name as RabbitMQ gives it."""
    directory = tmp_path / "copies" / "__orders_1795722451"
    directory.mkdir(parents=True)
    for path in GOLDEN.glob("*.segment"):
        shutil.copyfile(path, directory / path.name)
    (directory / "00000000000000000000.index").write_bytes(b"OSII\0\0\0\1")
    return directory


def published() -> list[bytes]:
    """Values in the order in which they were published."""
    everything = Publishing(None, "golden")
    publish_everything(everything)
    return [
        record["value"].encode() if "value" in record else bytes.fromhex(record["bytes"])
        for record in everything.records
    ]


def stored(cli: CommandLine, stream: str) -> list[Any]:
    records: list[Any] = cli.json("read", stream)
    return records


def values(records: Iterable[Any]) -> list[bytes]:
    return [
        record["value"].encode() if "value" in record else b64decode(record["value_base64"])
        for record in records
    ]


def import_(cli: CommandLine, node: Path, stream: str, *words: object) -> Any:
    """What an import says that must succeed, whatever it tells beside."""
    result = cli.run("import", "rabbitmq", node, "--stream", stream, *words)
    assert result.exit_code == 0, result.stderr
    return result


def test_an_import_stores_what_was_published_and_a_repeat_adds_nothing(
    cli: CommandLine, node: Path
) -> None:
    cli.stream("whole")
    words = ("import", "rabbitmq", node, "--stream", "whole", "--key-from", "property:group-id")
    said = cli.json(*words, "--keep-offsets")
    assert said == {
        "stored": COUNT,
        "left_out": 0,
        "torn_bytes": 0,
        "next_offset": COUNT,
        "rabbitmq_first_offset": 0,
        "rabbitmq_next_offset": 1_223,
    }
    records = stored(cli, "whole")
    assert values(records) == published()
    [full] = [record for record in records if record.get("key") == "till-3"]
    assert (full["filter_value"], full["event_time"]) == ("emea", "2026-11-26T12:30:00.000Z")
    assert full["headers"]["amqp.subject"] == "orders"
    offsets = [int(record["headers"]["rabbitmq.offset"]) for record in records]
    # Chunks that hold no message take offsets too.
    assert sorted(set(offsets)) == offsets
    assert offsets[-1] == 1_222
    said = "stored 0 records; messages below 1223 of RabbitMQ were stored before\n"
    assert cli.ok(*words) == said
    assert len(stored(cli, "whole")) == COUNT


@pytest.mark.parametrize("size", [1_024, 20_000])
def test_an_import_that_was_cut_off_goes_on_whatever_its_parts_are(
    cli: CommandLine, node: Path, size: int
) -> None:
    name = f"cut-{size}"
    cli.stream(name)
    second = node / SECOND
    kept = second.read_bytes()
    second.unlink()
    import_(cli, node, name, "--batch-bytes", size)
    # The node went on; its last chunk is there in part.
    second.write_bytes(kept[:2_000])
    result = import_(cli, node, name, "--batch-bytes", 3_000)
    assert "the last segment ends within a chunk" in result.stderr
    second.write_bytes(kept)
    import_(cli, node, name)
    assert values(stored(cli, name)) == published()


def test_a_torn_end_is_found_at_every_byte(cli: CommandLine, node: Path) -> None:
    whole = (node / SECOND).read_bytes()
    first = decode_chunk_header(whole[SEGMENT_HEADER_SIZE:])
    ends = SEGMENT_HEADER_SIZE + first.size
    for size in (0, 5, SEGMENT_HEADER_SIZE, SEGMENT_HEADER_SIZE + 47, ends - 1, ends, ends + 1):
        (node / SECOND).write_bytes(whole[:size])
        found = cli.json("import", "rabbitmq", node, "--dry-run")
        begun = size if size < SEGMENT_HEADER_SIZE else size - SEGMENT_HEADER_SIZE
        assert found["torn_bytes"] == (begun if size < ends else size - ends)
        assert found["next_offset"] == (first.next_offset if size >= ends else 922)


def test_a_dry_run_says_what_is_there_and_asks_no_server(node: Path, tmp_path: Path) -> None:
    nowhere = CommandLine("http://127.0.0.1:9", tmp_path)
    found = nowhere.json("import", "rabbitmq", node, "--dry-run")
    assert found["messages"] == COUNT
    assert (found["first_offset"], found["next_offset"]) == (0, 1_223)
    assert found["codecs"] == {
        "plain": 521,
        "sub-entries, gzip": 60,
        "sub-entries, lz4": 60,
        "sub-entries, none": 60,
        "sub-entries, snappy": 460,
        "sub-entries, zstd": 60,
    }
    assert (found["segments"], found["not_amqp"], found["left_out"]) == (2, 1, 0)
    assert "messages " in nowhere.ok("import", "rabbitmq", node, "--dry-run")


def damage(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_damage_names_the_file_and_the_byte_and_what_came_before_is_stored(
    cli: CommandLine, node: Path
) -> None:
    cli.stream("damaged")
    damage(node / SECOND, SEGMENT_HEADER_SIZE + CHUNK_HEADER_SIZE + 20)
    # One part would hold all that is there: what is before the damage is a part then.
    result = cli.run("import", "rabbitmq", node, "--stream", "damaged")
    assert result.exit_code == 1
    assert f"{SECOND}, from byte 8 on" in result.stderr
    assert "the checksum of its data does not match" in result.stderr
    before = stored(cli, "damaged")
    (node / SECOND).rename(node / "aside")
    whole = cli.json("import", "rabbitmq", node, "--dry-run")
    (node / "aside").rename(node / SECOND)
    assert len(before) == whole["messages"]
    damage(node / SECOND, SEGMENT_HEADER_SIZE + CHUNK_HEADER_SIZE + 20)
    import_(cli, node, "damaged")
    assert values(stored(cli, "damaged")) == published()


def test_a_segment_that_is_missing_or_cut_in_the_middle_is_noticed(
    cli: CommandLine, node: Path
) -> None:
    first = node / "00000000000000000000.segment"
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    result = cli.run("import", "rabbitmq", node, "--dry-run")
    assert result.exit_code == 1
    assert "and is not the last segment" in result.stderr
    header = decode_chunk_header(whole[SEGMENT_HEADER_SIZE:])
    first.write_bytes(whole[: SEGMENT_HEADER_SIZE + header.size])
    result = cli.run("import", "rabbitmq", node, "--dry-run")
    assert f"messages {header.next_offset} to 921 are missing" in result.stderr
    first.write_bytes(whole[:SEGMENT_HEADER_SIZE] + whole[SEGMENT_HEADER_SIZE + header.size :])
    result = cli.run("import", "rabbitmq", node, "--dry-run")
    assert f"a chunk begins with message {header.next_offset}, not 0" in result.stderr
    (node / SECOND).unlink()
    first.unlink()
    result = cli.run("import", "rabbitmq", node, "--dry-run")
    assert "the directory holds no segment" in result.stderr
    assert "`bottomless queue-store import-rabbitmq`" in result.stderr


def test_what_retention_took_meanwhile_is_told(cli: CommandLine, node: Path) -> None:
    cli.stream("late")
    first = node / "00000000000000000000.segment"
    whole = first.read_bytes()
    header = decode_chunk_header(whole[SEGMENT_HEADER_SIZE:])
    kept = (node / SECOND).read_bytes()
    (node / SECOND).unlink()
    first.write_bytes(whole[: SEGMENT_HEADER_SIZE + header.size])
    import_(cli, node, "late")
    first.unlink()
    (node / SECOND).write_bytes(kept)
    result = import_(cli, node, "late")
    assert f"messages {header.next_offset} to 921 of RabbitMQ are in no segment" in result.stderr


def test_wrong_words_are_refused_before_anything_is_read(cli: CommandLine, node: Path) -> None:
    for words in (
        ("--key-from", "group-id", "--stream", "x"),
        ("--filter-from", "body:x", "--stream", "x"),
        (),
    ):
        assert cli.run("import", "rabbitmq", node, *words).exit_code == 2
    result = cli.run("import", "rabbitmq", node, "--stream", "no-such-stream")
    assert (result.exit_code, "stream-not-found" in result.stderr) == (3, True)


def test_messages_that_make_no_record_end_the_import_or_are_left_out(
    cli: CommandLine, node: Path
) -> None:
    cli.stream("unfit")
    words = ("--filter-from", "application:bytes", "--batch-bytes", 1_024)
    result = cli.run("import", "rabbitmq", node, "--stream", "unfit", *words)
    assert result.exit_code == 1
    assert "its filter value is not UTF-8" in result.stderr
    assert "rabbitmq_offset=203" in result.stderr
    assert len(stored(cli, "unfit")) == 203
    result = import_(cli, node, "unfit", *words, "--skip-unfit")
    assert "1 record would have been larger" in result.stderr
    assert len(stored(cli, "unfit")) == COUNT - 1


def overtaken(parts: Iterable[Any], append: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
    """As if two appends were under way, and the later one came first."""
    waiting = list(parts)
    for number in range(0, len(waiting) - 1, 2):
        waiting[number], waiting[number + 1] = waiting[number + 1], waiting[number]
    for part in waiting:
        yield part, append(part)


def imported_whole(cli: CommandLine, node: Path, name: str) -> None:
    cli.stream(name)
    cli.run("import", "rabbitmq", node, "--stream", name, "--batch-bytes", 4_096)
    assert values(stored(cli, name)) == published()


def test_without_one_append_at_a_time_an_import_loses_records(
    cli: CommandLine, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported_whole(cli, node, "in-turn")
    remove(monkeypatch, "one append of an import at a time", overtaken)
    with pytest.raises(AssertionError):
        imported_whole(cli, node, "overtaken")


def test_the_next_part_is_made_while_one_is_sent_and_what_fails_comes_after_those_before_it() -> (
    None
):
    made: list[int] = []
    second_is_made, third_is_begun = threading.Event(), threading.Event()

    def parts() -> Iterator[int]:
        for number in range(2):
            made.append(number)
            if number:
                second_is_made.set()
            yield number
        third_is_begun.set()
        raise ValueError("damaged")

    given = one_ahead(parts())
    assert next(given) == 0
    # Nobody has asked for the second one yet.
    assert second_is_made.wait(60)
    assert (made, third_is_begun.is_set()) == ([0, 1], False)
    assert next(given) == 1
    with pytest.raises(ValueError, match="damaged"):
        next(given)
