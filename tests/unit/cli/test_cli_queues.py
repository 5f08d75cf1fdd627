"""`bottomless queue`: queues and their messages, by hand and by a command for each of them."""

import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import orjson
import pytest
from support.command_line import CommandLine
from support.waiting import until

from bottomless.cli.queue_work import variables_of
from bottomless.client import Message

_NAMES = count()


@pytest.fixture
def queue(cli: CommandLine) -> Iterator[str]:
    name = f"jobs-{next(_NAMES)}"
    cli.ok("queue", "create", name)
    yield name
    cli.run("queue", "rm", name, "--yes")


def publish(cli: CommandLine, queue: str, *values: str) -> None:
    cli.ok("queue", "publish", queue, *(word for value in values for word in ("--value", value)))


def described(cli: CommandLine, queue: str) -> dict[str, int]:
    shown: dict[str, int] = cli.json("queue", "describe", queue)
    return shown


def test_a_queue_is_created_changed_listed_and_deleted(cli: CommandLine) -> None:
    options = ("--visibility-ms", "2m", "--max-messages", 3, "--label", "team=a")
    made = cli.ok("queue", "create", "bills", *options)
    assert made.startswith("bills ")
    assert cli.ok("queue", "create", "bills", *options) == made
    assert cli.run("queue", "create", "bills").exit_code == 4
    shown = cli.json("queue", "describe", "bills")
    assert (shown["visibility_ms"], shown["max_messages"]) == (120_000, 3)
    cli.ok("queue", "create", "failed")
    cli.ok(
        "queue", "update", "bills", "--dead-letter-queue", "failed", "--visibility-ms", "default"
    )
    shown = cli.json("queue", "describe", "bills")
    assert (shown["visibility_ms"], shown["dead_letter"]) == (30_000, {"queue": "failed"})
    assert cli.ok("queue", "ls", "bil", "-o", "name") == "bills\n"
    assert cli.ok("queue", "ls", "bil").splitlines()[1].startswith("bills  0 ")
    refused = cli.run("queue", "rm", "failed", "--yes")
    assert (refused.exit_code, "queue-in-use" in refused.stderr) == (4, True)
    publish(cli, "bills", "x")
    assert cli.run("queue", "rm", "bills", "--if-empty").exit_code == 4
    assert cli.run("queue", "rm", "bills").exit_code == 2
    cli.ok("queue", "rm", "bills", "--yes")
    cli.ok("queue", "rm", "failed", "--if-empty")
    gone = cli.run("queue", "describe", "bills")
    assert (gone.exit_code, "`bottomless queue ls` shows the queues" in gone.stderr) == (3, True)
    assert gone.stderr.startswith("bottomless: there is no queue bills (queue-not-found); ")


def test_a_failure_names_the_queue_and_the_option_that_it_is_about(
    cli: CommandLine, queue: str
) -> None:
    also = cli.run("queue", "publish", queue, "--also", "nobody", "--value", "x")
    assert (also.exit_code, "there is no queue nobody (" in also.stderr) == (3, True)
    for command, name in (("create", "endless"), ("update", queue)):
        refused = cli.run("queue", command, name, "--max-deliveries", 5)
        needed = "--max-deliveries: needs --dead-letter-queue or --dead-letter-stream;"
        assert (refused.exit_code, needed in refused.stderr) == (1, True)
    missing = cli.run("queue", "update", queue, "--archive", "nowhere")
    said = "(validation-failed); --archive: there is no such stream; nothing was changed; `bottomless ls`"
    assert (missing.exit_code, said in missing.stderr) == (1, True)
    circle = cli.run("queue", "update", queue, "--dead-letter-queue", queue)
    assert "--dead-letter-queue: dead letters of this queue would come back" in circle.stderr


def test_messages_are_published_looked_at_received_and_settled(
    cli: CommandLine, queue: str
) -> None:
    lines = cli.file(b"a\n\nb\xff\n")
    assert cli.ok("queue", "publish", queue, lines) == "published 3 messages\n"
    values = cli.file(b'{"n": 1.50}\n\n[1]\n')
    cli.ok("queue", "publish", queue, values, "-f", "ndjson", "--header", "k=v", "--priority", 1)
    once = ("queue", "publish", queue, cli.file(b"raw\n"), "-f", "raw", "--idempotency-key", "one")
    assert cli.ok(*once) == "published 1 message\n"
    assert cli.ok(*once) == "published 1 message; 1 were stored before\n"
    peeked = cli.json("queue", "peek", queue)
    shown = [one.get("value", one.get("json", one.get("value_base64"))) for one in peeked]
    assert shown[:3] == ["a", "", "Yv8="]
    assert peeked[3]["headers"] == {"k": "v"}
    more = cli.run("queue", "peek", queue, "--limit", 1)
    assert "--after 0" in more.stderr
    receipts = cli.ok("queue", "receive", queue, "-o", "name", "--visibility-ms", "1h").split()
    assert len(receipts) == 6
    assert (
        cli.ok("queue", "extend", queue, *receipts[:2], "--visibility-ms", "2h") == "extended 2\n"
    )
    assert cli.ok("queue", "ack", queue, *receipts[:2]) == "acked 2\n"
    assert cli.ok("queue", "ack", queue, receipts[0]) == "acked 0, 1 gone\n"
    assert cli.json("queue", "nack", queue, receipts[2])["returned"] == 1
    (again,) = cli.json("queue", "receive", queue)
    stale = cli.run("queue", "ack", queue, receipts[2])
    assert (stale.exit_code, stale.stdout) == (4, "acked 0, 1 stale\n")
    assert "somebody else's" in stale.stderr
    assert cli.ok("queue", "nack", queue, again["receipt"], "--dead-letter") == "returned 1\n"
    assert cli.ok("queue", "receive", queue, "-o", "json") == "[]\n"
    assert cli.ok("queue", "purge", queue, "--yes") == "removed 3 messages\n"


def test_a_message_is_published_to_several_queues_and_dead_letters_go_back(
    cli: CommandLine, queue: str
) -> None:
    cli.ok("queue", "create", "limbo")
    cli.ok("queue", "update", queue, "--dead-letter-queue", "limbo")
    said = cli.ok("queue", "publish", queue, "--also", "limbo", "--value", "both")
    assert said == "published 1 message\n"
    (receipt,) = cli.ok("queue", "receive", queue, "-o", "name").split()
    cli.ok("queue", "nack", queue, receipt, "--dead-letter")
    until(lambda: described(cli, "limbo")["ready"] == 2, what="the dead letter")
    assert cli.ok("queue", "redrive", "limbo").startswith("moved 1 message, ")
    assert described(cli, queue)["ready"] == 1
    cli.ok("queue", "update", queue, "--dead-letter-queue", "default")
    cli.ok("queue", "rm", "limbo", "--yes")


def script(tmp_path: Path, text: str) -> list[str]:
    """A command that runs these lines."""
    path = tmp_path / "work.py"
    path.write_text(text)
    return ["--", sys.executable, str(path)]


WRITES = """
import os, sys
body = sys.stdin.read()
with open({out!r}, "a") as out:
    print(body, os.environ["BOTTOMLESS_MESSAGE_DELIVERIES"],
          os.environ.get("BOTTOMLESS_HEADER_CONTENT_TYPE"), os.environ["BOTTOMLESS_QUEUE"], file=out)
sys.exit(3 if body == "bad" and os.environ["BOTTOMLESS_MESSAGE_DELIVERIES"] == "1" else 0)
"""


def test_a_command_runs_for_each_message_and_its_exit_code_settles_it(
    cli: CommandLine, queue: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    publish(cli, queue, "bad", "good")
    cli.ok("queue", "publish", queue, "--value", "last", "--header", "content-type=text/plain")
    ran = cli.run(
        *("queue", "work", queue, "--until-empty", "--nack-delay-ms", 0),
        *script(tmp_path, WRITES.format(out=str(out))),
    )
    assert ran.exit_code == 0
    assert "exit code 3; it is given back" in ran.stderr
    assert out.read_text().splitlines() == [
        f"bad 1 None {queue}",
        f"bad 2 None {queue}",
        f"good 1 None {queue}",
        f"last 1 text/plain {queue}",
    ]
    shown = described(cli, queue)
    assert (shown["ready"], shown["in_flight"], shown["delayed"]) == (0, 0, 0)


def test_a_command_that_is_not_there_costs_no_message_a_delivery(
    cli: CommandLine, queue: str
) -> None:
    publish(cli, queue, "x")
    ran = cli.run("queue", "work", queue, "--nack-delay-ms", 0, "--", "no-such-command-of-ours")
    assert (ran.exit_code, "no-such-command-of-ours" in ran.stderr) == (1, True)
    [waiting] = cli.json("queue", "peek", queue)
    assert (waiting["state"], waiting["deliveries"]) == ("ready", 0)


def test_a_command_that_cannot_be_started_ends_the_work_and_gives_the_message_back(
    cli: CommandLine, queue: str, tmp_path: Path
) -> None:
    path = tmp_path / "command"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    publish(cli, queue, "x")
    ran = cli.run("queue", "work", queue, "--nack-delay-ms", 0, "--", path)
    assert (ran.exit_code, str(path) in ran.stderr) == (1, True)
    assert described(cli, queue)["ready"] == 1


def test_a_redrive_that_moved_nothing_says_why(cli: CommandLine, queue: str) -> None:
    publish(cli, queue, "x")
    ran = cli.run("queue", "redrive", queue)
    assert (ran.exit_code, ran.stdout) == (0, "moved 0 messages, 1 left\n")
    assert "came from no other queue" in ran.stderr


WAITS = """
import os, time
open({begun!r}, "w").close()
while not os.path.exists({end!r}):
    time.sleep(0.02)
"""


@pytest.mark.parametrize(
    ("number", "second"),
    [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False)],
    ids=["once", "twice", "SIGTERM"],
)
def test_a_signal_ends_the_work_after_the_message_in_hand(
    cli: CommandLine, queue: str, tmp_path: Path, number: signal.Signals, second: bool
) -> None:
    begun, end = tmp_path / "begun", tmp_path / "end"
    publish(cli, queue, "in hand", "waits")
    text = WAITS.format(begun=str(begun), end=str(end))
    words = ("queue", "work", queue, "--nack-delay-ms", 0, *script(tmp_path, text))
    with cli.start(*words) as working:
        assert working.stderr is not None
        until(begun.exists, what="the command to begin")
        working.send_signal(number)
        assert b"finishing the message in hand" in working.stderr.readline()
        if second:
            working.send_signal(signal.SIGINT)
        else:
            end.touch()
        assert working.wait() == 128 + number
    shown = described(cli, queue)
    assert (shown["ready"], shown["in_flight"]) == ((2, 0) if second else (1, 0))


def test_no_header_becomes_another_variable_of_the_command() -> None:
    told = orjson.loads(
        b'{"receipt":"r","message_id":"1","sequence":2,"deliveries":3,"priority":4,'
        b'"published_at":"t","value":"v","headers":{"PATH":"/evil","a-b":"1","a.b":"2",'
        b'"nul":{"base64":"AA=="}}}'
    )
    assert variables_of(Message(told), "jobs") == {
        "BOTTOMLESS_HEADER_PATH": "/evil",
        "BOTTOMLESS_HEADER_A_B": "1",
        "BOTTOMLESS_QUEUE": "jobs",
        "BOTTOMLESS_MESSAGE_ID": "1",
        "BOTTOMLESS_MESSAGE_SEQUENCE": "2",
        "BOTTOMLESS_MESSAGE_DELIVERIES": "3",
        "BOTTOMLESS_MESSAGE_PRIORITY": "4",
        "BOTTOMLESS_MESSAGE_PUBLISHED_AT": "t",
    }


@pytest.mark.parametrize(
    "words",
    [
        ("create", "q", "--visibility-ms", "soon"),
        ("create", "q", "--dead-letter-queue", "a", "--dead-letter-stream", "b"),
        ("update", "q"),
        ("publish", "q", "--value", "x", "--header", "none"),
        ("publish", "q", "--idempotency-key", "k"),
        ("receive", "q", "--limit", "101"),
        ("work", "q"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_told_before_anything_is_asked(
    cli: CommandLine, words: tuple[str, ...]
) -> None:
    assert cli.run("queue", *words).exit_code == 2


def test_an_operator_sees_the_store_compacts_it_and_takes_queues_over(
    cli: CommandLine, queue: str
) -> None:
    publish(cli, queue, "x")
    store = cli.json("admin", "queues", "store")
    assert store["files"]["open"] == 1
    assert cli.ok("admin", "queues", "store", "-o", "name") == f"{store['node_id']}\n"
    assert cli.json("admin", "queues", "compact")["scheduled"] >= 0
    takeover = ("admin", "queues", "takeover", "--expect-home", "0" * 32)
    assert cli.run(*takeover).exit_code == 2, "it asks first"
    # What is the home already stays it: a repeat whose answer was lost hears the same.
    assert cli.json(*takeover, "--yes")["home"] == store["node_id"]
    assert described(cli, queue)["ready"] == 1
    refused = cli.run(*takeover, "--tenant", "others", "--yes")
    assert (refused.exit_code, "the tenant has no queues" in refused.stderr) == (3, True)
