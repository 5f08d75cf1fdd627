"""Streams, consumers and what is stored of them, from the command line, on a real server."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from support.command_line import CommandLine
from support.server import AllInOne
from support.waiting import until

QUICK = ("--fragment-age-ms", "100")


def tiered(cli: CommandLine, name: str, *batches: int) -> str:
    """A stream with a fragment of so many records each."""
    cli.ok("create", name, *QUICK)
    total = 0
    for count in batches:
        cli.ok("produce", name, cli.file(b"".join(b"%d\n" % n for n in range(count))))
        total += count
        wait_until_tiered(cli, name, total)
    return name


def wait_until_tiered(cli: CommandLine, name: str, next_offset: int) -> None:
    until(lambda: bounds(cli, name)["object_store_next_offset"] == next_offset)


def wait_until_trimmed(cli: CommandLine, name: str, first_offset: int) -> None:
    until(lambda: bounds(cli, name)["first_offset"] == first_offset)


def bounds(cli: CommandLine, name: str) -> Any:
    return cli.json("offsets", name)


def test_a_stream_is_created_found_changed_and_deleted(cli: CommandLine) -> None:
    created = cli.ok("create", "life", "--max-age", "7D", "--max-bytes", "1000", "--label", "a=b")
    assert created == cli.ok(
        "create", "life", "--max-age", "1 week", "--max-bytes", "1kB", "--label", "a=b"
    )

    assert cli.ok("ls", "lif", "-o", "name") == "life\n"
    assert cli.ok("ls", "lif").splitlines()[0].split()[:2] == ["NAME", "RECORDS"]
    described = cli.json("describe", "life")
    assert (described["labels"], described["retention"]["max_bytes"]) == ({"a": "b"}, 1000)

    stale = described["etag"]
    cli.ok("update", "life", "--max-age", "default", "--label", "a=", "--label", "c=d")
    changed = cli.json("describe", "life")
    assert (changed["labels"], changed["retention"]["max_age"]) == ({"c": "d"}, None)
    assert cli.run("update", "life", "--max-bytes", "unlimited", "--if-match", stale).exit_code == 4
    assert cli.run("rm", "life", "--yes", "--if-match", stale).exit_code == 4

    operation = cli.json("rm", "life", "--yes", "--if-match", changed["etag"])["operation_id"]
    assert cli.run("describe", "life").exit_code == 3
    assert cli.json("operations", "show", operation)["kind"] == "delete-stream"


def test_a_list_is_an_array_in_json_also_when_it_is_empty(cli: CommandLine) -> None:
    cli.stream("listed")
    assert [stream["name"] for stream in cli.json("ls", "listed")] == ["listed"]
    assert cli.json("ls", "nothing-is-called-so") == []


def test_rm_asks_and_a_dry_run_deletes_nothing(cli: CommandLine) -> None:
    cli.stream("kept", "one")
    assert "would delete kept" in cli.ok("rm", "kept", "--dry-run")
    refused = cli.run("rm", "kept")
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)
    cli.ok("describe", "kept")


def test_consumers_are_set_listed_and_forgotten(cli: CommandLine) -> None:
    cli.stream("read-by", *map(str, range(10)))
    cli.ok("consumers", "set", "read-by", "billing", "7")

    assert cli.ok("consumers", "ls", "read-by", "-o", "name") == "billing\n"
    assert cli.json("consumers", "get", "read-by", "billing")["lag_records"] == 3
    assert cli.ok("resolve", "read-by", "stored", "--consumer", "billing") == "7\n"
    assert cli.ok("read", "read-by", "--from", "stored", "--consumer", "billing") == "7\n8\n9\n"

    backwards = cli.run("consumers", "set", "read-by", "billing", "2")
    assert (backwards.exit_code, "--allow-regression" in backwards.stderr) == (4, True)
    cli.ok("consumers", "set", "read-by", "billing", "2", "--allow-regression")
    cli.ok("consumers", "rm", "read-by", "billing", "--yes")
    assert cli.run("consumers", "get", "read-by", "billing").exit_code == 3


def test_fragments_are_listed_and_their_bytes_written(cli: CommandLine) -> None:
    tiered(cli, "in-pieces", 3, 4)

    listed = cli.json("fragments", "ls", "in-pieces")
    assert [item["record_count"] for item in listed] == [3, 4]
    first, second = cli.ok("fragments", "ls", "in-pieces", "-o", "name").split()
    assert cli.ok("fragments", "ls", "in-pieces", "--from-offset", "3", "-o", "name").split() == [
        second
    ]
    written = cli.run("fragments", "cat", "in-pieces", first)
    assert len(written.stdout_bytes) == listed[0]["size_bytes"]
    assert cli.run("fragments", "cat", "in-pieces", f"{first[:-1]}x").exit_code == 3


@pytest.mark.parametrize("allow_empty", [False, True])
def test_a_dry_trim_says_what_the_trim_then_does(cli: CommandLine, allow_empty: bool) -> None:
    name = tiered(cli, f"trimmed-{allow_empty}", 3, 4, 2)
    options = ["--allow-empty"] if allow_empty else []
    for before in (0, 1, 5, 9):
        said = cli.json("trim", name, before, "--dry-run", *options)
        assert bounds(cli, name)["first_offset"] == said["first_offset"]
        done = cli.json("trim", name, before, "--yes", "--wait", *options)
        assert done["result"]["first_offset"] == said["effective_before_offset"]
        wait_until_trimmed(cli, name, done["result"]["first_offset"])
    for options in (["--dry-run"], ["--yes"]):
        beyond = cli.run("trim", name, 10, *options)
        assert (beyond.exit_code, "offset-beyond-end" in beyond.stderr) == (1, True)


def test_a_dry_trim_counts_from_where_the_stream_begins_though_readers_learn_of_it_later(
    tmp_path: Path,
) -> None:
    late = {"BOTTOMLESS_READER_ROOT_TTL_MS": "600000"}
    with AllInOne(tmp_path / "data", late) as server, server.client() as client:
        cli = CommandLine(server.url, tmp_path)
        cli.ok("create", "late", *QUICK)
        for count in (1, 2):
            cli.ok("produce", "late", cli.file(b"1\n"))
            until_fragments(client, "late", count)
        assert bounds(cli, "late")["first_offset"] == 0
        cli.ok("trim", "late", "1", "--yes", "--wait")
        assert bounds(cli, "late")["first_offset"] == 0, "this reader knows already"
        said = cli.json("trim", "late", "1", "--dry-run")
    assert (said["first_offset"], said["would_remove_offsets"]) == (1, 0)


def until_fragments(client: httpx.Client, name: str, count: int) -> None:
    """Asked of manifest: a reader would remember what it saw."""
    path = f"/v1/streams/{name}"
    until(lambda: client.get(path).raise_for_status().json()["fragment_count"] == count)


def test_retention_is_seen_before_it_is_applied(cli: CommandLine) -> None:
    name = tiered(cli, "aged", 3, 4)
    assert cli.json("retention", "preview", name)["would_delete"]["records"] == 0
    assert cli.json("retention", "preview", name, "--max-bytes", 1)["would_delete"]["records"] == 3
    cli.ok("update", name, "--max-bytes", 1)
    assert cli.json("retention", "apply", name, "--dry-run")["new_first_offset"] == 3
    assert cli.run("retention", "apply", name).exit_code == 2
    done = cli.json("retention", "apply", name, "--yes", "--wait")
    assert (done["state"], done["result"]["new_first_offset"]) == ("succeeded", 3)


def test_the_manifest_is_shown_and_found_sound(cli: CommandLine) -> None:
    name = tiered(cli, "tree", 3, 4)
    assert [entry["kind"] for entry in cli.json("manifest", "tree", name)["entries"]] == [
        "fragment"
    ] * 2
    assert "fragment  3..6  4 records" in cli.ok("manifest", "tree", name)
    assert "  default  0000" in cli.ok("manifest", "tree", name)
    assert cli.json("manifest", "verify", name, "--checksums")["result"]["sound"] is True


def test_a_dry_garbage_collection_waits_for_its_report(cli: CommandLine) -> None:
    report = cli.json("admin", "gc", "--dry-run")
    assert (report["kind"], report["state"]) == ("gc", "succeeded")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("describe", "nobody"), 3, "`bottomless ls` shows"),
        (("read", "nobody"), 3, "stream-not-found"),
        (("tail", "-f", "nobody"), 3, "stream-not-found"),
        (("produce", "nobody", "/dev/null"), 3, "stream-not-found"),
        (("operations", "show", "op_" + "0" * 32), 3, "operation-not-found"),
        (("create", "no name"), 1, "bad-name"),
        (("create", "there", "--max-age", "3D"), 4, "`bottomless update` changes it"),
        (("admin", "takeover", "there", "--expect-home", "0" * 32, "--yes"), 4, "home-live"),
        (("admin", "rebuild", "--yes"), 4, "coordination-intact"),
    ],
)
def test_an_error_is_one_line_with_code_and_advice_and_an_exit_code(
    cli: CommandLine, words: tuple[str, ...], code: int, sentence: str
) -> None:
    cli.stream("there", "a record, so that it has a home")
    result = cli.run(*words)
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    assert result.stderr.startswith("bottomless: ")
    assert result.stderr.count("\n") == 1
    assert "nothing was changed" in result.stderr
    assert sentence in result.stderr


def test_a_server_that_is_not_there_is_exit_code_5(cli: CommandLine) -> None:
    cli.url = "http://127.0.0.1:1"
    result = cli.run("ls")
    assert (result.exit_code, result.stderr.count("\n")) == (5, 1)
    assert "peer-unavailable" in result.stderr
    assert "--url" in result.stderr


def test_the_list_says_how_much_and_how_new_and_fits_into_80_columns(cli: CommandLine) -> None:
    name = cli.stream("sized-with-a-name-of-thirty-xy", "a", "b", "c")
    cli.ok("create", "sized-without-records")
    shown = [line.split() for line in cli.ok("ls", "sized-").splitlines()]
    assert shown[0] == ["NAME", "RECORDS", "STORED", "LAST"]
    assert [(row[0], row[1]) for row in shown[1:]] == [(name, "3"), ("sized-without-records", "0")]
    assert shown[1][-1].endswith(("s", "m"))
    assert shown[2][-1] == "-"
    assert max(map(len, cli.ok("ls", "sized-").splitlines())) <= 80

    long = cli.ok("ls", "sized-", "--long").splitlines()
    assert long[0].split()[4] == "ID"
    assert cli.json("describe", name)["stream_id"] in long[1]
    assert cli.ok("ls", "sized-", "-o", "name").split() == [name, "sized-without-records"]


def test_producers_are_listed_shown_and_forgotten(cli: CommandLine) -> None:
    cli.stream("produced-by")
    cli.ok("produce", "produced-by", cli.file(b"a\nb\n"), "--producer", "loader")
    assert [one["producer_id"] for one in cli.json("producers", "ls", "produced-by")] == ["loader"]
    assert cli.json("producers", "get", "produced-by", "loader")["last_seq"] == 1
    assert cli.run("producers", "rm", "produced-by", "loader").exit_code == 2
    cli.ok("producers", "rm", "produced-by", "loader", "--yes")
    assert cli.run("producers", "get", "produced-by", "loader").exit_code == 3


def test_a_lease_is_taken_renewed_and_given_back(cli: CommandLine) -> None:
    cli.stream("held", "a", "b", options=("--fragment-age-ms", "100"))
    until(lambda: bounds(cli, "held")["object_store_next_offset"] == 2)
    lease = cli.json("leases", "take", "held", "0", "--ttl", "1h")
    assert (lease["first_offset"], lease["next_offset"]) == (0, 2)
    renewed = cli.json("leases", "renew", "held", lease["lease_id"], "--ttl", "2h")
    assert renewed["expires_at"] > lease["expires_at"]
    cli.ok("leases", "rm", "held", lease["lease_id"])
    assert cli.run("leases", "renew", "held", lease["lease_id"]).exit_code == 3
    assert cli.run("leases", "take", "held", "0", "--ttl", "soon").exit_code == 2


def test_limits_are_shown(cli: CommandLine) -> None:
    assert cli.json("limits") == httpx.get(f"{cli.url}/v1/limits").json()


def test_a_gap_is_accepted_only_where_there_is_a_hole(cli: CommandLine) -> None:
    cli.stream("whole", "a")
    assert cli.run("admin", "gap", "whole", "1").exit_code == 2
    refused = cli.run("admin", "gap", "whole", "1", "--yes", "--wait")
    assert (refused.exit_code, "offset-mismatch" in refused.stderr) == (4, True)


@pytest.mark.parametrize("words", [("--dry-run",), ("--yes",)])
def test_a_trim_of_what_is_not_stored_yet_says_within_which_time_it_is(
    cli: CommandLine, words: tuple[str, ...]
) -> None:
    name = cli.stream(f"too-new{words[0]}", "a", options=("--fragment-age-ms", "600000"))
    refused = cli.run("trim", name, "1", *words)
    assert (refused.exit_code, "(offset-beyond-end)" in refused.stderr) == (5, True)
    assert "max_age_ms=600000" in refused.stderr
    assert "wait, then do the same again" in refused.stderr
    # What the stream does not have comes by no waiting, and is refused before anybody is asked.
    beyond = cli.run("trim", name, "2", *words[: words == ("--dry-run",)])
    assert (beyond.exit_code, "next_offset=1 (offset-beyond-end)" in beyond.stderr) == (1, True)
    assert "wait" not in beyond.stderr
    assert "`bottomless offsets` shows where the stream ends" in beyond.stderr
