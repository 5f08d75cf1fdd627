"""Tools for a store of queues from the command line: what they refuse, and how they say it."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from support.command_line import app
from typer.testing import CliRunner, Result

from bottomless_server.node.data_directory import DirectoryLock
from unit.queues.import_harness import EXPECTED, write_node

VHOSTS = ("--vhost", "/=default", "--vhost", "eu=europe")


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return write_node(tmp_path / "node")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def run(*words: object) -> Result:
    return CliRunner().invoke(app(), ["queue-store", *map(str, words)])


def ok(*words: object) -> Any:
    result = run(*words, "-o", "json")
    assert result.exit_code == 0, result.stderr
    return orjson.loads(result.stdout)


def refused(code: int, *words: object) -> str:
    result = run(*words)
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result.stderr


def test_an_import_is_looked_at_done_checked_and_written_anew(node: Path, data: Path) -> None:
    looked = ok("import-rabbitmq", node, *VHOSTS, "--dry-run", "--data-dir", data)
    assert looked["messages"] == sum(map(len, EXPECTED.values()))
    assert looked["findings"]["entries of indexes without a message"]["count"] == 1
    assert not data.exists()
    done = ok("import-rabbitmq", node, *VHOSTS, "--data-dir", data)
    assert {(one["tenant"], one["queue"]): one["messages"] for one in done} == {
        key: len(values) for key, values in EXPECTED.items()
    }
    assert ok("verify", "--data-dir", data) == []
    assert [one["file"] for one in ok("scan", "--data-dir", data)] == [
        "0.rdq",
        "1.rdq",
        "2.rdq",
        "3.sqs",
    ]
    assert ok("migrate", "--dry-run", "--data-dir", data)["files"] == 3
    assert ok("migrate", "--data-dir", data) == {
        "rewritten": 3,
        "messages": 3,
        "kept": [],
        "unreadable": 0,
        "reasons": [],
    }
    assert ok("verify", "--data-dir", data) == []


def test_an_incomplete_copy_is_refused_in_a_dry_run_too(node: Path, data: Path) -> None:
    (node / "msg_stores/vhosts/A/msg_store_persistent/1.rdq").unlink()
    words = ("import-rabbitmq", node, *VHOSTS, "--data-dir", data)
    for more in (("--dry-run",), ()):
        said = refused(1, *words, *more)
        assert "2 entries of indexes whose message file may be missing" in said
        assert "--accept-loss" in said
    ok(*words, "--accept-loss")


def test_a_lost_ledger_is_made_anew_and_one_that_is_there_is_not(node: Path, data: Path) -> None:
    ok("import-rabbitmq", node, *VHOSTS, "--data-dir", data)
    assert "there is a ledger" in refused(1, "rebuild", "--data-dir", data)
    for path in (data / "queues").glob("ledger.db*"):
        path.unlink()
    assert "queue-store rebuild" in refused(1, "verify", "--data-dir", data)
    assert "--strays NAME" in refused(1, "rebuild", "--data-dir", data)
    said = ok("rebuild", "--strays", "strays", "--dry-run", "--data-dir", data)
    assert said["messages"] > 0
    looked = run("rebuild", "--strays", "strays", "--dry-run", "--data-dir", data)
    assert "nothing was written" in looked.stderr
    assert ok("rebuild", "--strays", "strays", "--data-dir", data) == said
    assert ok("verify", "--data-dir", data) == []
    assert run("verify", "--data-dir", data).stderr == "bottomless: nothing is wrong\n"


def test_a_ledger_of_no_bytes_is_a_lost_one_for_each_tool(node: Path, data: Path) -> None:
    ok("import-rabbitmq", node, *VHOSTS, "--data-dir", data)
    ledger, messages = data / "queues/ledger.db", data / "queues/messages"
    ledger.write_bytes(b"")
    before = {path.name: path.read_bytes() for path in messages.iterdir()}
    for words in (["verify"], ["migrate"], ["new-id", "--accept-loss"]):
        assert "has no ledger" in refused(1, *words, "--data-dir", data)
        assert ledger.stat().st_size == 0, "a tool that makes a new one hides that it was lost"
    assert {path.name: path.read_bytes() for path in messages.iterdir()} == before
    assert ok("rebuild", "--strays", "strays", "--data-dir", data)["messages"] > 0
    assert ok("verify", "--data-dir", data) == []


def test_what_is_wrong_with_a_store_is_shown_and_ends_with_1(node: Path, data: Path) -> None:
    ok("import-rabbitmq", node, *VHOSTS, "--data-dir", data)
    path = data / "queues/messages/3.sqs"
    path.write_bytes(path.read_bytes()[:-1])
    result = run("verify", "--data-dir", data)
    assert result.exit_code == 1
    assert "messages that are not where the ledger says" in result.stdout


def test_a_store_that_is_in_use_is_left_alone(node: Path, data: Path) -> None:
    ok("import-rabbitmq", node, *VHOSTS, "--data-dir", data)
    with DirectoryLock(data / "queues"):
        for words in (["scan"], ["verify"], ["rebuild"], ["migrate"]):
            assert "another server or tool process uses the data directory" in refused(
                5, *words, "--data-dir", data
            )
        assert refused(5, "import-rabbitmq", node, *VHOSTS, "--data-dir", data)


def test_wrong_usage_and_what_is_not_there_are_told_apart(node: Path, data: Path) -> None:
    assert "there is no" in refused(1, "scan", "--data-dir", data)
    assert "NAME=VALUE" in refused(2, "import-rabbitmq", node, "--vhost", "default")
    said = refused(1, "import-rabbitmq", node, "--data-dir", data)
    assert "no tenant is named for '/', 'eu'" in said
    assert "name the data directory" in refused(1, "import-rabbitmq", data, "--data-dir", data)
    ok("import-rabbitmq", node, *VHOSTS, "--data-dir", data)
    assert "is not empty" in refused(1, "import-rabbitmq", node, *VHOSTS, "--data-dir", data)


def test_a_new_id_needs_the_word_of_an_operator(node: Path, data: Path) -> None:
    ok("import-rabbitmq", node, *VHOSTS, "--data-dir", data)
    assert "say --accept-loss" in refused(1, "new-id", "--data-dir", data)
    looked = ok("new-id", "--dry-run", "--data-dir", data)
    assert looked == {"store_id": None, "changed": False}
    assert not (data / "queues" / "start.json").exists()
    done = ok("new-id", "--accept-loss", "--data-dir", data)
    assert (len(done["store_id"]), done["changed"]) == (32, True)
    assert orjson.loads((data / "queues" / "start.json").read_bytes())["accept_loss"] is True
    (data / "queues" / "ledger.db").unlink()
    assert "has no ledger" in refused(1, "new-id", "--accept-loss", "--data-dir", data)
