"""An import of what RabbitMQ has stored, beside its own client for Python that reads the same messages."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bench.figures import Figure, times
from bench.install import peers_python
from bench.pump import SETTLE_SECONDS
from bench.rows.clients import client
from bench.rows.replay import fill_rabbitmq
from bench.servers.ours import Ours, running_ours
from bench.servers.rabbitmq import running_rabbitmq
from bench.turns import Row, Runner, Stage

MESSAGES: Final = 1_000_000
MESSAGES_PER_SECOND: Final = 400_000
"""What is filled in for each second that a side shall run, up to all of them."""
STREAM: Final = "imported"
IMPORT: Final = "ours, import rabbitmq"
RSTREAM: Final = "rstream, consume"
IMPORT_SECONDS_MAX: Final = 600


def _import(ours: Ours, directory: Path) -> Runner:
    numbers = iter(range(1_000_000))
    program = str(Path(sys.executable).parent / "bottomless")

    def run(_: float) -> Figure:
        stream = f"{STREAM}-{next(numbers)}"
        ours.create(stream)
        ours.tree.settle(SETTLE_SECONDS)
        spent, begun = ours.tree.cpu_seconds(), time.perf_counter()
        with ours.tree.watched() as rss:
            done = subprocess.run(
                [
                    program,
                    "--url",
                    ours.url,
                    "import",
                    "rabbitmq",
                    str(directory),
                    "--stream",
                    stream,
                    "-o",
                    "json",
                ],
                capture_output=True,
                text=True,
                check=False,
                timeout=IMPORT_SECONDS_MAX,
            )
        took = time.perf_counter() - begun
        if done.returncode:
            raise RuntimeError(f"the import failed: {done.stderr[-300:]}")
        busy = ours.tree.cpu_seconds() - spent
        ours.tree.settle(SETTLE_SECONDS)
        stored = json.loads(done.stdout)["stored"]
        return Figure(
            units=stored,
            seconds=took,
            cpu_seconds=ours.tree.cpu_seconds() - spent,
            cpu_busy_seconds=busy,
            rss_mib=max(rss),
        )

    return run


def _set_up(stage: Stage) -> None:
    count = max(10_000, min(int(stage.seconds * MESSAGES_PER_SECOND), MESSAGES))
    with stage.side(RSTREAM):
        python = peers_python()
        server = stage.stack.enter_context(running_rabbitmq(stage.directory / "rabbitmq"))
        stage.versions["RabbitMQ"] = server.version
        filled, _ = fill_rabbitmq(server, STREAM, count, plain=True)
        [stored] = (stage.directory / "rabbitmq" / "data").glob(f"**/stream/__{STREAM}_*")
        # The name is that of the stream's directory, by which an import knows it again.
        copied = stage.directory / "copies" / stored.name
        shutil.copytree(stored, copied)
        read = client(python, "rabbit.py", server.tree, [str(server.port), STREAM], ["consume"])
        stage.runners[RSTREAM] = lambda _: read(filled)
        ours = stage.stack.enter_context(running_ours(stage.directory / "ours"))
        stage.runners[IMPORT] = _import(ours, copied)
        stage.notes.append(
            f"{filled:,} messages of 100 bytes, one by one in RabbitMQ's files. The import is the whole "
            "command, from its start to the last answer, with `fsync`; rstream reads them from a node that "
            "runs, in a process that has loaded it."
        )


ROWS: Final = (
    Row(
        "import",
        "A million messages of RabbitMQ imported, beside rstream reading them",
        "messages",
        (times("≥ 1 x rstream", IMPORT, RSTREAM, 1),),
        _set_up,
        warms_up=False,
        rounds_max=3,
        guess_seconds=300,
    ),
)
