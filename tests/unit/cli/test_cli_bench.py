"""Bench: it measures what it says, stays within its bounds, and leaves nothing behind."""

import signal

import pytest
from support.command_line import CommandLine
from support.stand_in import OURS, Answer, Asked, standing_in
from support.waiting import until

from bottomless.cli.measures import Load, percentile, summary

SMALL = ("--connections", "2", "--batch-count", "10", "--record-bytes", "20")
SHORT = ("--seconds", "60", "--max-bytes", "4000", *SMALL)
"""Bytes end it, long before the time does on any machine."""


def test_percentiles_are_values_that_were_measured() -> None:
    waits = [float(n) for n in range(1, 101)]
    assert [percentile(waits, p) for p in (50, 90, 99, 100)] == [50, 90, 99, 100]
    assert percentile([7.0], 50) == 7.0


def test_rates_are_over_the_whole_time() -> None:
    load = Load([0.1, 0.3], record_count=20, size=4_000_000, seconds=2.0, busy_seconds=0.5)
    found = summary(load)
    assert (found["records_per_second"], found["megabytes_per_second"]) == (10, 2)
    assert (found["requests_per_second"], found["busy_percent"]) == (1, 25)
    assert found["milliseconds"] == {"p50": 100, "p90": 300, "p99": 300, "max": 300}
    assert summary(Load())["milliseconds"] == {}


def test_what_is_appended_is_read_back_and_the_stream_is_deleted(cli: CommandLine) -> None:
    report = cli.json("bench", *SHORT)
    assert report["append"]["records"] == report["read"]["records"] > 0
    assert report["read"]["complete"] is True
    assert report["append"]["records"] == 10 * report["append"]["requests"]
    assert report["append"]["bytes"] == 20 * report["append"]["records"]
    assert cli.json("ls", "bench-") == []
    assert report["stream"] in cli.ok("ls", "bench-", "--deleting", "-o", "name").split()


def test_bytes_bound_it_as_time_does(cli: CommandLine) -> None:
    report = cli.json("bench", *SMALL, "--seconds", "60", "--max-bytes", "1000")
    assert report["append"]["bytes"] == 1000
    assert report["append"]["seconds"] < 60


def test_a_table_says_how_busy_the_program_was_and_what_was_measured(cli: CommandLine) -> None:
    shown = cli.ok("bench", *SHORT)
    assert "p50" in shown
    assert "this program was busy" in shown
    assert "share what was measured" in shown


def test_a_request_that_no_server_takes_is_wrong_usage(cli: CommandLine) -> None:
    result = cli.run("bench", "--record-bytes", "1000000", "--batch-count", "1000")
    assert (result.exit_code, "too large" in result.stderr) == (2, True)


def test_ctrl_c_deletes_the_stream_too(cli: CommandLine) -> None:
    running = cli.start("bench", "--seconds", "60", "--connections", "1", "--batch-count", "1")
    (stream,) = until(lambda: cli.ok("ls", "bench-", "-o", "name").split())
    until(lambda: cli.json("offsets", stream)["next_offset"] > 0)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=240)
    assert (running.returncode, stdout, stderr) == (130, b"", b"")
    assert cli.json("ls", "bench-") == []


def test_refusals_for_now_are_counted_and_an_error_ends_it(cli: CommandLine) -> None:
    answers = iter([b'"code":"overloaded"', b'"code":"storage-failed"'])

    def answer(asked: Asked) -> Answer:
        if asked.method == "POST":
            body = b'{%s,"detail":"no","outcome":"none","retryable":true}' % next(answers)
            return 503, body, OURS
        bounds = b'{"stream_id":"s","first_offset":0,"next_offset":0,"object_store_next_offset":0}'
        return 200, bounds, OURS

    with standing_in(answer) as server:
        cli.url = server.url
        result = cli.run("bench", "--seconds", "60", "--connections", "1")
    assert (result.exit_code, "storage-failed" in result.stderr) == (5, True)
    assert [asked.method for asked in server.asked] == ["PUT", "GET", "POST", "POST", "DELETE"]


@pytest.mark.parametrize("words", [("bench",), ("doctor", "--round-trip")], ids=" ".join)
def test_whoever_may_not_make_a_stream_is_told_what_it_takes(
    cli: CommandLine, words: tuple[str, ...]
) -> None:
    def answer(_: Asked) -> Answer:
        return 404, b'{"code":"stream-not-found","detail":"no","outcome":"none"}', OURS

    with standing_in(answer) as server:
        cli.url = server.url
        result = cli.run(*words)
    assert "manage, append, read and delete for" in result.output
    assert result.exit_code == (6 if words == ("bench",) else 1)


@pytest.mark.parametrize("option", [("--seconds", "0"), ("--connections", "1000")])
def test_what_would_not_be_bounded_is_wrong_usage(
    cli: CommandLine, option: tuple[str, str]
) -> None:
    assert cli.run("bench", *option).exit_code == 2
