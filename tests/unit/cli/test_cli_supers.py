"""Who takes a super stream for a stream, or the other way round, is told which command to use."""

from collections.abc import Iterator

import pytest
from support.command_line import CommandLine


@pytest.fixture
def trips(cli: CommandLine) -> Iterator[str]:
    cli.ok("super", "create", "trips", "--partitions", "2")
    yield "trips"
    cli.ok("super", "rm", "trips", "--yes")


COMMANDS = [
    (("describe",), (), "use `bottomless super describe trips`"),
    (("rm",), ("--yes",), "use `bottomless super rm trips`"),
    (("update",), ("--max-age", "1d"), "use `bottomless super update trips`"),
    (("offsets",), (), "name one of its partitions"),
    (("consumers", "ls"), (), "name one of its partitions"),
    (("consumers", "set"), ("billing", "0"), "name one of its partitions"),
]


def test_commands_of_streams_say_that_a_name_is_that_of_a_super_stream(
    cli: CommandLine, trips: str
) -> None:
    for words, more, advice in COMMANDS:
        result = cli.run(*words, trips, *more)
        assert (words, result.exit_code) == (words, 3)
        assert "trips is a super stream (stream-not-found)" in result.stderr
        assert advice in result.stderr


def test_a_stream_that_is_not_there_is_still_none(cli: CommandLine) -> None:
    result = cli.run("describe", "nope")
    assert result.exit_code == 3
    assert "`bottomless create` makes one" in result.stderr


def test_commands_of_super_streams_name_commands_of_super_streams(
    cli: CommandLine, trips: str
) -> None:
    missing = cli.run("super", "describe", "nope")
    assert missing.exit_code == 3
    assert "no such super stream" in missing.stderr
    assert "`bottomless super create` makes one" in missing.stderr
    exists = cli.run("super", "create", trips, "--partitions", "3")
    assert exists.exit_code == 4
    assert "`bottomless super grow` gives it more partitions" in exists.stderr
    assert "`bottomless super update` changes its configuration" in exists.stderr


def test_a_super_stream_gets_another_configuration(cli: CommandLine, trips: str) -> None:
    stale = cli.json("super", "describe", trips)["etag"]
    assert cli.run("super", "update", trips).exit_code == 2
    assert cli.ok("super", "update", trips, "--max-age", "1d").startswith("trips ")
    for partition in ("trips-0", "trips-1"):
        assert cli.json("describe", partition)["retention"]["max_age"] == "1D"
    late = cli.run("super", "update", trips, "--max-age", "2d", "--if-match", stale)
    assert late.exit_code == 4
