"""A live RabbitMQ writes a stream, is killed, and what it confirmed is imported."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from golden.rabbitmq.make import SEGMENT_SIZE, stream_directory
from support.command_line import CommandLine
from support.rabbitmq import Publishing, publish_everything
from support.server import AllInOne

from bench.install import rabbitmq
from bench.place import Missing
from bench.servers.rabbitmq import running_rabbitmq

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def _rabbitmq() -> None:
    try:
        rabbitmq()
    except Missing as error:
        pytest.skip(f"no RabbitMQ can be had here: {error}")


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[CommandLine]:
    with AllInOne(tmp_path / "data") as server:
        yield CommandLine(server.url, tmp_path)


@pytest.mark.usefixtures("_rabbitmq")
def test_what_a_node_confirmed_is_imported_while_it_runs_and_after_it_was_killed(
    cli: CommandLine, tmp_path: Path
) -> None:
    cli.ok("create", "live")
    with running_rabbitmq(tmp_path / "node") as node:
        publishing = Publishing(node.connection(), "live")
        publishing.begin(SEGMENT_SIZE)
        publishing.plain([f"early {number}" for number in range(10)])
        directory = stream_directory(tmp_path / "node", "live")
        assert cli.run("import", "rabbitmq", directory, "--stream", "live").exit_code == 0
        assert len(cli.json("read", "live")) == 10
        publish_everything(publishing)
        publishing.close()
    assert cli.run("import", "rabbitmq", directory, "--stream", "live").exit_code == 0
    read = [record.get("value") for record in cli.json("read", "live", "--limit", 10_000)]
    said = [record.get("value") for record in publishing.records]
    assert len(read) == len(said)
    assert all(one == other for one, other in zip(read, said, strict=True) if other is not None)
